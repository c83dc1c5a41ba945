"""Prefill attention for Hopper: some warps load, two warpgroups compute.

Twin of `prefill_attention.py` for 64 or 128 dimensions a head and queries of 16 bits. TMA fills a
ring of tiles of keys and values, block by block. A warpgroup issues the scores of the next tile
together with the weighted sum of the last tile's values, and computes the softmax during the
latter. The warpgroups alternate (ping-pong scheduling), so that the softmax of one overlaps with
the MMAs of the other. (FlashAttention 3: Shah et al., 2024.)

Each program processes several work items, a query tile for a key head each, and prefetches beyond
the item that is being computed.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared
from triton.language.extra.cuda import gdc_launch_dependents

from quire.kernels.triton.attention.prefill_tiles import WORK_FIELDS
from quire.kernels.triton.hopper.hopper_attend import attend
from quire.kernels.triton.hopper.hopper_barriers import (
    barriers,
    invalidate,
    invalidate_ring,
    tile_ring,
)
from quire.kernels.triton.hopper.hopper_prefill_dequantize import dequantize_values
from quire.kernels.triton.hopper.hopper_prefill_work import fetch
from quire.kernels.triton.hopper.hopper_queries import ROWS, query_ring
from quire.kernels.triton.hopper.hopper_tensor_maps import cache_boxes
from quire.kernels.triton.launch.attention_config import HopperConfig
from quire.kernels.triton.launch.workspace import workspace


def launch_prefill(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    work: Tensor,
    num_query_tiles: Tensor,
    scale: float,
    window: int,
    out: Tensor,
    config: HopperConfig,
    kv_scales: tuple[Tensor | None, Tensor | None] = (None, None),
    *,
    pdl: bool = False,
) -> None:
    """Fill the rows of out [T, Hq, D] of the requests in a list of work.

    block_table [B, max_blocks], or [B]: the row of a contiguous cache at which the request's first
    key is. work, num_query_tiles: of a `Plan` with config's tiles. scale: of the scores, times
    log2(e). kv_scales: of caches in INT8. pdl: only caches are read that the previous kernel wrote.
    """
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    block_size *= block_table.dim() - 1  # 0 for a contiguous cache
    num_programs = min(workspace(query.device).num_sms, num_kv_heads * len(work))
    boxes = [cache_boxes(cache, config.tile) for cache in (k_cache, v_cache)]
    hopper_prefill_kernel[(num_programs,)](
        query, *boxes, *kv_scales, out, block_table, work, num_query_tiles, scale,
        query.stride(0), query.stride(1), block_table.stride(0), out.stride(0),
        NUM_HEADS=num_kv_heads, GROUP=query.shape[1] // num_kv_heads, HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size, TILE=config.tile, WINDOW=window, SLOTS=config.slots,
        SPLIT=config.split, FIELDS=WORK_FIELDS, PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["stride_table"])
def hopper_prefill_kernel(
    q_ptr, k_desc, v_desc, k_scale_ptr, v_scale_ptr, out_ptr, block_table_ptr, work_ptr,
    num_tiles_ptr, scale,
    stride_q_token, stride_q_head, stride_table, stride_out_token,
    NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, TILE: gl.constexpr, WINDOW: gl.constexpr, SLOTS: gl.constexpr,
    SPLIT: gl.constexpr, FIELDS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """q [T, Hkv · GROUP, D], caches as boxes of [slots, Hkv · D] → out [T, Hkv · GROUP, D].

    work: tiles of TOKENS queries (see `prefill_tiles.py`). SPLIT: both warpgroups have the same
    queries, and every other tile of keys; else each its own half of the queries and all keys.
    scale: of the scores, times log2(e). k_scale, v_scale [slots, Hkv]: of keys and values in INT8.
    PDL: keys and values are waited for, and the next kernel may be launched.
    """
    if PDL:
        gdc_launch_dependents()
    TOKENS: gl.constexpr = ROWS // GROUP if SPLIT else 2 * (ROWS // GROUP)
    key_type: gl.constexpr = k_desc.dtype
    INT8: gl.constexpr = key_type == gl.int8
    IN_8_BITS: gl.constexpr = key_type.primitive_bitwidth == 8
    dtype: gl.constexpr = gl.bfloat16 if INT8 else (gl.float16 if IN_8_BITS else key_type)
    WIDE: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    OWN: gl.constexpr = k_desc.layout
    USERS: gl.constexpr = 1 if SPLIT else 2
    queries = query_ring(key_type, HEAD_DIM, OWN)
    keys = tile_ring(key_type, SLOTS, TILE, HEAD_DIM, OWN, 2 if INT8 else 1, USERS)
    values = tile_ring(dtype, SLOTS, TILE, HEAD_DIM, WIDE, 1, USERS)
    scales = ((), ())
    if INT8:
        scales = (_words(gl.float32, SLOTS, TILE), _words(gl.int32, 4, TILE))
    rings = (keys, values, scales[0])
    other = ()
    if SPLIT:
        other = _other(HEAD_DIM)
    operands = (
        q_ptr, out_ptr, queries, other, work_ptr, num_tiles_ptr, scale,
        stride_q_token, stride_q_head, stride_out_token,
    )  # fmt: skip
    # last lists: registers for each thread; the first warpgroup has as many as the second
    if IN_8_BITS:
        codes = tile_ring(key_type, SLOTS, TILE, HEAD_DIM, OWN)
        fence_async_shared()
        gl.warp_specialize(
            [
                (attend, (
                    operands, rings, NUM_HEADS, GROUP, HEAD_DIM, TOKENS, TILE, WINDOW, SPLIT,
                    FIELDS, 0)),
                (attend, (
                    operands, rings, NUM_HEADS, GROUP, HEAD_DIM, TOKENS, TILE, WINDOW, SPLIT,
                    FIELDS, 1)),
                (dequantize_values, (
                    operands, codes, rings, (k_scale_ptr, v_scale_ptr), scales[1],
                    block_table_ptr, stride_table,
                    NUM_HEADS, GROUP, BLOCK_SIZE, TOKENS, TILE, WINDOW, SPLIT, FIELDS)),
                (fetch, (
                    k_desc, v_desc, keys, codes, work_ptr, num_tiles_ptr, block_table_ptr,
                    stride_table, NUM_HEADS, BLOCK_SIZE, TOKENS, TILE, WINDOW, FIELDS, PDL)),
            ],
            [4, 4, 1],
            [208, 56, 40],
        )  # fmt: skip
        invalidate_ring(queries)
        invalidate_ring(codes)
    else:
        fence_async_shared()
        gl.warp_specialize(
            [
                (attend, (
                    operands, rings, NUM_HEADS, GROUP, HEAD_DIM, TOKENS, TILE, WINDOW, SPLIT,
                    FIELDS, 0)),
                (attend, (
                    operands, rings, NUM_HEADS, GROUP, HEAD_DIM, TOKENS, TILE, WINDOW, SPLIT,
                    FIELDS, 1)),
                (fetch, (
                    k_desc, v_desc, keys, values, work_ptr, num_tiles_ptr, block_table_ptr,
                    stride_table, NUM_HEADS, BLOCK_SIZE, TOKENS, TILE, WINDOW, FIELDS, PDL)),
            ],
            [4, 1],
            [224, 56],
        )  # fmt: skip
    invalidate_ring(keys)
    invalidate_ring(values)
    if SPLIT:
        invalidate(other[3])  # type: ignore[misc]
        invalidate(other[4])  # type: ignore[misc]


@gluon.jit
def _words(dtype: gl.constexpr, NUM: gl.constexpr, TILE: gl.constexpr):
    """Memory for NUM times a number for each key of a tile."""
    return gl.allocate_shared_memory(dtype, [NUM, TILE], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def _other(HEAD_DIM: gl.constexpr):
    """Memory in which the second warpgroup stores its sums for `_merge`."""
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    acc = gl.allocate_shared_memory(
        gl.float32, [ROWS, HEAD_DIM], gl.SwizzledSharedLayout(2, 1, 8, [1, 0])
    )
    m = gl.allocate_shared_memory(gl.float32, [ROWS], PLAIN)
    total = gl.allocate_shared_memory(gl.float32, [ROWS], PLAIN)
    return acc, m, total, barriers(1, 1), barriers(1, 1)
