"""Linears with weights of a byte each and scales of groups on a GPU: what serves which rows.

Few rows are not rounded (w8a16): codes are dequantized in the registers from which tensor cores
take them. Many rows are rounded to the weight's type with a scale for each 128 columns (w8a8),
where its groups and its checkpoint allow that. Otherwise codes are dequantized for each tile, or
for cuBLAS a piece of the weight at a time, into scratch memory. Floor: for few rows the bytes of W,
half of 16 bits'; for many the tensor cores' rate, twice that of 16 bits where rows are rounded.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from quire.kernels.byte_operands import BlockRows, ByteWords, Fp8Blocks, Int8Blocks
from quire.kernels.operands import RoundedRows, Rows
from quire.kernels.triton.gemm.block_config import MOST_INPUTS, block_config
from quire.kernels.triton.gemm.byte_config import byte_config, scales_codes
from quire.kernels.triton.gemm.byte_rows_config import ByteRowsConfig, byte_rows_config
from quire.kernels.triton.gemm.int4_config import Int4Config
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops.byte_words import dequantize_words
from quire.kernels.triton.ops.gpu_linear import MAX_ROWS
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu
from quire.kernels.triton.ops.words_linear import WordsLinear, ordered, whole_steps
from quire.kernels.triton.step.block_rounding import quantize_blocks

_PIECE = 2**25  # bytes of numbers that are made at a time, so that the cache has them
_KINDS: dict[str, type[BlockRows]] = {"e4m3": Fp8Blocks, "s8": Int8Blocks}
MOST_ROWS = 4096  # of x, up to which codes are dequantized for each tile; beyond, once for all rows
# of x, up to which rows are not rounded; FP8's are by what its checkpoints ask for, INT8's from
# where they would take longer than in bfloat16 with weights of that
EXACT_ROWS = {"e4m3": MAX_ROWS, "s8": 128}


class _ByteWordsLinear(WordsLinear[ByteWords]):
    """Weights of a byte each, packed as words."""

    most = 2**13  # as programs may have any of x's tiles

    def linear(self, x: Rows, weight: ByteWords, bias: Tensor | None) -> Tensor:
        """Twin of `reference_bytes.linear_bytes`."""
        if isinstance(x, RoundedRows):
            if type(x) is self.rows_of(weight, len(x.codes)):
                return in_blocks(x, weight, bias)
            x = x.dequantize()
        if self.reads_words(x, weight, MAX_ROWS):
            return self.launch(x, weight, bias).out
        x = ordered(x, weight)
        if x.dtype == torch.bfloat16 and multiplies_blocks(len(x), weight):
            return in_blocks(quantize_blocks(x, _KINDS[weight.codes]), weight, bias)
        config = many_config(x, weight)
        if config is not None:
            from quire.kernels.triton.hopper.hopper_byte_rows import multiply_byte_rows

            return multiply_byte_rows(whole_steps(x), weight, bias, config)
        return by_library(x, weight, bias)

    def rows_of(self, weight: ByteWords, rows: int = 0) -> type[RoundedRows] | None:
        is_ordered = weight.permutation is None  # what rounds rows does not reorder them
        return _KINDS[weight.codes] if is_ordered and multiplies_blocks(rows, weight) else None

    def rounds_next(self, out: Tensor, weight: ByteWords) -> type[RoundedRows] | None:
        """The type of rounded rows; None unless gates and ups have whole blocks of 128."""
        fits = out.dtype == torch.bfloat16 and out.shape[1] % 256 == 0
        return self.rows_of(weight, len(out)) if fits else None

    def ring_config(self, num_rows: int, weight: ByteWords, head_dim: int = 0) -> Int4Config | None:
        n, num_sms = len(weight.words), workspace(weight.words.device).num_sms
        shape = n, weight.inputs, weight.group, num_sms, _tables(weight)
        return byte_config(num_rows, *shape, head_dim)

    def ring_operands(self, weight: ByteWords, config: Int4Config) -> tuple[Any, Tensor, Any]:
        from quire.kernels.triton.hopper.hopper_byte_codes import byte_boxes

        boxes = byte_boxes(weight.words, config.parts, config.block_n)
        return boxes, weight.row_scale, weight.codes

    def scales_numbers(self, num_rows: int, weight: ByteWords) -> bool:
        return scales_codes(num_rows, weight.group)

    def dequantize(self, weight: ByteWords, out: Tensor) -> Tensor:
        return dequantize_words(weight, out)


BYTES = _ByteWordsLinear()


def many_config(x: Tensor, weight: ByteWords) -> ByteRowsConfig | None:
    """The config that dequantizes codes for each tile; None where numbers are multiplied."""
    n, device = len(weight.words), weight.words.device
    if x.dtype != torch.bfloat16 or not 0 < len(x) <= MOST_ROWS:
        return None
    if n % (8 if weight.zeros is None else 16) or not has_hopper_gpu(device):
        return None
    return byte_rows_config(len(x), n, weight.inputs, workspace(device).num_sms)


def stays_exact(codes: str, rows: int, k: int) -> bool:
    """Whether so many rows of x [rows, k] in bfloat16 are not rounded for weights of a byte each.

    INT8 is also left exact where that was measured to be faster: many rows and long ones.
    """
    return rows <= EXACT_ROWS[codes] or (codes == "s8" and rows > 512 and k > 8192)


def multiplies_blocks(rows: int, weight: ByteWords) -> bool:
    """Whether so many rows in bfloat16 are rounded with scales of 128 columns."""
    n, k, device = len(weight.words), weight.inputs, weight.words.device
    if stays_exact(weight.codes, rows, k) or weight.zeros is not None or not weight.rounds:
        return False
    whole = weight.group == 128 and k % 128 == n % 8 == 0 and k <= MOST_INPUTS
    return whole and (weight.scale is not None or weight.codes == "s8") and has_hopper_gpu(device)


def in_blocks(x: RoundedRows, weight: ByteWords, bias: Tensor | None) -> Tensor:
    """x in blocks of the weight's type, in the order of its inputs → bfloat16 [T, N]."""
    from quire.kernels.triton.hopper.hopper_block_gemm import multiply_blocks

    shape = len(x.codes), len(weight.words), weight.inputs
    config = block_config(*shape, workspace(weight.words.device).num_sms)
    assert config is not None  # as K is at most MOST_INPUTS
    return multiply_blocks(x, weight, bias, config)


def _tables(weight: ByteWords) -> int:
    """Tensors of groups, of scales and of zeros."""
    return (weight.scale is not None) + (weight.zeros is not None)


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
