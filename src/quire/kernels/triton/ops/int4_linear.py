"""Linears with four-bit weights on a GPU: which kernel serves which number of rows.

Up to 64 rows of x are not rounded (w4a16; 128 with a codebook), and the floor is the bytes of W, a
quarter of 16 bits'. More rows are rounded to FP8 with a scale each (w4a8), and so are the weight's
numbers, which takes far less from them than their four bits did: the floor is twice the tensor
cores' 16-bit rate. Some hundred rows are multiplied while codes are unpacked; for more all codes
are unpacked first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from quire.kernels import reference
from quire.kernels.byte_operands import ByteWords
from quire.kernels.operands import Fp8Rows, Int4Words, ResidualState, RoundedRows, Rows
from quire.kernels.triton.gemm.gemm_tuning import holds_whole_heads
from quire.kernels.triton.gemm.int4_config import (
    Int4Config,
    block_rows,
    group_rows,
    int4_config,
    scales_codes,
)
from quire.kernels.triton.gemm.int4_rows_config import Int4RowsConfig, int4_rows_config
from quire.kernels.triton.launch.workspace import NUM_COUNTERS, NUM_PARTIALS, workspace
from quire.kernels.triton.ops.fp8_linear import many_rows
from quire.kernels.triton.ops.gpu_linear import MAX_ROWS, Config, GpuLinear, Operand
from quire.kernels.triton.ops.int4_weight import byte_tables, dequantize_int4
from quire.kernels.triton.ops.invariant_gemm import invariant_gemm
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu
from quire.kernels.triton.ops.rounded_rows import multiplies_fp8
from quire.kernels.triton.step.elementwise import quantize_rows

W4A16_ROWS = 64  # rows, up to which they are not rounded for weights in four bits
CODEBOOK_ROWS = 128  # the same for codes of a codebook, which all become numbers for more rows
MOST_ROWS = 512  # of x, up to which codes are unpacked for each tile; beyond, once for all rows
FP8_ROWS = 512  # of x, up to which codes are unpacked for each tile where FP8 is multiplied
_PIECE = 2**28  # bytes of a weight's numbers that are made at a time


class _Int4Linear(GpuLinear[Int4Words]):
    """Weights in four bits, packed as words."""

    most = MOST_ROWS

    def operand(self, weight: Int4Words) -> Operand:
        return weight.words, None, "words"

    def linear(self, x: Rows, weight: Int4Words, bias: Tensor | None) -> Tensor:
        """x [T, K] · weightᵀ + bias → [T, N]: the twin works on dequantized weights."""
        if isinstance(x, RoundedRows):
            if isinstance(x, Fp8Rows) and multiplies_in_fp8(len(x.codes), torch.bfloat16, weight):
                return in_fp8(x, weight, bias)
            x = x.widened()
        if multiplies_in_fp8(len(x), x.dtype, weight):
            return in_fp8(quantize_rows(x), weight, bias)
        if reads_words(x, weight, MOST_ROWS) and x.stride(1) == 1:
            return self.launch(x, weight, bias).out
        return unpacked(x, weight, bias)

    def invariant_linear(self, x: Rows, weight: Int4Words, bias: Tensor | None) -> Tensor:
        x = ordered(x if isinstance(x, Tensor) else x.widened(), weight)
        return invariant_gemm(x, None, widened(weight, x.dtype), None, bias, x.dtype)

    def is_few(self, x: Rows, weight: Int4Words) -> TypeGuard[Tensor]:
        return isinstance(x, Tensor) and x.stride(1) == 1 and reads_words(x, weight, MAX_ROWS)

    def rows_of(self, weight: Int4Words, rows: int = 0) -> type[RoundedRows] | None:
        return Fp8Rows if multiplies_in_fp8(rows, torch.bfloat16, weight) else None

    def rounds_next(self, out: Tensor, weight: Int4Words) -> type[RoundedRows] | None:
        return Fp8Rows if multiplies_in_fp8(len(out), out.dtype, weight) else None

    def inputs(self, x: Tensor | ResidualState, weight: Int4Words) -> tuple[Tensor, Tensor | None]:
        rows, squares = super().inputs(x, weight)
        return ordered(rows, weight), squares

    def config(self, num_rows: int, weight: Int4Words) -> Config:
        found = _config_of(num_rows, weight)
        assert found is not None
        return found

    def rope_config(
        self, x: ResidualState, weight: Int4Words, kv_heads: int, head_dim: int
    ) -> Config | None:
        whole, n = None, len(weight.words)
        if head_dim in (64, 128):
            whole = _config_of(len(x.residual), weight, head_dim)
        return whole if whole and holds_whole_heads(whole, n, kv_heads, head_dim) else None

    def run(
        self,
        config: Config,
        rows: Tensor,
        weight: Int4Words,
        behind: tuple[Any, ...],
        out: Tensor,
        flags: dict[str, Any],
    ) -> None:
        from quire.kernels.triton.hopper.hopper_gemm import hopper_gemm_kernel
        from quire.kernels.triton.hopper.hopper_int4_ring import column_boxes, word_boxes

        assert isinstance(config, Int4Config)
        m, n, k = len(out), len(weight.words), weight.inputs
        codebook = None if weight.codebook is None else byte_tables(weight.codebook)
        block_m, m_tiles = block_rows(m), triton.cdiv(m, block_rows(m))
        tiles = triton.cdiv(n, config.block_n) * m_tiles
        assert tiles <= NUM_COUNTERS
        assert config.split == 1 or tiles * config.split * config.block_n * block_m <= NUM_PARTIALS
        x = whole_steps(rows)
        hopper_gemm_kernel[(tiles * config.split,)](
            x, column_boxes(x, config.parts, block_m),
            word_boxes(weight.words, config.parts, config.block_n), None, weight.scale,
            weight.zeros, *behind, out.stride(0), BLOCK_M=block_m, BLOCK_N=config.block_n,
            STAGES=config.stages, SPLIT=config.split, TILES=config.parts, CHUNK=0,
            maxnreg=config.registers, GROUP=weight.group, SCALED=scales_codes(m, weight.group),
            GROUP_ROWS=group_rows(k, weight.group, config), CODEBOOK=codebook, **flags,
        )  # fmt: skip


INT4 = _Int4Linear()


def whole_steps(rows: Tensor) -> Tensor:
    """Rows as TMA addresses them, with columns up to a multiple of 256."""
    k = rows.shape[1]
    if k % 256 or (rows.stride(0) * rows.itemsize | rows.data_ptr()) % 16:
        return F.pad(rows, (0, -k % 256)).contiguous()
    return rows


def _config_of(num_rows: int, weight: Int4Words, head_dim: int = 0) -> Int4Config | None:
    n, num_sms = len(weight.words), workspace(weight.words.device).num_sms
    zeros, group = weight.zeros is not None, weight.group
    return int4_config(
        num_rows, n, weight.inputs, group, num_sms, zeros=zeros,
        codebook=weight.codebook is not None, head_dim=head_dim,
    )  # fmt: skip


def ordered(x: Tensor, weight: Int4Words | ByteWords) -> Tensor:
    """x with its columns in the order of the weight's inputs."""
    return x if weight.permutation is None else x[:, weight.permutation]


def multiplies_in_fp8(rows: int, dtype: torch.dtype, weight: Int4Words) -> bool:
    """Whether so many rows of x and a weight in four bits are both rounded to FP8."""
    least = W4A16_ROWS if weight.codebook is None else CODEBOOK_ROWS
    if rows <= least or dtype != torch.bfloat16 or not multiplies_fp8(weight.words.device):
        return False
    return len(weight.words) % 16 == weight.inputs % 16 == 0


def reads_words(x: Tensor, weight: Int4Words, rows: int) -> bool:
    """Whether the GEMM that unpacks codes in registers serves x, of at most so many rows."""
    if x.dtype != torch.bfloat16 or not 0 < len(x) <= rows or not has_hopper_gpu(x.device):
        return False
    return _config_of(len(x), weight) is not None


def in_fp8(x: RoundedRows, weight: Int4Words, bias: Tensor | None) -> Tensor:
    """The linear operation in FP8 → bfloat16 [T, N]."""
    if weight.permutation is not None:
        codes = x.codes.view(torch.uint8)[:, weight.permutation].view(x.codes.dtype)
        x = Fp8Rows(codes, x.scale)
    config = _rows_config(len(x.codes), weight) if len(x.codes) <= FP8_ROWS else None
    if config is not None:
        from quire.kernels.triton.hopper.hopper_int4_rows import multiply_rows_int4

        return multiply_rows_int4(x, weight, bias, config)

    def multiply(codes: Tensor, rows: slice) -> Tensor:
        return many_rows(x, codes, weight.row_scale[rows], _part(bias, rows))

    return _by_pieces(weight, torch.float8_e4m3fn, multiply)


def _rows_config(rows: int, weight: Int4Words) -> Int4RowsConfig | None:
    """The config that unpacks codes for so many rows in FP8; None where no kernel does."""
    device, n = weight.words.device, len(weight.words)
    if weight.codebook is not None or not has_hopper_gpu(device):
        return None
    num_sms, zeros = workspace(device).num_sms, weight.zeros is not None
    return int4_rows_config(rows, n, weight.inputs, weight.group, num_sms, zeros=zeros)


def unpacked(x: Tensor, weight: Int4Words, bias: Tensor | None) -> Tensor:
    """The linear operation by the library, on the weight as numbers of x's data type."""
    x = ordered(x, weight)

    def multiply(numbers: Tensor, rows: slice) -> Tensor:
        return reference.linear(x, numbers, _part(bias, rows))

    return _by_pieces(weight, x.dtype, multiply)


def _by_pieces(
    weight: Int4Words, dtype: torch.dtype, multiply: Callable[[Tensor, slice], Tensor]
) -> Tensor:
    """Results [T, N] of `multiply` for the weight as numbers, some of its rows at a time."""
    n, k = len(weight.words), weight.inputs
    step = max(16, _PIECE // (k * dtype.itemsize) // 16 * 16)
    numbers = weight.words.new_empty(min(n, step), k, dtype=dtype)
    found = []
    for start in range(0, n, step):
        piece = dequantize_int4(weight, numbers[: min(step, n - start)], start)
        found.append(multiply(piece, slice(start, start + len(piece))))
    return found[0] if len(found) == 1 else torch.cat(found, dim=1)


def _part(bias: Tensor | None, rows: slice) -> Tensor | None:
    return None if bias is None else bias[rows]


def widened(weight: Int4Words, dtype: torch.dtype) -> Tensor:
    """The whole weight [N, K] as numbers of a data type."""
    out = torch.empty(len(weight.words), weight.inputs, dtype=dtype, device=weight.words.device)
    return dequantize_int4(weight, out)
