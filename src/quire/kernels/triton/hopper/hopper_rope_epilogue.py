"""RoPE and KV write in the epilogue of Hopper's QKV projection, for results [rows of W, tokens].

Twin of gemm/rope_epilogue.py. The layout gives each thread both numbers of a pair, so that RoPE
exchanges no data between threads.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def by_pair(rows, num_warps):
    """A layout of [rows, tokens]: a token's rows in one warp, pairs of a head in one thread.

    rows: 64 or 128 of a head, or fewer, of its two halves.
    """
    lanes = min(32, rows // 2)
    return gl.BlockedLayout([max(1, rows // 64), 1], [lanes, 32 // lanes], [1, num_warps], [0, 1])


@gluon.jit
def load_angles(
    rows, tokens, cos_ptr, sin_ptr, slots_ptr, M, N, stride_angles,
    HEAD_DIM: gl.constexpr, KV_HEADS: gl.constexpr,
):  # fmt: skip
    """Load the epilogue's inputs: cos and sin [BLOCK_N, BLOCK_M], slots [BLOCK_M]."""
    rotated = rows < N - KV_HEADS * HEAD_DIM  # not values
    offset = tokens[None, :] * stride_angles + (rows % HEAD_DIM)[:, None]
    inside = rotated[:, None] & (tokens < M)[None, :]
    cos = gl.load(cos_ptr + offset, mask=inside, other=0.0)
    sin = gl.load(sin_ptr + offset, mask=inside, other=0.0)
    return cos, sin, gl.load(slots_ptr + tokens, mask=tokens < M, other=-1)


@gluon.jit
def store_rope_heads(
    x, tile, rows, tokens, angles, out_ptr, query_norm_ptr, key_norm_ptr, k_cache_ptr, v_cache_ptr,
    k_scale_ptr, v_scale_ptr, M, N, eps, stride_out, stride_block, stride_slot, stride_kv_head,
    HEAD_DIM: gl.constexpr, KV_HEADS: gl.constexpr, CACHE_BLOCK: gl.constexpr,
):  # fmt: skip
    """Store a tile's results x float32 [BLOCK_N, BLOCK_M]: queries to out, the rest to caches."""
    BLOCK_N: gl.constexpr = x.shape[0]
    cos, sin, slots = angles
    x = x.to(out_ptr.dtype.element_ty)
    first = tile * BLOCK_N // HEAD_DIM
    num_queries = N // HEAD_DIM - 2 * KV_HEADS
    if first < num_queries:
        rotated = _rope(x, rows, cos, sin, query_norm_ptr, eps, HEAD_DIM)
        target = tokens[None, :] * stride_out + rows[:, None]
        there = (rows < N)[:, None] & (tokens < M)[None, :]
        gl.store(out_ptr + target, rotated.to(out_ptr.dtype.element_ty), mask=there)
    else:
        head = (rows // HEAD_DIM - num_queries) % KV_HEADS
        slot = slots // CACHE_BLOCK * stride_block + slots % CACHE_BLOCK * stride_slot
        offset = slot[None, :] + (head * stride_kv_head + rows % HEAD_DIM)[:, None]
        mask = (rows < N)[:, None] & (slots >= 0)[None, :]  # else it is padding
        scales = slots * KV_HEADS + (first - num_queries) % KV_HEADS
        if first < num_queries + KV_HEADS:
            rotated = _rope(x, rows, cos, sin, key_norm_ptr, eps, HEAD_DIM)
            _write(rotated, k_cache_ptr + offset, mask, k_scale_ptr, scales, slots, HEAD_DIM)
        else:
            _write(x, v_cache_ptr + offset, mask, v_scale_ptr, scales, slots, HEAD_DIM)


@gluon.jit
def _write(x, targets, mask, scale_ptr, scale_offsets, slots, HEAD_DIM: gl.constexpr):
    """Twin of `rope_epilogue._write`: x, targets and mask [rows, tokens]."""
    BLOCK_N: gl.constexpr = x.shape[0]
    BLOCK_M: gl.constexpr = x.shape[1]
    COUNT: gl.constexpr = BLOCK_N // HEAD_DIM
    layout: gl.constexpr = x.type.layout
    if scale_ptr is not None:
        heads = x.to(gl.float32).reshape([COUNT, HEAD_DIM, BLOCK_M])
        sizes = gl.abs(heads)
        largest = gl.max(gl.where(sizes == sizes, sizes, float("inf")), axis=1)
        largest = gl.where(largest < float("inf"), largest, float("nan"))
        scale = (largest / 127.0).to(gl.bfloat16)
        codes = _int8_codes(heads, scale.to(gl.float32).expand_dims(1))
        gl.store(targets, gl.convert_layout(codes.reshape([BLOCK_N, BLOCK_M]), layout), mask=mask)
        OWN: gl.constexpr = scale.type.layout
        TOKENS: gl.constexpr = gl.SliceLayout(0, OWN)
        head = gl.arange(0, COUNT, gl.SliceLayout(1, OWN))[:, None]
        target = scale_ptr + gl.convert_layout(scale_offsets, TOKENS)[None, :] + head
        there = gl.convert_layout(slots, TOKENS)[None, :] >= 0
        gl.store(target, scale, mask=there & (head >= 0))
    else:
        gl.store(targets, _stored_as(x, targets.dtype.element_ty), mask=mask)


@gluon.jit
def _int8_codes(x, scale):
    """Twin of `rope_kernels.int8_codes`, for scales in float32."""
    scaled = gl.where(scale > 0.0, x / gl.where(scale > 0.0, scale, 1.0), 0.0)
    rounded = (scaled + 12582912.0) - 12582912.0
    return gl.minimum(gl.maximum(rounded, -127.0), 127.0).to(gl.int8)


@gluon.jit
def _rope(x, rows, cos, sin, norm_ptr, eps, HEAD_DIM: gl.constexpr):
    """RoPE of the heads in x [rows, tokens], after their norm if norm_ptr is given."""
    BLOCK_N: gl.constexpr = x.shape[0]
    BLOCK_M: gl.constexpr = x.shape[1]
    COUNT: gl.constexpr = max(1, BLOCK_N // HEAD_DIM)
    layout: gl.constexpr = x.type.layout
    if norm_ptr is not None:
        heads = x.to(gl.float32).reshape([COUNT, HEAD_DIM, BLOCK_M])
        scale = gl.rsqrt(gl.sum(heads * heads, axis=1) / HEAD_DIM + eps)
        scaled = (heads * scale.expand_dims(1)).reshape([BLOCK_N, BLOCK_M])
        weight = gl.load(norm_ptr + rows % HEAD_DIM)
        x = gl.convert_layout(scaled, layout).to(x.dtype) * weight[:, None]
    x = x.to(gl.float32)
    halves = x.reshape([COUNT, 2, BLOCK_N // COUNT // 2, BLOCK_M]).permute(0, 2, 3, 1)
    first, second = gl.split(halves)
    swapped = gl.join(second, first).permute(0, 3, 1, 2).reshape([BLOCK_N, BLOCK_M])
    swapped = gl.convert_layout(swapped, layout)
    return x * cos.to(gl.float32) + swapped * sin.to(gl.float32)


@gluon.jit
def _stored_as(x, dtype: gl.constexpr):
    """Twin of `rope_kernels.stored_as`."""
    if dtype == gl.float8e4nv:
        x = x.to(gl.float32)
        x = gl.where(x < -448.0, -448.0, gl.where(x > 448.0, 448.0, x))  # NaN stays NaN
    return x.to(dtype)
