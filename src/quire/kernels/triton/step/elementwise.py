"""Norms, SiLU, embedding and rounding to eight bits: kernels that pass over memory once.

Floor of each: the bytes of its inputs and outputs over the memory bandwidth. In a decode step that
is far less than a launch takes, so the number of launches counts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.kernels import reference
from quire.kernels.byte_operands import BlockRows, Fp8Blocks, Int8Blocks
from quire.kernels.operands import Fp8Rows, Int8Rows, RoundedRows
from quire.kernels.triton.launch.row_memory import empty_rows
from quire.kernels.triton.launch.workspace import follow, launches_early
from quire.kernels.triton.step.row_rounding import (
    codes_of,
    largest_of,
    scale_of,
    store_blocks,
    to_codes,
)

_TYPES: dict[type[RoundedRows], torch.dtype] = {
    Fp8Rows: reference.FP8, Int8Rows: torch.int8, Fp8Blocks: reference.FP8, Int8Blocks: torch.int8,
}  # fmt: skip


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Twin of `reference.rms_norm`; x has two or three dimensions, the last one dense."""
    out = empty_rows(*x.shape, dtype=x.dtype, device=x.device)
    _norm(x, None, weight, out, eps)
    return out


def rms_norm_residual(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Twin of `reference.rms_norm_residual`; adds to the residual in place."""
    out = empty_rows(*x.shape, dtype=residual.dtype, device=x.device)
    _norm(x, residual, weight, out, eps)
    return out, residual


def rms_norm_residual_rounded(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, kind: type[RoundedRows]
) -> tuple[RoundedRows, Tensor]:
    """`rms_norm_residual` with the norm's result in eight bits.

    As `quantize_rows` or `quantize_blocks` rounds it.
    """
    rows = empty_rounded(x, x.shape[1], kind)
    _norm(x, residual, weight, rows.codes, eps, rows.scale)
    return rows, residual


def empty_rounded(x: Tensor, size: int, kind: type[RoundedRows]) -> RoundedRows:
    """Uninitialised rows [len(x), size]."""
    codes = empty_rows(len(x), size, dtype=_TYPES[kind], device=x.device)
    if issubclass(kind, BlockRows):
        return kind(codes, x.new_empty(size // 128, len(x), dtype=torch.bfloat16))
    return kind(codes, torch.empty(len(x), 1, dtype=torch.float32, device=x.device))


def _warps(block: int) -> int:
    """Warps of a program that holds a row of `block` numbers."""
    return max(1, min(16, block // 512))


def _norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    out: Tensor,
    eps: float,
    scale: Tensor | None = None,
) -> None:
    heads, stride_head = (x.shape[1], x.stride(1)) if x.dim() == 3 else (1, 0)
    assert x.stride(-1) == 1
    assert residual is None or residual.is_contiguous()
    size = x.shape[-1]
    block, pdl = triton.next_power_of_2(size), launches_early(x.device)
    norm_kernel[(len(x), heads)](
        x, residual, weight, out, scale, size, x.stride(0), stride_head, eps,
        HAS_RESIDUAL=residual is not None, HAS_SCALE=scale is not None, BLOCK=block, PDL=pdl,
        num_warps=_warps(block), launch_pdl=pdl,
    )  # fmt: skip


@triton.jit
def norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, scale_ptr, size, stride_token, stride_head, eps,
    HAS_RESIDUAL: tl.constexpr, HAS_SCALE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """RMSNorm of one row x [size], after adding the residual if HAS_RESIDUAL.

    HAS_SCALE: the result is stored as codes of out's type with a scale for the row, or for each 128
    columns, where scales are in bfloat16.
    """
    if PDL:
        follow()
    token, head = tl.program_id(0), tl.program_id(1)
    row = (token * tl.num_programs(1) + head).to(tl.int64) * size
    i = tl.arange(0, BLOCK)
    inside = i < size
    x = tl.load(
        x_ptr + token.to(tl.int64) * stride_token + head * stride_head + i, mask=inside, other=0.0
    )
    if HAS_RESIDUAL:
        x = (x.to(tl.float32) + tl.load(residual_ptr + row + i, mask=inside, other=0.0)).to(x.dtype)
        tl.store(residual_ptr + row + i, x, mask=inside)
    x32 = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x32 * x32) / size + eps)
    weight = tl.load(weight_ptr + i, mask=inside, other=0.0)
    out = (x32 * scale).to(x.dtype) * weight
    if HAS_SCALE:
        if scale_ptr.dtype.element_ty == tl.bfloat16:
            store_blocks(
                out_ptr + row, scale_ptr + token, out, 0, size, tl.num_programs(0), BLOCK // 128
            )
        else:
            _store_codes(out_ptr + row, scale_ptr + token, out, size, BLOCK)
    else:
        tl.store(out_ptr + row + i, out, mask=inside)


def gelu_and_mul(x: Tensor, *, interleaved: bool = False) -> Tensor:
    """Twin of `reference.gelu_and_mul`; interleaved: each gate is followed by its up in x."""
    return silu_and_mul(x, interleaved=interleaved, gelu=True)


def silu_and_mul(x: Tensor, *, interleaved: bool = False, gelu: bool = False) -> Tensor:
    """Twin of `reference.silu_and_mul`; interleaved: each gate is followed by its up in x.

    gelu: with GELU in place of SiLU.
    """
    tokens, width = len(x), x.shape[1] // 2
    assert x.stride(1) == 1
    out = empty_rows(tokens, width, dtype=x.dtype, device=x.device)
    block, pdl = min(1024, triton.next_power_of_2(width)), launches_early(x.device)
    silu_kernel[(tokens, triton.cdiv(width, block))](
        x, out, width, x.stride(0), BLOCK=block, INTERLEAVED=interleaved, GELU=gelu, PDL=pdl,
        num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return out


@triton.jit
def silu_kernel(
    x_ptr, out_ptr, width, stride,
    BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr, GELU: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (t, b): block b of token t's activation(gate) * up [width], from x [T, 2 · width]."""
    if PDL:
        follow()
    token, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK
    i = start + tl.arange(0, BLOCK)
    inside = i < width
    x_ptr += token * stride
    if INTERLEAVED:
        out = silu_of_pairs(x_ptr, start, width, BLOCK, GELU)
    else:
        gate = tl.load(x_ptr + i, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(x_ptr + width + i, mask=inside, other=0.0).to(tl.float32)
        out = _activated(gate, GELU) * up
    tl.store(out_ptr + token * width + i, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _activated(gate, GELU: tl.constexpr):
    """silu(gate), or GELU's approximation by tanh, which is gate * sigmoid(2 * tanh's argument)."""
    if GELU:
        return gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        return gate * tl.sigmoid(gate)


@triton.jit
def silu_of_pairs(x_ptr, start, width, BLOCK: tl.constexpr, GELU: tl.constexpr = False):
    """activation(gate) * up of BLOCK pairs of a row, from pair `start` on: float32 [BLOCK].

    0 from pair `width` on.
    """
    i = 2 * start + tl.arange(0, 2 * BLOCK)
    pairs = tl.load(x_ptr + i, mask=i < 2 * width, other=0.0)
    gate, up = tl.split(tl.reshape(pairs.to(tl.float32), [BLOCK, 2]))
    return _activated(gate, GELU) * up


def silu_and_mul_rounded(x: Tensor, kind: type[RoundedRows]) -> RoundedRows:
    """SiLU of interleaved gate and up in eight bits, as `quantize_rows` rounds it."""
    width = x.shape[1] // 2
    assert x.stride(1) == 1
    rows = empty_rounded(x, width, kind)
    block, pdl = min(1024, triton.next_power_of_2(width)), launches_early(x.device)
    silu_rounded_kernel[(len(x),)](
        x, rows.codes, rows.scale, width, x.stride(0),
        BLOCK=block, STRETCHES=triton.cdiv(width, block), PDL=pdl, num_warps=8, launch_pdl=pdl,
    )  # fmt: skip
    return rows


@triton.jit
def silu_rounded_kernel(
    x_ptr, codes_ptr, scale_ptr, width, stride,
    BLOCK: tl.constexpr, STRETCHES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row in STRETCHES blocks; 16-bit results stay in registers until the scale is known.

    As one block, the row's float32 intermediates would leave room for one program on a
    multiprocessor.
    """
    if PDL:
        follow()
    token = tl.program_id(0).to(tl.int64)
    results = ()
    largest = tl.zeros([BLOCK], tl.float32)
    for stretch in tl.static_range(STRETCHES):
        out = silu_of_pairs(x_ptr + token * stride, stretch * BLOCK, width, BLOCK)
        out = out.to(x_ptr.dtype.element_ty)
        largest = tl.maximum(largest, tl.abs(out.to(tl.float32)), tl.PropagateNan.ALL)
        results += (out,)  # type: ignore[assignment]
    kind: tl.constexpr = codes_ptr.dtype.element_ty
    scale = scale_of(largest_of(largest, 0), kind)
    for stretch in tl.static_range(STRETCHES):
        i = stretch * BLOCK + tl.arange(0, BLOCK)
        codes = codes_of(results[stretch].to(tl.float32), scale, kind)
        tl.store(codes_ptr + token * width + i, codes, mask=i < width)
    tl.store(scale_ptr + token, scale)


def quantize_rows(x: Tensor, kind: type[RoundedRows] = Fp8Rows) -> RoundedRows:
    """Twin of `reference.quantize_rows`, or of `reference.round_int8` for whole rows."""
    assert x.stride(1) == 1
    rows = empty_rounded(x, x.shape[1], kind)
    block, pdl = triton.next_power_of_2(x.shape[1]), launches_early(x.device)
    quantize_kernel[(len(x),)](
        x, rows.codes, rows.scale, x.shape[1], x.stride(0), BLOCK=block, PDL=pdl,
        num_warps=_warps(block), launch_pdl=pdl,
    )  # fmt: skip
    return rows


@triton.jit
def quantize_kernel(
    x_ptr, codes_ptr, scale_ptr, size, stride, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Program t: the codes of token t's row [size], and their scale."""
    if PDL:
        follow()
    token = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + token * stride + i, mask=i < size, other=0.0)
    _store_codes(codes_ptr + token * size, scale_ptr + token, x, size, BLOCK)


@triton.jit
def _store_codes(codes_ptr, scale_ptr, x, size, BLOCK: tl.constexpr):
    """Store a row x [BLOCK], which is 0 from size on, as codes and their scale."""
    codes, scale = to_codes(x[None, :], codes_ptr.dtype.element_ty)
    i = tl.arange(0, BLOCK)[None, :]
    tl.store(codes_ptr + i, codes, mask=i < size)
    tl.store(scale_ptr + tl.arange(0, 1), scale)


def embedding(input_ids: Tensor, weight: Tensor) -> Tensor:
    """Twin of `reference.embedding`."""
    size = weight.shape[1]
    out = weight.new_empty(len(input_ids), size)
    block, pdl = min(4096, triton.next_power_of_2(size)), launches_early(weight.device)
    embedding_kernel[(len(input_ids), triton.cdiv(size, block))](
        input_ids, weight, out, size, weight.stride(0),
        BLOCK=block, PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return out


@triton.jit
def embedding_kernel(
    ids_ptr, weight_ptr, out_ptr, size, stride, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Program (t, b): block b of the vector [size] of token t."""
    if PDL:
        follow()
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(ids_ptr + token).to(tl.int64)
    vector = tl.load(weight_ptr + row * stride + i, mask=i < size, other=0.0)
    tl.store(out_ptr + token * size + i, vector, mask=i < size)
