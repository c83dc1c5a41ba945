"""Activations rounded to eight bits with a scale for each token and 128 columns: `BlockRows`.

Codes are in the order of a weight's words, see ops/byte_words.py. The norm's kernel can round what
it stores itself, see elementwise.py.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from quire.kernels.byte_operands import BlockRows, Fp8Blocks
from quire.kernels.operands import RoundedRows
from quire.kernels.triton.launch.workspace import follow, launches_early
from quire.kernels.triton.step.elementwise import empty_rounded, silu_of_pairs
from quire.kernels.triton.step.row_rounding import store_blocks

_CHUNKS = 8  # of 128 columns that a program rounds


def quantize_blocks(x: Tensor, kind: type[BlockRows] = Fp8Blocks) -> RoundedRows:
    """x [T, K] as rows of a kind, K a multiple of 128."""
    assert x.stride(1) == 1
    return _launch(x, x.shape[1], kind, is_silu=False)


def silu_and_mul_blocks(x: Tensor, kind: type[BlockRows]) -> RoundedRows:
    """SiLU of interleaved gate and up [T, 2 K], as `quantize_blocks` rounds it."""
    assert x.stride(1) == 1
    return _launch(x, x.shape[1] // 2, kind, is_silu=True)


def _launch(x: Tensor, size: int, kind: type[BlockRows], *, is_silu: bool) -> RoundedRows:
    rows, pdl = empty_rounded(x, size, kind), launches_early(x.device)
    quantize_blocks_kernel[(len(x), triton.cdiv(size, 128 * _CHUNKS))](
        x, rows.codes, rows.scale, size, x.stride(0), CHUNKS=_CHUNKS, SILU=is_silu, PDL=pdl,
        num_warps=4 if is_silu else 2, launch_pdl=pdl,
    )  # fmt: skip
    return rows


@triton.jit
def quantize_blocks_kernel(
    x_ptr, codes_ptr, scale_ptr, size, stride,
    CHUNKS: tl.constexpr, SILU: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x [T, size] → codes [T, size] and scales [size / 128, T]: CHUNKS times 128 columns a program.

    SILU: of interleaved gates and ups, x [T, 2 size].
    """
    if PDL:
        follow()
    token, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * (CHUNKS * 128)
    x_ptr += token * stride
    if SILU:
        x = silu_of_pairs(x_ptr, start, size, CHUNKS * 128).to(x_ptr.dtype.element_ty)
    else:
        column = start + tl.arange(0, CHUNKS * 128)
        x = tl.load(x_ptr + column, mask=column < size, other=0.0)
    store_blocks(
        codes_ptr + token * size, scale_ptr + token, x, start, size, tl.num_programs(0), CHUNKS
    )
