"""RoPE and the writing of keys and values to the cache, one launch a layer; RoPE's cos and sin.

Floor: queries, keys and values read and written once, over the memory bandwidth. With few tokens it
is the latency of one load and one store, so queries, keys and values of a token are handled by
three programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.kernels.operands import HeadNorms, KVScales
from quire.kernels.triton.launch.workspace import follow, launches_early


def rope_angles(
    positions: Tensor, inv_freq: Tensor, scale: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Twin of `reference.rope_angles`."""
    half, pdl = inv_freq.shape[-1], launches_early(positions.device)
    angles = torch.empty(2, len(positions), 2 * half, dtype=dtype, device=positions.device)
    angles_kernel[(len(positions),)](
        positions, inv_freq, angles[0], angles[1], scale,
        inv_freq.stride(0) if inv_freq.dim() == 2 else 0,
        HALF=half, PDL=pdl, num_warps=1, launch_pdl=pdl,
    )  # fmt: skip
    return angles[0], angles[1]


def rope_write_kv(
    heads: Tensor,
    norms: HeadNorms | None,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    scales: KVScales | None = None,
) -> Tensor:
    """Twin of `reference.rope_write_kv`."""
    tokens, num_heads, head_dim = heads.shape
    kv_heads = k_cache.shape[2]
    out = heads.new_empty(tokens, num_heads - 2 * kv_heads, head_dim)
    assert heads.stride(2) == 1
    pdl = launches_early(heads.device)
    rope_write_kv_kernel[(tokens, 3)](
        heads, out, norms and norms.query, norms and norms.key, cos, sin,
        k_cache, v_cache, scales and scales.keys, scales and scales.values, slot_mapping,
        norms.eps if norms else 0.0, heads.stride(0), heads.stride(1), cos.stride(0),
        *k_cache.stride()[:3],
        HEADS=out.shape[1], KV_HEADS=kv_heads, HEAD_DIM=head_dim, HALF=cos.shape[1] // 2,
        BLOCK_SIZE=k_cache.shape[1], HAS_NORMS=norms is not None, PDL=pdl,
        num_warps=max(1, min(4, triton.next_power_of_2(out.shape[1]) // 4)), launch_pdl=pdl,
    )  # fmt: skip
    return out


@triton.jit
def angles_kernel(
    positions_ptr, inv_freq_ptr, cos_ptr, sin_ptr, scale, stride_freq,
    HALF: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """cos and sin of one token, [2 · HALF] each."""
    if PDL:
        follow()
    token = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, triton.next_power_of_2(HALF))
    inside = i < HALF
    freq = tl.load(inv_freq_ptr + token * stride_freq + i, mask=inside, other=0.0)
    angle = tl.load(positions_ptr + token).to(tl.float32) * freq
    cos = (tl.cos(angle) * scale).to(cos_ptr.dtype.element_ty)
    sin = (tl.sin(angle) * scale).to(sin_ptr.dtype.element_ty)
    offset = token * (2 * HALF) + i
    tl.store(cos_ptr + offset, cos, mask=inside)
    tl.store(cos_ptr + offset + HALF, cos, mask=inside)
    tl.store(sin_ptr + offset, -sin, mask=inside)
    tl.store(sin_ptr + offset + HALF, sin, mask=inside)


@triton.jit
def rope_write_kv_kernel(
    heads_ptr, out_ptr, query_norm_ptr, key_norm_ptr, cos_ptr, sin_ptr,
    k_cache_ptr, v_cache_ptr, k_scale_ptr, v_scale_ptr, slots_ptr,
    eps, stride_token, stride_head, stride_angles, stride_block, stride_slot, stride_kv_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, HAS_NORMS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program handles one token's queries (RoPE, to out), keys (RoPE, to the cache) or values."""
    if PDL:
        follow()
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    heads_ptr += token * stride_token
    cos_ptr += token * stride_angles
    sin_ptr += token * stride_angles
    if part == 0:
        _rope_heads(
            heads_ptr, out_ptr + token * HEADS * HEAD_DIM, None, query_norm_ptr, cos_ptr, sin_ptr,
            eps, stride_head, HEAD_DIM, HEADS, HEAD_DIM, HALF, HAS_NORMS,
        )  # fmt: skip
    else:
        slot = tl.load(slots_ptr + token)
        if slot >= 0:  # else it is padding
            offset = slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_slot
            if part == 1:
                _rope_heads(
                    heads_ptr + HEADS * stride_head, k_cache_ptr + offset,
                    None if k_scale_ptr is None else k_scale_ptr + slot * KV_HEADS,
                    key_norm_ptr, cos_ptr, sin_ptr, eps,
                    stride_head, stride_kv_head, KV_HEADS, HEAD_DIM, HALF, HAS_NORMS,
                )  # fmt: skip
            else:
                _copy(
                    heads_ptr + (HEADS + KV_HEADS) * stride_head, v_cache_ptr + offset,
                    None if v_scale_ptr is None else v_scale_ptr + slot * KV_HEADS,
                    stride_head, stride_kv_head, KV_HEADS, HEAD_DIM,
                )  # fmt: skip


@triton.jit
def _rope_heads(
    x_ptr, out_ptr, scale_ptr, norm_ptr, cos_ptr, sin_ptr, eps, stride_x, stride_out,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, HAS_NORMS: tl.constexpr,
):  # fmt: skip
    """RoPE of all heads of one token, after their norm if HAS_NORMS.

    Pairs (i, i + HALF) are rotated; dimensions from 2 · HALF on are copied. With scale_ptr the
    heads are stored in INT8, and their scales there.
    """
    i = tl.arange(0, triton.next_power_of_2(HALF))[None, :]
    head = tl.arange(0, triton.next_power_of_2(HEADS))[:, None]
    angle, inside = i < HALF, (head < HEADS) & (i < HALF)
    source, target = x_ptr + head * stride_x, out_ptr + head * stride_out
    first = tl.load(source + i, mask=inside, other=0.0)
    second = tl.load(source + HALF + i, mask=inside, other=0.0)
    cos_first = tl.load(cos_ptr + i, mask=angle, other=0.0).to(tl.float32)
    sin_first = tl.load(sin_ptr + i, mask=angle, other=0.0).to(tl.float32)
    cos_second = tl.load(cos_ptr + HALF + i, mask=angle, other=0.0).to(tl.float32)
    sin_second = tl.load(sin_ptr + HALF + i, mask=angle, other=0.0).to(tl.float32)
    if HEAD_DIM > 2 * HALF:
        j = 2 * HALF + tl.arange(0, triton.next_power_of_2(HEAD_DIM - 2 * HALF))[None, :]
        there = (head < HEADS) & (j < HEAD_DIM)
        rest = tl.load(source + j, mask=there, other=0.0)
    if HAS_NORMS:
        total = _squares(first) + _squares(second)
        if HEAD_DIM > 2 * HALF:
            total += _squares(rest)
        scale = tl.rsqrt(total / HEAD_DIM + eps)
        first = _scaled(first, scale, norm_ptr + i, angle)
        second = _scaled(second, scale, norm_ptr + HALF + i, angle)
        if HEAD_DIM > 2 * HALF:
            rest = _scaled(rest, scale, norm_ptr + j, j < HEAD_DIM)
    first, second = first.to(tl.float32), second.to(tl.float32)
    rotated = first * cos_first + second * sin_first
    second = second * cos_second + first * sin_second
    first = rotated
    dtype = out_ptr.dtype.element_ty
    if scale_ptr is not None:
        largest = tl.maximum(_largest(first), _largest(second), propagate_nan=tl.PropagateNan.ALL)
        if HEAD_DIM > 2 * HALF:
            largest = tl.maximum(largest, _largest(rest), propagate_nan=tl.PropagateNan.ALL)
        scale = int8_scale(largest)
        tl.store(scale_ptr + head, scale, mask=head < HEADS)
        tl.store(target + i, int8_codes(first, scale), mask=inside)
        tl.store(target + HALF + i, int8_codes(second, scale), mask=inside)
        if HEAD_DIM > 2 * HALF:
            tl.store(target + j, int8_codes(rest, scale), mask=there)
    else:
        tl.store(target + i, stored_as(first, dtype), mask=inside)
        tl.store(target + HALF + i, stored_as(second, dtype), mask=inside)
        if HEAD_DIM > 2 * HALF:
            tl.store(target + j, stored_as(rest, dtype), mask=there)


@triton.jit
def stored_as(x, dtype: tl.constexpr):
    """x in the KV cache's dtype; codes of an FP8 KV cache saturate at ±448."""
    if dtype == tl.float8e4nv:
        x = tl.clamp(x.to(tl.float32), -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(dtype)


@triton.jit
def largest_of(x, axis: tl.constexpr):
    """The largest magnitudes along an axis, float32; NaN where one is NaN or infinite."""
    x = tl.abs(x.to(tl.float32))
    largest = tl.max(tl.where(x == x, x, float("inf")), axis=axis)
    return tl.where(largest < float("inf"), largest, float("nan"))


@triton.jit
def _largest(x):
    """`largest_of` each row, [HEADS, 1]."""
    return largest_of(x, 1)[:, None]


@triton.jit
def int8_scale(largest):
    """The scale of heads whose largest magnitude is given, bfloat16; as `quantize_heads`."""
    return (largest / 127.0).to(tl.bfloat16)


@triton.jit
def int8_codes(x, scale):
    """Heads in INT8 by their scale: the nearest codes, halves to even."""
    wide = scale.to(tl.float32)
    scaled = tl.where(wide > 0.0, x.to(tl.float32) / tl.where(wide > 0.0, wide, 1.0), 0.0)
    rounded = (scaled + 12582912.0) - 12582912.0  # 1.5 · 2^23, where the last bit is 1
    return tl.minimum(tl.maximum(rounded, -127.0), 127.0).to(tl.int8)


@triton.jit
def _squares(x):
    """Sum of squares of each row: float32 [HEADS, 1]."""
    return tl.sum(x.to(tl.float32) * x.to(tl.float32), axis=1)[:, None]


@triton.jit
def _scaled(x, scale, weight_ptr, there):
    """x · scale [HEADS, 1] · the norm's weight, rounded where the twin rounds."""
    return (x.to(tl.float32) * scale).to(x.dtype) * tl.load(weight_ptr, mask=there, other=0.0)


@triton.jit
def _copy(
    x_ptr, out_ptr, scale_ptr, stride_x, stride_out, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr
):
    """Copy all heads of one token, converted to the cache's dtype. scale_ptr: as `_rope_heads`."""
    i = tl.arange(0, triton.next_power_of_2(HEAD_DIM))[None, :]
    head = tl.arange(0, triton.next_power_of_2(HEADS))[:, None]
    inside = (head < HEADS) & (i < HEAD_DIM)
    values = tl.load(x_ptr + head * stride_x + i, mask=inside, other=0.0)
    target = out_ptr + head * stride_out + i
    if scale_ptr is not None:
        scale = int8_scale(_largest(values))
        tl.store(scale_ptr + head, scale, mask=head < HEADS)
        tl.store(target, int8_codes(values, scale), mask=inside)
    else:
        tl.store(target, stored_as(values, out_ptr.dtype.element_ty), mask=inside)
