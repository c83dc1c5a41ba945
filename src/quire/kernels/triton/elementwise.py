"""Norms, activations, rotary embedding and the writing of keys and values: one pass over memory.

Floor of each: the bytes of its inputs and outputs over the memory's bandwidth; in a decode step
that is far less than a launch, so what counts there is how few of them there are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Twin of `reference.rms_norm`; x has two or three dimensions, the last one dense."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _norm(x, None, weight, out, eps)
    return out


def rms_norm_residual(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Twin of `reference.rms_norm_residual`; adds to the residual in place."""
    out = torch.empty_like(residual)
    _norm(x, residual, weight, out, eps)
    return out, residual


def _norm(x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, eps: float) -> None:
    heads, stride_head = (x.shape[1], x.stride(1)) if x.dim() == 3 else (1, 0)
    assert x.stride(-1) == 1
    assert residual is None or residual.is_contiguous()
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    _norm_kernel[(len(x), heads)](
        x, residual, weight, out, size, x.stride(0), stride_head, eps,
        HAS_RESIDUAL=residual is not None, BLOCK=block,
        num_warps=max(1, min(16, block // 512)),
    )  # fmt: skip


@triton.jit
def _norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, size, stride_token, stride_head, eps,
    HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: x, and the residual, [size]."""
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
    tl.store(out_ptr + row + i, (x32 * scale).to(x.dtype) * weight, mask=inside)


def silu_and_mul(x: Tensor, *, by_turns: bool = False) -> Tensor:
    """Twin of `reference.silu_and_mul`; by_turns: gate and up stand side by side in x."""
    tokens, width = len(x), x.shape[1] // 2
    assert x.stride(1) == 1
    out = x.new_empty(tokens, width)
    block = min(1024, triton.next_power_of_2(width))
    _silu_kernel[(tokens, triton.cdiv(width, block))](
        x, out, width, x.stride(0), BLOCK=block, BY_TURNS=by_turns, num_warps=4
    )
    return out


@triton.jit
def _silu_kernel(x_ptr, out_ptr, width, stride, BLOCK: tl.constexpr, BY_TURNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < width
    if BY_TURNS:
        j = tl.program_id(1) * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)
        pairs = tl.load(x_ptr + token * stride + j, mask=j < 2 * width, other=0.0)
        gate, up = tl.split(tl.reshape(pairs.to(tl.float32), [BLOCK, 2]))
    else:
        gate = tl.load(x_ptr + token * stride + i, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(x_ptr + token * stride + width + i, mask=inside, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + token * width + i, out.to(out_ptr.dtype.element_ty), mask=inside)


def embedding(input_ids: Tensor, weight: Tensor) -> Tensor:
    """Twin of `reference.embedding`."""
    size = weight.shape[1]
    out = weight.new_empty(len(input_ids), size)
    block = min(4096, triton.next_power_of_2(size))
    _embedding_kernel[(len(input_ids), triton.cdiv(size, block))](
        input_ids, weight, out, size, weight.stride(0), BLOCK=block, num_warps=4
    )
    return out


@triton.jit
def _embedding_kernel(ids_ptr, weight_ptr, out_ptr, size, stride, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(ids_ptr + token).to(tl.int64)
    vector = tl.load(weight_ptr + row * stride + i, mask=i < size, other=0.0)
    tl.store(out_ptr + token * size + i, vector, mask=i < size)
