"""Norms, activation and rotary embedding on the CPU with fewer passes over memory.

A PyTorch operation costs 2-5 us there however small it is, and a pass over a prefill's activations
more than arithmetic does; so what can be done in place or in one operation is.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.operands import HeadNorms
from quire.kernels.reference import write_cache


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Twin of `reference.rms_norm`."""
    x32 = x.float()
    length: Tensor = torch.linalg.vector_norm(x32, dim=-1, keepdim=True)  # sums x² in one pass
    scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    normed: Tensor = (x32 * scale).to(x.dtype)
    return normed.mul_(weight)


def rms_norm_residual(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Twin of `reference.rms_norm_residual`; the residual is added to in place."""
    residual.add_(x)
    return rms_norm(residual, weight, eps), residual


def silu_and_mul(x: Tensor) -> Tensor:
    """Twin of `reference.silu_and_mul`."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Twin of `reference.rotary`."""
    dim = cos.shape[-1]
    if dim < x.shape[-1]:
        return torch.cat([rotary(x[..., :dim], cos, sin), x[..., dim:]], dim=-1)
    swapped = torch.cat([x[..., dim // 2 :], x[..., : dim // 2]], dim=-1)
    return torch.addcmul(x * cos[:, None], swapped, sin[:, None])


def rope_write_kv(
    heads: Tensor,
    norms: HeadNorms | None,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
) -> Tensor:
    """Twin of `reference.rope_write_kv` for steps without padding, as all are here."""
    num_kv_heads = k_cache.shape[2]
    turning, value = heads[:, :-num_kv_heads], heads[:, -num_kv_heads:]
    if norms is None:
        turned = rotary(turning, cos, sin)
        query, key = turned[:, :-num_kv_heads], turned[:, -num_kv_heads:]
    else:
        query = rotary(rms_norm(turning[:, :-num_kv_heads], norms.query, norms.eps), cos, sin)
        key = rotary(rms_norm(turning[:, -num_kv_heads:], norms.key, norms.eps), cos, sin)
    write_cache(key, k_cache, slot_mapping)
    write_cache(value, v_cache, slot_mapping)
    return query
