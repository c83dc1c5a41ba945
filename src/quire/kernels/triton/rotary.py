"""The rotary embedding and the writing of keys and values, alone and in one launch.

Floor: queries, keys and values once in and once out, over the memory's bandwidth.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Twin of `reference.rotary`."""
    tokens, heads, head_dim = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _rotary_kernel[(tokens,)](
        x, out, cos, sin, x.stride(0), x.stride(1), cos.stride(0),
        HEADS=heads, HEAD_DIM=head_dim, HALF=cos.shape[1] // 2, num_warps=_warps(heads),
    )  # fmt: skip
    return out


def write_kv(
    key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Twin of `reference.write_kv`."""
    tokens, heads, head_dim = key.shape
    _write_kv_kernel[(tokens,)](
        key, value, k_cache, v_cache, slot_mapping,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1), *_cache_strides(k_cache),
        HEADS=heads, HEAD_DIM=head_dim, BLOCK_SIZE=k_cache.shape[1], num_warps=_warps(heads),
    )  # fmt: skip


def rotary_write_kv(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
) -> Tensor:
    """Twin of `reference.rotary_write_kv`."""
    tokens, heads, head_dim = query.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    _rotary_write_kv_kernel[(tokens,)](
        query, key, value, out, cos, sin, k_cache, v_cache, slot_mapping,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1),
        value.stride(0), value.stride(1), cos.stride(0), *_cache_strides(k_cache),
        HEADS=heads, KV_HEADS=key.shape[1], HEAD_DIM=head_dim, HALF=cos.shape[1] // 2,
        BLOCK_SIZE=k_cache.shape[1], num_warps=_warps(heads),
    )  # fmt: skip
    return out


def _warps(heads: int) -> int:
    return max(1, min(8, (1 << (heads - 1).bit_length()) // 4))


def _cache_strides(cache: Tensor) -> tuple[int, int, int]:
    """Of blocks, slots and heads; keys and values lie alike."""
    return cache.stride(0), cache.stride(1), cache.stride(2)


@triton.jit
def _rotary_kernel(
    x_ptr, out_ptr, cos_ptr, sin_ptr, stride_token, stride_head, stride_angles,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    _turn(
        x_ptr + token * stride_token, out_ptr + token * HEADS * HEAD_DIM,
        cos_ptr + token * stride_angles, sin_ptr + token * stride_angles,
        stride_head, HEAD_DIM, HEADS, HEAD_DIM, HALF,
    )  # fmt: skip


@triton.jit
def _write_kv_kernel(
    key_ptr, value_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    stride_key, stride_key_head, stride_value, stride_value_head,
    stride_block, stride_slot, stride_head,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    place = slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_slot
    _copy(
        key_ptr + token * stride_key, k_cache_ptr + place, stride_key_head, stride_head,
        HEADS, 0, HEAD_DIM,
    )  # fmt: skip
    _copy(
        value_ptr + token * stride_value, v_cache_ptr + place, stride_value_head, stride_head,
        HEADS, 0, HEAD_DIM,
    )  # fmt: skip


@triton.jit
def _rotary_write_kv_kernel(
    query_ptr, key_ptr, value_ptr, out_ptr, cos_ptr, sin_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    stride_query, stride_query_head, stride_key, stride_key_head, stride_value, stride_value_head,
    stride_angles, stride_block, stride_slot, stride_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """One token: its query turned to out, its key turned and its value as it is to the cache."""
    token = tl.program_id(0).to(tl.int64)
    cos_ptr += token * stride_angles
    sin_ptr += token * stride_angles
    slot = tl.load(slots_ptr + token)
    _turn(
        query_ptr + token * stride_query, out_ptr + token * HEADS * HEAD_DIM, cos_ptr, sin_ptr,
        stride_query_head, HEAD_DIM, HEADS, HEAD_DIM, HALF,
    )  # fmt: skip
    if slot < 0:  # padding
        return
    place = slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_slot
    _turn(
        key_ptr + token * stride_key, k_cache_ptr + place, cos_ptr, sin_ptr,
        stride_key_head, stride_head, KV_HEADS, HEAD_DIM, HALF,
    )  # fmt: skip
    _copy(
        value_ptr + token * stride_value, v_cache_ptr + place, stride_value_head, stride_head,
        KV_HEADS, 0, HEAD_DIM,
    )  # fmt: skip


@triton.jit
def _turn(
    x_ptr, out_ptr, cos_ptr, sin_ptr, stride_x, stride_out,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """All heads of one token: pairs (i, i + HALF) turned, dimensions from 2 · HALF on copied."""
    i = tl.arange(0, triton.next_power_of_2(HALF))[None, :]
    head = tl.arange(0, triton.next_power_of_2(HEADS))[:, None]
    angle, inside = i < HALF, (head < HEADS) & (i < HALF)
    source, target = x_ptr + head * stride_x + i, out_ptr + head * stride_out + i
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    cos_first = tl.load(cos_ptr + i, mask=angle, other=0.0).to(tl.float32)
    sin_first = tl.load(sin_ptr + i, mask=angle, other=0.0).to(tl.float32)
    cos_second = tl.load(cos_ptr + HALF + i, mask=angle, other=0.0).to(tl.float32)
    sin_second = tl.load(sin_ptr + HALF + i, mask=angle, other=0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    tl.store(target, (first * cos_first + second * sin_first).to(dtype), mask=inside)
    tl.store(target + HALF, (second * cos_second + first * sin_second).to(dtype), mask=inside)
    if HEAD_DIM > 2 * HALF:
        _copy(x_ptr, out_ptr, stride_x, stride_out, HEADS, 2 * HALF, HEAD_DIM)


@triton.jit
def _copy(
    x_ptr, out_ptr, stride_x, stride_out,
    HEADS: tl.constexpr, BEGIN: tl.constexpr, END: tl.constexpr,
):  # fmt: skip
    """All heads of one token: dimensions from BEGIN to END as they are."""
    i = BEGIN + tl.arange(0, triton.next_power_of_2(END - BEGIN))[None, :]
    head = tl.arange(0, triton.next_power_of_2(HEADS))[:, None]
    inside = (head < HEADS) & (i < END)
    values = tl.load(x_ptr + head * stride_x + i, mask=inside, other=0.0)
    tl.store(out_ptr + head * stride_out + i, values, mask=inside)
