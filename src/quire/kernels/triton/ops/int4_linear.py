"""Linears with four-bit weights on a GPU: which kernel serves which number of rows.

Up to 64 rows of x are not rounded (w4a16), and the floor is the bytes of W, a quarter of 16 bits':
by the ring on Hopper in bfloat16, elsewhere and in float16 by the plain Triton kernel, but for
NF4 in float16 on Hopper, whose numbers are quicker unpacked for the library from a few rows on.
More rows are rounded to FP8 with a scale each (w4a8), and so are the weight's numbers, which takes
far less from them than their four bits did: the floor is twice the tensor cores' 16-bit rate. Some
hundred rows are multiplied while codes are unpacked; for more all codes are unpacked first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.operands import (
    Fp8Rows,
    Int4Words,
    ResidualState,
    RopeWriteKV,
    RoundedRows,
    Rows,
)
from quire.kernels.triton.gemm.gemm_tuning import holds_whole_heads
from quire.kernels.triton.gemm.int4_config import (
    Int4Config,
    half_heads_config,
    int4_config,
)
from quire.kernels.triton.gemm.int4_rows_config import Int4RowsConfig, int4_rows_config
from quire.kernels.triton.gemm.table_config import has_table, table_config
from quire.kernels.triton.launch.gemm_config import SkinnyConfig
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops.fp8_linear import many_rows
from quire.kernels.triton.ops.gemm_launch import run_skinny
from quire.kernels.triton.ops.gpu_linear import MAX_ROWS, Config
from quire.kernels.triton.ops.int4_weight import byte_tables, codebook_numbers, dequantize_int4
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu
from quire.kernels.triton.ops.rounded_rows import multiplies_fp8
from quire.kernels.triton.ops.words_linear import WordsLinear, ordered
from quire.kernels.triton.step.elementwise import quantize_rows

W4A16_ROWS = 64  # rows, up to which they are not rounded for weights in four bits
MOST_ROWS = 512  # of x, up to which codes are unpacked for each tile; beyond, once for all rows
FP8_ROWS = 1024  # of x, up to which codes are unpacked for each tile where FP8 is multiplied
_PIECE = 2**28  # bytes of a weight's numbers that are made at a time


class _Int4Linear(WordsLinear[Int4Words]):
    """Weights in four bits, packed as words."""

    most = MOST_ROWS

    def linear(self, x: Rows, weight: Int4Words, bias: Tensor | None) -> Tensor:
        """x [T, K] · weightᵀ + bias → [T, N]: the twin works on dequantized weights."""
        if isinstance(x, RoundedRows):
            if isinstance(x, Fp8Rows) and multiplies_in_fp8(len(x.codes), torch.bfloat16, weight):
                return in_fp8(x, weight, bias)
            x = x.dequantize()
        if multiplies_in_fp8(len(x), x.dtype, weight):
            return in_fp8(quantize_rows(x), weight, bias)
        if self.reads_words(x, weight, MOST_ROWS) or self.reads_plainly(x, weight):
            return self.launch(x, weight, bias).out
        return unpacked(x, weight, bias)

    def rows_of(self, weight: Int4Words, rows: int = 0) -> type[RoundedRows] | None:
        return Fp8Rows if multiplies_in_fp8(rows, torch.bfloat16, weight) else None

    def rounds_next(self, out: Tensor, weight: Int4Words) -> type[RoundedRows] | None:
        return Fp8Rows if multiplies_in_fp8(len(out), out.dtype, weight) else None

    def ring_config(self, num_rows: int, weight: Int4Words, head_dim: int = 0) -> Int4Config | None:
        n, num_sms = len(weight.words), workspace(weight.words.device).num_sms
        shape = num_rows, n, weight.inputs, weight.group, num_sms
        if not self.scales_numbers(num_rows, weight):
            return table_config(*shape, head_dim)
        return int4_config(*shape, zeros=weight.zeros is not None, head_dim=head_dim)

    def reads_plainly(self, x: Tensor, weight: Int4Words) -> bool:
        if x.dtype not in (torch.float16, torch.bfloat16) or x.stride(1) != 1:
            return False
        if (x.stride(0) * x.itemsize | x.data_ptr()) % 4:  # read in pairs
            return False
        most = 1 if is_looked_up(weight) and has_hopper_gpu(x.device) else MAX_ROWS
        return 0 < len(x) <= most and not self.reads_words(x, weight, MAX_ROWS)

    def config(self, rows: Tensor, weight: Int4Words) -> Config:
        if self.reads_words(rows, weight, self.most):
            return super().config(rows, weight)
        return plain_config(len(rows))

    def run(
        self,
        config: Config,
        rows: Tensor,
        weight: Int4Words,
        behind: tuple[Any, ...],
        out: Tensor,
        flags: dict[str, Any],
    ) -> None:
        """See `GpuLinear`."""
        if not isinstance(config, SkinnyConfig):
            super().run(config, rows, weight, behind, out, flags)
            return
        one = len(rows) == 1
        flags |= {"WEIGHT_FORMAT": "words", "GROUP": weight.group, "ONE_ROW": one}
        flags |= {"maxnreg": 128 if one else None}  # for four programs on a multiprocessor
        table = codebook_numbers(weight.codebook, rows.device) if is_looked_up(weight) else None
        operands = weight.output_scale, weight.scale, weight.zeros, table
        run_skinny(config, rows, weight.words, (*operands, *behind), out, flags)

    def rope_config(self, x: ResidualState, weight: Int4Words, rope: RopeWriteKV) -> Config | None:
        """See `GpuLinear`. Norms, and scales of keys and values, are those of whole heads."""
        m, n, found = len(x.residual), len(weight.words), None
        assert isinstance(x.rows, Tensor)
        if self.reads_plainly(x.rows, weight):
            plain = plain_config(m)
            is_whole = holds_whole_heads(plain, n, rope.k_cache.shape[2], rope.head_dim)
            return plain if is_whole else None
        if rope.norms is None and rope.scales is None and self.scales_numbers(m, weight):
            found = half_heads_config(
                m, n, weight.inputs, weight.group, workspace(weight.words.device).num_sms,
                rope.head_dim, zeros=weight.zeros is not None,
            )  # fmt: skip
        return found or super().rope_config(x, weight, rope)

    def ring_operands(
        self, weight: Int4Words, config: Int4Config
    ) -> tuple[Any, Tensor | None, Any]:  # fmt: skip
        from quire.kernels.triton.hopper.hopper_int4_ring import word_boxes

        boxes = word_boxes(weight.words, config.parts, config.block_n)
        return boxes, weight.output_scale, ring_codebook(weight)

    def scales_numbers(self, num_rows: int, weight: Int4Words) -> bool:
        return not (is_looked_up(weight) and has_table(num_rows))

    def dequantize(self, weight: Int4Words, out: Tensor) -> Tensor:
        return dequantize_int4(weight, out)


INT4 = _Int4Linear()


def is_looked_up(weight: Int4Words) -> bool:
    """Whether codes are indices of a table (NF4); numbers of e2m1 are made of their bits."""
    return weight.codebook is not None and weight.scale.dtype == torch.float16


def plain_config(rows: int) -> SkinnyConfig:
    """The config of the plain Triton kernel, as measured on one H200; words have steps of 256."""
    return SkinnyConfig(64, 256, 2, per_sm=4 if rows == 1 else 2)


def multiplies_in_fp8(rows: int, dtype: torch.dtype, weight: Int4Words) -> bool:
    """Whether so many rows of x and a weight in four bits are both rounded to FP8."""
    if rows <= W4A16_ROWS or dtype != torch.bfloat16 or not multiplies_fp8(weight.words.device):
        return False
    return len(weight.words) % 16 == weight.inputs % 16 == 0


def in_fp8(x: RoundedRows, weight: Int4Words, bias: Tensor | None) -> Tensor:
    """The linear operation in FP8 → bfloat16 [T, N]."""
    if weight.permutation is not None:
        codes = ordered(x.codes.view(torch.uint8), weight)
        x = Fp8Rows(codes.view(x.codes.dtype), x.scale)
    config = _rows_config(len(x.codes), weight) if len(x.codes) <= FP8_ROWS else None
    if config is not None:
        from quire.kernels.triton.hopper.hopper_int4_rows import multiply_rows_int4

        tables = weight.codebook and byte_tables(weight.codebook, torch.float16)
        return multiply_rows_int4(x, weight, bias, config, tables)

    def multiply(codes: Tensor, rows: slice) -> Tensor:
        return many_rows(x, codes, weight.row_scale[rows], _part(bias, rows))

    return _by_pieces(weight, torch.float8_e4m3fn, multiply)


def ring_codebook(weight: Int4Words) -> str | None:
    """CODEBOOK of the ring: numbers are made of their bits, or looked up."""
    if weight.codebook is None:
        return None
    return "e2m1" if weight.by_bits else byte_tables(weight.codebook, torch.bfloat16)


def _rows_config(rows: int, weight: Int4Words) -> Int4RowsConfig | None:
    """The config that unpacks codes for so many rows in FP8; None where no kernel does."""
    device = weight.words.device
    if not has_hopper_gpu(device):
        return None
    return int4_rows_config(rows, len(weight.words), weight.inputs, workspace(device).num_sms)


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
