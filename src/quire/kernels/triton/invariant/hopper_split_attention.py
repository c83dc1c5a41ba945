"""Batch-invariant attention for Hopper: a warp fetches keys and values, a warpgroup computes.

Twin of `invariant_attention.py` for 64 or 128 dimensions a head in 16 bits, with the same splits,
plan and layout of partial results. Two programs fit on a multiprocessor, so that the softmax of one
overlaps with the MMAs of the other; each prefetches several tiles of keys and values.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire.kernels.batch_layout import BatchLayout
from quire.kernels.triton.attention.attention_plan import Plan
from quire.kernels.triton.attention.prefill_tiles import WORK_FIELDS
from quire.kernels.triton.hopper.hopper_attend import clear_unwritten
from quire.kernels.triton.hopper.hopper_barriers import invalidate_ring, tile_ring
from quire.kernels.triton.hopper.hopper_decode_merge import clear
from quire.kernels.triton.hopper.hopper_prefill_work import await_tile, fetch_tile, rows_of
from quire.kernels.triton.hopper.hopper_queries import ROWS, rows_in_memory
from quire.kernels.triton.hopper.hopper_softmax import softmax
from quire.kernels.triton.hopper.hopper_tensor_maps import cache_boxes
from quire.kernels.triton.invariant.hopper_split_merge import add_split, merge, store_split
from quire.kernels.triton.launch.gluon_compat import barrier, fetch_rows
from quire.kernels.triton.launch.workspace import workspace

TILE = 64  # keys
_RING = 96 * 1024  # bytes of shared memory for a program's ring


def launch_split_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    plan: Plan,
    scale: float,
    window: int,
    out: Tensor,
    split: int,
    sharers: int,
    most_splits: int,
) -> None:
    """Fill out [T, Hq, D]. plan: of tiles of ROWS // group queries. split: keys of a split.

    scale: of the scores, times log2(e). sharers: programs that share the splits of a single query.
    most_splits: for which the workspace has memory.
    """
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    group, space = query.shape[1] // num_kv_heads, workspace(query.device)
    hopper_split_attention_kernel[(num_kv_heads, len(plan.work), sharers)](
        query, cache_boxes(k_cache, TILE), cache_boxes(v_cache, TILE), out,
        layout.block_table, plan.work, plan.num_query_tiles, layout.query_start_loc,
        space.partials, space.counters, len(query), len(layout.seq_lens), most_splits, scale,
        query.stride(0), query.stride(1), layout.block_table.stride(0), out.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        TILE=TILE, SPLIT=split, WINDOW=window, SLOTS=_RING // (4 * TILE * head_dim),
        FIELDS=WORK_FIELDS, num_warps=4, maxnreg=128, launch_pdl=True,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["num_tokens", "num_requests", "most_splits", "stride_table"])
def hopper_split_attention_kernel(
    q_ptr, k_desc, v_desc, out_ptr, block_table_ptr, work_ptr, num_tiles_ptr, query_start_ptr,
    part_ptr, counter_ptr, num_tokens, num_requests, most_splits, scale,
    stride_q_token, stride_q_head, stride_table, stride_out_token,
    NUM_KV_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, TILE: gl.constexpr, SPLIT: gl.constexpr, WINDOW: gl.constexpr,
    SLOTS: gl.constexpr, FIELDS: gl.constexpr,
):  # fmt: skip
    """As `invariant_attention_kernel`; caches as boxes of [slots, Hkv · D]."""
    q_smem = gl.allocate_shared_memory(k_desc.dtype, [ROWS, HEAD_DIM], k_desc.layout)
    LAYOUT: gl.constexpr = k_desc.layout
    keys = tile_ring(k_desc.dtype, SLOTS, TILE, HEAD_DIM, LAYOUT)
    values = tile_ring(k_desc.dtype, SLOTS, TILE, HEAD_DIM, LAYOUT)
    fence_async_shared()
    plan = (work_ptr, num_tiles_ptr, most_splits)
    outside = (out_ptr, stride_out_token, part_ptr, counter_ptr)
    gl.warp_specialize(
        [
            (_attend, (
                q_ptr, q_smem, keys, values, plan, outside, query_start_ptr, num_requests,
                num_tokens, scale, stride_q_token, stride_q_head,
                NUM_KV_HEADS, GROUP, HEAD_DIM, TILE, SPLIT, WINDOW, FIELDS)),
            (_fetch, (
                k_desc, v_desc, keys, values, plan, block_table_ptr, stride_table,
                GROUP, BLOCK_SIZE, TILE, SPLIT, WINDOW, FIELDS)),
        ],
        [1],
        [24],
    )  # fmt: skip
    invalidate_ring(keys)
    invalidate_ring(values)


@gluon.jit
def _work_of(
    plan, GROUP: gl.constexpr, TILE: gl.constexpr, SPLIT: gl.constexpr, WINDOW: gl.constexpr,
    FIELDS: gl.constexpr,
):  # fmt: skip
    """A program's query tile, that tile's key tiles and splits, and the program's own splits."""
    work_ptr, num_tiles_ptr, most_splits = plan
    tile, share = gl.program_id(1), gl.program_id(2)
    there = tile < gl.load(num_tiles_ptr)
    record = work_ptr + tile * FIELDS
    request = gl.load(record, mask=there, other=0)
    first_token = gl.load(record + 1, mask=there, other=0)
    num_queries = gl.load(record + 2, mask=there, other=0)
    seq_len = gl.load(record + 3, mask=there, other=0)
    first_query = gl.load(record + 4, mask=there, other=0)
    lowest = seq_len - num_queries + first_query
    begin = 0
    if WINDOW > 0:
        begin = gl.maximum(lowest + 1 - WINDOW, 0) // TILE
    end = gl.cdiv(gl.minimum(lowest + ROWS // GROUP, seq_len), TILE)
    first_split = begin // (SPLIT // TILE)
    num_splits = gl.cdiv(end, SPLIT // TILE) - first_split
    sharers, before = 1, 0
    if (gl.num_programs(2) > 1) & (num_queries == 1):
        each = gl.arange(0, 32, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
        for start in range(0, tile, 32):  # splits of the tiles before
            lens = gl.load(work_ptr + (start + each) * FIELDS + 3, start + each < tile, 0)
            before += gl.sum((lens + SPLIT - 1) // SPLIT, 0)
        if before + num_splits <= most_splits:
            sharers = gl.minimum(gl.num_programs(2), num_splits)
    own_begin = share * num_splits // sharers
    own_end = (share + 1) * num_splits // sharers
    if share >= sharers:
        own_end = own_begin
    splits = (first_split, num_splits, own_begin, own_end, sharers, before)
    return request, (first_token, num_queries, seq_len, first_query), begin, end, splits


@gluon.jit
def _fetch(
    k_desc, v_desc, keys, values, plan, block_table_ptr, stride_table,
    GROUP: gl.constexpr, BLOCK_SIZE: gl.constexpr, TILE: gl.constexpr, SPLIT: gl.constexpr,
    WINDOW: gl.constexpr, FIELDS: gl.constexpr,
):  # fmt: skip
    """Fetch the key and value tiles of a program's splits into the rings, in order."""
    gdc_wait()
    TILES: gl.constexpr = SPLIT // TILE
    request, queries, begin, end, splits = _work_of(plan, GROUP, TILE, SPLIT, WINDOW, FIELDS)
    first_split, _, own_begin, own_end, _, _ = splits
    table = block_table_ptr + request * stride_table
    head = gl.program_id(0)
    first = gl.maximum(begin, (first_split + own_begin) * TILES)
    for tile in range(first, gl.minimum(end, (first_split + own_end) * TILES)):
        rows = rows_of(k_desc, table, tile, queries[2], BLOCK_SIZE, TILE)
        fetch_tile(k_desc, rows, head, keys, tile - first, TILE)
        fetch_tile(v_desc, rows, head, values, tile - first, TILE)


@gluon.jit
def _attend(
    q_ptr, q_smem, keys, values, plan, outside, query_start_ptr, num_requests, num_tokens, scale,
    stride_q_token, stride_q_head,
    NUM_KV_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, TILE: gl.constexpr,
    SPLIT: gl.constexpr, WINDOW: gl.constexpr, FIELDS: gl.constexpr,
):  # fmt: skip
    """Compute a program's splits of one tile of queries and key head."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    WIDE: gl.constexpr = gl.BlockedLayout(
        [1, 8], [32 * 8 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0]
    )
    TILES: gl.constexpr = SPLIT // TILE
    out_ptr, stride_out_token, part_ptr, counter_ptr = outside
    gdc_launch_dependents()
    gdc_wait()
    head, tile = gl.program_id(0), gl.program_id(1)
    if gl.program_id(2) == 0:
        padding = gl.load(query_start_ptr + num_requests)
        for token in range(padding + tile, num_tokens, gl.num_programs(1)):
            clear(out_ptr + token * stride_out_token + head * GROUP * HEAD_DIM, GROUP * HEAD_DIM)
    _, queries, begin, end, splits = _work_of(plan, GROUP, TILE, SPLIT, WINDOW, FIELDS)
    first_token, num_queries, seq_len, first_query = queries
    first_split, num_splits, own_begin, own_end, sharers, before = splits
    offsets, there = rows_in_memory(
        head, first_token, num_queries, first_query, stride_q_token, stride_q_head,
        GROUP, HEAD_DIM, WIDE,
    )  # fmt: skip
    fetch_rows(q_smem, q_ptr + offsets, mask=there)
    async_copy.commit_group()
    async_copy.wait_group(0)
    fence_async_shared()
    barrier()
    row = gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    position = seq_len - num_queries + first_query + row // GROUP
    row_scale = gl.full([ROWS], scale, gl.float32, gl.SliceLayout(1, SCORES))
    counter_ptr += tile * NUM_KV_HEADS + head
    PART: gl.constexpr = GROUP * (HEAD_DIM + 2)
    parts = part_ptr + (before * NUM_KV_HEADS + head) * PART
    total = gl.zeros([ROWS, HEAD_DIM], gl.float32, SUMS)
    total_m = gl.full([ROWS], -1e30, gl.float32, gl.SliceLayout(1, SCORES))
    total_s = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, SCORES))
    at = 0
    for number in range(own_begin, own_end):
        first = (first_split + number) * TILES
        acc, m, s = _attend_split(
            q_smem, keys, values, at, position, gl.maximum(first, begin),
            (seq_len - num_queries + first_query + 1) // TILE, gl.minimum(first + TILES, end),
            seq_len, row_scale,
            HEAD_DIM, TILE, WINDOW, SCORES, SUMS,
        )  # fmt: skip
        at += gl.minimum(first + TILES, end) - gl.maximum(first, begin)
        if sharers > 1:
            store_split(parts + number * (NUM_KV_HEADS * PART), acc, m, s, GROUP)
        else:
            total, total_m, total_s = add_split(total, total_m, total_s, acc, m, s)
    if sharers > 1:
        if own_end > own_begin:
            barrier()
            ticket = gl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
            if ticket == sharers - 1:
                gl.store(counter_ptr, 0)
                merge(
                    out_ptr + first_token * stride_out_token + head * (GROUP * HEAD_DIM), parts,
                    NUM_KV_HEADS * PART, num_splits, GROUP, HEAD_DIM,
                )  # fmt: skip
    elif own_end > own_begin:
        by = gl.convert_layout(gl.maximum(total_s, 1e-30), gl.SliceLayout(1, SUMS))
        out = (total / by[:, None]).to(out_ptr.dtype.element_ty)
        to, exists = rows_in_memory(
            head, first_token, num_queries, first_query, stride_out_token, HEAD_DIM,
            GROUP, HEAD_DIM, SUMS,
        )  # fmt: skip
        gl.store(out_ptr + to, out, mask=exists & (to >= 0))


@gluon.jit
def _attend_split(
    q_smem, keys, values, at, position, begin, full_end, end, seq_len, row_scale,
    HEAD_DIM: gl.constexpr, TILE: gl.constexpr, WINDOW: gl.constexpr,
    SCORES: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """Softmax over the key tiles of a split: (sums of weight · v, maxima, totals).

    full_end: end of the tiles that all queries see completely, if there is no window.
    """
    sums = (
        gl.zeros([ROWS, HEAD_DIM], gl.float32, SUMS),
        gl.full([ROWS], -1e30, gl.float32, gl.SliceLayout(1, SCORES)),
        gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, SCORES)),
    )
    if WINDOW == 0:
        full_end = gl.minimum(gl.maximum(full_end, begin), end)
        for tile in range(begin, full_end):
            sums = _add_tile(
                q_smem, keys, values, at + tile - begin, position, tile, seq_len, row_scale, sums,
                HEAD_DIM, TILE, WINDOW, SCORES, SUMS, False,
            )  # fmt: skip
        at += full_end - begin
        begin = full_end
    for tile in range(begin, end):
        sums = _add_tile(
            q_smem, keys, values, at + tile - begin, position, tile, seq_len, row_scale, sums,
            HEAD_DIM, TILE, WINDOW, SCORES, SUMS, True,
        )  # fmt: skip
    return sums


@gluon.jit
def _add_tile(
    q_smem, keys, values, at, position, tile, seq_len, row_scale, sums,
    HEAD_DIM: gl.constexpr, TILE: gl.constexpr, WINDOW: gl.constexpr,
    SCORES: gl.constexpr, SUMS: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Add the split's next key tile to its sums."""
    acc, m, s = sums
    dtype: gl.constexpr = q_smem.dtype
    slot = await_tile(keys, at)
    scores = gl.zeros([ROWS, TILE], gl.float32, SCORES)
    scores = warpgroup_mma(
        q_smem, keys[0].index(slot).permute((1, 0)), scores, use_acc=False, is_async=True
    )
    scores = warpgroup_mma_wait(0, deps=[scores])
    mbarrier.arrive(keys[2].index(slot), count=1)
    w, m, s, shrink = softmax(scores, m, s, position, tile, row_scale, dtype, TILE, WINDOW, MASKED)
    p = gl.convert_layout(w.to(dtype), gl.DotOperandLayout(0, SUMS, 2))
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, SUMS))[:, None]
    slot = await_tile(values, at)
    if MASKED:
        if (tile + 1) * TILE > seq_len:
            clear_unwritten(values[0], slot, seq_len - tile * TILE, HEAD_DIM, TILE)
    acc = warpgroup_mma(p, values[0].index(slot), acc, is_async=True)
    acc, p = warpgroup_mma_wait(0, deps=[acc, p])
    mbarrier.arrive(values[2].index(slot), count=1)
    return acc, m, s
