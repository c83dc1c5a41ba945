"""`turned_heads` for the product of Hopper's ring: the same, for results that lie [rows, tokens].

The layout gives each thread both numbers of a pair, so that turning moves nothing between threads.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def by_pair(head_dim, num_warps):
    """A layout of [rows, tokens]: a warp holds all of a token's, pairs of a head in a thread.

    head_dim: 64 or 128.
    """
    return gl.BlockedLayout([head_dim // 64, 1], [32, 1], [1, num_warps], [0, 1])


@gluon.jit
def load_angles(
    rows, tokens, cos_ptr, sin_ptr, slots_ptr, M, N, stride_angles,
    HEAD_DIM: gl.constexpr, KV_HEADS: gl.constexpr,
):  # fmt: skip
    """What a tile's way out reads: cos and sin [BLOCK_N, BLOCK_M], slots [BLOCK_M]."""
    turns = rows < N - KV_HEADS * HEAD_DIM  # values do not
    place = tokens[None, :] * stride_angles + (rows % HEAD_DIM)[:, None]
    inside = turns[:, None] & (tokens < M)[None, :]
    cos = gl.load(cos_ptr + place, mask=inside, other=0.0)
    sin = gl.load(sin_ptr + place, mask=inside, other=0.0)
    return cos, sin, gl.load(slots_ptr + tokens, mask=tokens < M, other=-1)


@gluon.jit
def store_rope_heads(
    x, tile, rows, tokens, angles, out_ptr, query_norm_ptr, key_norm_ptr, k_cache_ptr, v_cache_ptr,
    M, N, eps, stride_out, stride_block, stride_slot, stride_kv_head,
    HEAD_DIM: gl.constexpr, KV_HEADS: gl.constexpr, CACHE_BLOCK: gl.constexpr,
):  # fmt: skip
    """A tile's results x [BLOCK_N, BLOCK_M] float32: queries to out, keys and values to caches."""
    BLOCK_N: gl.constexpr = x.shape[0]
    cos, sin, slots = angles
    x = x.to(out_ptr.dtype.element_ty)
    first = tile * BLOCK_N // HEAD_DIM
    num_queries = N // HEAD_DIM - 2 * KV_HEADS
    if first < num_queries:
        turned = _turn(x, rows, cos, sin, query_norm_ptr, eps, HEAD_DIM)
        target = tokens[None, :] * stride_out + rows[:, None]
        there = (rows < N)[:, None] & (tokens < M)[None, :]
        gl.store(out_ptr + target, turned.to(out_ptr.dtype.element_ty), mask=there)
    else:
        head = (rows // HEAD_DIM - num_queries) % KV_HEADS
        slot = slots // CACHE_BLOCK * stride_block + slots % CACHE_BLOCK * stride_slot
        place = slot[None, :] + (head * stride_kv_head + rows % HEAD_DIM)[:, None]
        kept = (rows < N)[:, None] & (slots >= 0)[None, :]  # else it is padding
        if first < num_queries + KV_HEADS:
            turned = _turn(x, rows, cos, sin, key_norm_ptr, eps, HEAD_DIM)
            gl.store(
                k_cache_ptr + place, _stored_as(turned, k_cache_ptr.dtype.element_ty), mask=kept
            )
        else:
            gl.store(v_cache_ptr + place, _stored_as(x, v_cache_ptr.dtype.element_ty), mask=kept)


@gluon.jit
def _turn(x, rows, cos, sin, norm_ptr, eps, HEAD_DIM: gl.constexpr):
    """Heads one after the other in x [rows, tokens], normalised first if there is a norm."""
    BLOCK_N: gl.constexpr = x.shape[0]
    BLOCK_M: gl.constexpr = x.shape[1]
    COUNT: gl.constexpr = BLOCK_N // HEAD_DIM
    layout: gl.constexpr = x.type.layout
    if norm_ptr is not None:
        heads = x.to(gl.float32).reshape([COUNT, HEAD_DIM, BLOCK_M])
        scale = gl.rsqrt(gl.sum(heads * heads, axis=1) / HEAD_DIM + eps)
        scaled = (heads * scale.expand_dims(1)).reshape([BLOCK_N, BLOCK_M])
        weight = gl.load(norm_ptr + rows % HEAD_DIM)
        x = gl.convert_layout(scaled, layout).to(x.dtype) * weight[:, None]
    x = x.to(gl.float32)
    halves = x.reshape([COUNT, 2, HEAD_DIM // 2, BLOCK_M]).permute(0, 2, 3, 1)
    first, second = gl.split(halves)
    swapped = gl.join(second, first).permute(0, 3, 1, 2).reshape([BLOCK_N, BLOCK_M])
    swapped = gl.convert_layout(swapped, layout)
    return x * cos.to(gl.float32) + swapped * sin.to(gl.float32)


@gluon.jit
def _stored_as(x, dtype: gl.constexpr):
    """See `rotary.stored_as`."""
    if dtype == gl.float8e4nv:
        x = x.to(gl.float32)
        x = gl.where(
            x < -448.0, -448.0, gl.where(x > 448.0, 448.0, x)
        )  # what is no number stays so
    return x.to(dtype)
