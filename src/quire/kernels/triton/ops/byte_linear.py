"""Linears with weights of a byte each and scales of groups on a GPU: what serves which rows.

Activations are not rounded (w8a16), but for many rows by FP8 in blocks (`multiply_blocks`). Floor:
for few rows the bytes of W, half of 16 bits'; for many the tensor cores' rate.
Codes are widened in the registers from which tensor cores take them,
or, for more rows, the weight becomes numbers in scratch memory and the library multiplies.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
import triton
from torch import Tensor

from quire.kernels.byte_operands import ByteWords
from quire.kernels.operands import ResidualState, RoundedRows, Rows
from quire.kernels.triton.gemm.block_config import BlockConfig, block_config
from quire.kernels.triton.gemm.block_config import expected_us as blocks_us
from quire.kernels.triton.gemm.byte_config import byte_config
from quire.kernels.triton.gemm.byte_rows_config import ByteRowsConfig, byte_rows_config
from quire.kernels.triton.gemm.byte_rows_config import expected_us as rows_us
from quire.kernels.triton.gemm.gemm_tuning import holds_whole_heads
from quire.kernels.triton.gemm.int4_config import Int4Config, block_rows, group_rows, scales_codes
from quire.kernels.triton.launch.workspace import NUM_COUNTERS, NUM_PARTIALS, workspace
from quire.kernels.triton.ops.byte_words import dequantize_words, widened
from quire.kernels.triton.ops.gpu_linear import MAX_ROWS, Config, GpuLinear, Operand
from quire.kernels.triton.ops.int4_linear import ordered, whole_steps
from quire.kernels.triton.ops.invariant_gemm import invariant_gemm
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu
from quire.kernels.triton.step.block_rounding import quantize_blocks

_PIECE = 2**25  # bytes of numbers that are made at a time, so that the cache has them
MOST_ROWS = 4096  # of x, up to which codes are widened for each tile; beyond, once for all rows
ROUNDING_US = 2.0  # of x, least


class _ByteWordsLinear(GpuLinear[ByteWords]):
    """Weights of a byte each, packed as words."""

    most = 2**13  # as programs may have any of x's tiles

    def operand(self, weight: ByteWords) -> Operand:
        return weight.words, weight.row_scale, "words"

    def linear(self, x: Rows, weight: ByteWords, bias: Tensor | None) -> Tensor:
        """Twin of `reference_bytes.linear_bytes`."""
        x = x.widened() if isinstance(x, RoundedRows) else x
        if reads_bytes(x, weight, MAX_ROWS):
            return self.launch(x, weight, bias).out
        x, config = ordered(x, weight), many_config(x, weight)
        if isinstance(config, BlockConfig):
            from quire.kernels.triton.hopper.hopper_block_gemm import multiply_blocks

            return multiply_blocks(quantize_blocks(x), weight, bias, config)
        if config is not None:
            from quire.kernels.triton.hopper.hopper_byte_rows import multiply_byte_rows

            return multiply_byte_rows(whole_steps(x), weight, bias, config)
        return by_library(x, weight, bias)

    def invariant_linear(self, x: Rows, weight: ByteWords, bias: Tensor | None) -> Tensor:
        x = ordered(x if isinstance(x, Tensor) else x.widened(), weight)
        return invariant_gemm(x, None, widened(weight, x.dtype), None, bias, x.dtype)

    def is_few(self, x: Rows, weight: ByteWords) -> TypeGuard[Tensor]:
        return isinstance(x, Tensor) and reads_bytes(x, weight, MAX_ROWS)

    def inputs(self, x: Tensor | ResidualState, weight: ByteWords) -> tuple[Tensor, Tensor | None]:
        rows, squares = super().inputs(x, weight)
        return ordered(rows, weight), squares

    def config(self, num_rows: int, weight: ByteWords) -> Config:
        found = _config_of(num_rows, weight)
        assert found is not None
        return found

    def rope_config(
        self, x: ResidualState, weight: ByteWords, kv_heads: int, head_dim: int
    ) -> Config | None:
        whole, n = None, len(weight.words)
        if head_dim in (64, 128):
            whole = _config_of(len(x.residual), weight, head_dim)
        return whole if whole and holds_whole_heads(whole, n, kv_heads, head_dim) else None

    def run(
        self,
        config: Config,
        rows: Tensor,
        weight: ByteWords,
        behind: tuple[Any, ...],
        out: Tensor,
        flags: dict[str, Any],
    ) -> None:
        from quire.kernels.triton.hopper.hopper_byte_codes import byte_boxes
        from quire.kernels.triton.hopper.hopper_gemm import hopper_gemm_kernel
        from quire.kernels.triton.hopper.hopper_int4_ring import column_boxes

        assert isinstance(config, Int4Config)
        m, n, k = len(rows), len(weight.words), weight.inputs
        block_m, x = block_rows(m), whole_steps(rows)
        tiles = triton.cdiv(n, config.block_n) * triton.cdiv(m, block_m)
        assert tiles <= NUM_COUNTERS
        assert config.split == 1 or tiles * config.split * config.block_n * block_m <= NUM_PARTIALS
        hopper_gemm_kernel[(tiles * config.split,)](
            x, column_boxes(x, config.parts, block_m),
            byte_boxes(weight.words, config.parts, config.block_n), weight.row_scale, weight.scale,
            weight.zeros, *behind, out.stride(0),
            BLOCK_M=block_m, BLOCK_N=config.block_n, STAGES=config.stages, SPLIT=config.split,
            TILES=config.parts, CHUNK=0, maxnreg=config.registers, GROUP=weight.group,
            SCALED=weight.scale is None or scales_codes(m, weight.group),
            GROUP_ROWS=group_rows(k, weight.group, config), CODEBOOK=weight.codes, **flags,
        )  # fmt: skip


BYTES = _ByteWordsLinear()


def _config_of(num_rows: int, weight: ByteWords, head_dim: int = 0) -> Int4Config | None:
    n, num_sms = len(weight.words), workspace(weight.words.device).num_sms
    shape = n, weight.inputs, weight.group, num_sms, _tables(weight)
    return byte_config(num_rows, *shape, head_dim)


def many_config(x: Tensor, weight: ByteWords) -> BlockConfig | ByteRowsConfig | None:
    """The config for many rows of x, in FP8 or widened; None where numbers are multiplied."""
    n, device = len(weight.words), weight.words.device
    if x.dtype != torch.bfloat16 or not len(x) > 0 or n % 8 or not has_hopper_gpu(device):
        return None
    num_sms, shape = workspace(device).num_sms, (len(x), n, weight.inputs)
    rows = byte_rows_config(*shape, weight.group, num_sms, _tables(weight))
    blocks = block_config(*shape, num_sms) if multiplies_blocks(weight) else None
    if blocks is None:
        return rows if len(x) <= MOST_ROWS else None
    if rows is None or blocks_us(*shape, num_sms, blocks) + ROUNDING_US < rows_us(
        *shape, num_sms, rows
    ):
        return blocks
    return rows


def multiplies_blocks(weight: ByteWords) -> bool:
    """Whether the weight is multiplied by rows in FP8 with scales of 128 columns, if these pay."""
    return weight.codes == "fp8" and weight.group == 128 and weight.scale is not None


def _tables(weight: ByteWords) -> int:
    """Tensors of groups, of scales and of zeros."""
    return (weight.scale is not None) + (weight.zeros is not None)


def reads_bytes(x: Tensor, weight: ByteWords, rows: int) -> bool:
    """Whether the GEMM that widens codes in registers serves x, of at most so many rows."""
    if x.dtype != torch.bfloat16 or x.stride(1) != 1 or not 0 < len(x) <= rows:
        return False
    return has_hopper_gpu(x.device) and _config_of(len(x), weight) is not None


def by_library(x: Tensor, weight: ByteWords, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias by the library, on some rows of the weight as numbers at a time.

    x: in the order of the weight's inputs.
    """
    (n, k), dtype = (len(weight.words), weight.inputs), x.dtype
    pieces = triton.cdiv(n * k * dtype.itemsize, _PIECE)
    step = triton.cdiv(triton.cdiv(n, pieces), 128) * 128
    numbers, out = x.new_empty(min(n, step), k), x.new_empty(len(x), n)
    for start in range(0, n, step):
        rows = slice(start, min(n, start + step))
        piece = dequantize_words(weight, numbers[: rows.stop - start], start)
        if bias is None:
            torch.mm(x, piece.t(), out=out[:, rows])
        else:
            torch.addmm(bias[rows], x, piece.t(), out=out[:, rows])
    return out
