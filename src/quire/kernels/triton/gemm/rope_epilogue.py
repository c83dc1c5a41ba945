"""Epilogue of a GEMM that makes heads: applies RoPE and writes queries, keys and values.

A tile of W's rows holds whole heads of one kind, so both halves of a pair (i, i + D / 2) are there
once its sum is complete, and no other kernel has to read the result again. Arithmetic and rounding
are those of step/rope_kernels.py, which serves all other GEMMs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire.kernels.triton.step.rope_kernels import int8_codes, int8_scale, largest_of, stored_as


@triton.jit
def load_angles(
    tile, cos_ptr, sin_ptr, slots_ptr, M, N, stride_angles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, KV_HEADS: tl.constexpr,
):  # fmt: skip
    """Operands of a tile's epilogue: cos and sin [BLOCK_M, BLOCK_N], slots [BLOCK_M]."""
    tokens, columns = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    has_rope = columns + tile * BLOCK_N < N - KV_HEADS * HEAD_DIM  # values have none
    offsets = tokens[:, None] * stride_angles + (columns % HEAD_DIM)[None, :]
    inside = (tokens < M)[:, None] & has_rope[None, :]
    cos = tl.load(cos_ptr + offsets, mask=inside, other=0.0)
    sin = tl.load(sin_ptr + offsets, mask=inside, other=0.0)
    return cos, sin, tl.load(slots_ptr + tokens, mask=tokens < M, other=-1)


@triton.jit
def store_rope_heads(
    x, tile, angles, out_ptr, query_norm_ptr, key_norm_ptr, k_cache_ptr, v_cache_ptr,
    k_scale_ptr, v_scale_ptr, M, N, eps, stride_out, stride_block, stride_slot, stride_kv_head,
    HEAD_DIM: tl.constexpr, KV_HEADS: tl.constexpr, CACHE_BLOCK: tl.constexpr,
):  # fmt: skip
    """Store a tile's results x [BLOCK_M, BLOCK_N] float32.

    Queries go to out, keys and values to the caches, in INT8 with their scales. out and the norms'
    weights, if any, have the type that x is rounded to.
    """
    BLOCK_M: tl.constexpr = x.shape[0]
    BLOCK_N: tl.constexpr = x.shape[1]
    cos, sin, slots = angles
    x = x.to(out_ptr.dtype.element_ty)
    tokens, columns = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    first = tile * BLOCK_N // HEAD_DIM
    num_queries = N // HEAD_DIM - 2 * KV_HEADS
    if first < num_queries:
        rotated = _rotate(x, cos, sin, query_norm_ptr, eps, HEAD_DIM)
        target = tokens[:, None] * stride_out + (columns + tile * BLOCK_N)[None, :]
        tl.store(out_ptr + target, rotated.to(out_ptr.dtype.element_ty), mask=(tokens < M)[:, None])
    else:
        first_head = (first - num_queries) % KV_HEADS
        head = first_head + columns // HEAD_DIM
        slot = slots // CACHE_BLOCK * stride_block + slots % CACHE_BLOCK * stride_slot
        offsets = slot[:, None] + (head * stride_kv_head + columns % HEAD_DIM)[None, :]
        scales = slots * KV_HEADS + first_head
        if first < num_queries + KV_HEADS:
            rotated = _rotate(x, cos, sin, key_norm_ptr, eps, HEAD_DIM)
            _write(rotated, k_cache_ptr, offsets, k_scale_ptr, scales, slots, HEAD_DIM)
        else:
            _write(x, v_cache_ptr, offsets, v_scale_ptr, scales, slots, HEAD_DIM)


@triton.jit
def _write(x, cache_ptr, offsets, scale_ptr, scale_offsets, slots, HEAD_DIM: tl.constexpr):
    """Write heads x [tokens, columns] to offsets of a cache.

    In INT8 the scale of each token's first head goes to scale_offsets [tokens], the next ones
    behind it. Tokens with a negative slot are padding.
    """
    BLOCK_M: tl.constexpr = x.shape[0]
    BLOCK_N: tl.constexpr = x.shape[1]
    COUNT: tl.constexpr = BLOCK_N // HEAD_DIM
    has_slot = (slots >= 0)[:, None]
    if scale_ptr is not None:
        heads = tl.reshape(x.to(tl.float32), [BLOCK_M, COUNT, HEAD_DIM])
        scale = int8_scale(largest_of(heads, 2))
        codes = tl.reshape(int8_codes(heads, scale[:, :, None]), [BLOCK_M, BLOCK_N])
        tl.store(cache_ptr + offsets, codes, mask=has_slot)
        target = scale_ptr + scale_offsets[:, None] + tl.arange(0, COUNT)[None, :]
        tl.store(target, scale, mask=has_slot)
    else:
        tl.store(cache_ptr + offsets, stored_as(x, cache_ptr.dtype.element_ty), mask=has_slot)


@triton.jit
def _rotate(x, cos, sin, norm_ptr, eps, HEAD_DIM: tl.constexpr):
    """All heads of x [tokens, columns] with RoPE, after a norm if there is one; float32."""
    BLOCK_M: tl.constexpr = x.shape[0]
    BLOCK_N: tl.constexpr = x.shape[1]
    COUNT: tl.constexpr = BLOCK_N // HEAD_DIM
    if norm_ptr is not None:
        heads = tl.reshape(x.to(tl.float32), [BLOCK_M, COUNT, HEAD_DIM])
        scale = tl.rsqrt(tl.sum(heads * heads, axis=2) / HEAD_DIM + eps)
        scaled = tl.reshape(heads * scale[:, :, None], [BLOCK_M, BLOCK_N]).to(x.dtype)
        x = scaled * tl.load(norm_ptr + tl.arange(0, BLOCK_N) % HEAD_DIM)[None, :]
    x = x.to(tl.float32)
    halves = tl.reshape(x, [BLOCK_M, COUNT, 2, HEAD_DIM // 2])
    first, second = tl.split(tl.permute(halves, [0, 1, 3, 2]))
    swapped = tl.permute(tl.join(second, first), [0, 1, 3, 2])
    return x * cos.to(tl.float32) + tl.reshape(swapped, [BLOCK_M, BLOCK_N]) * sin.to(tl.float32)
