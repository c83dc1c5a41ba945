"""Decode attention for Hopper, over keys and values in 16 bits, FP8 or INT8.

Twin of `decode_attention.py` for 64 or 128 dimensions a head, with the same plan and layout of
partial results. One warp keeps a ring of tiles filled by TMA, across requests and key heads, so
that loads do not wait for a softmax. FP8 keys are multiplied as they are; INT8 keys, and values in
8 bits, are converted to float16. (The ring: warp specialisation as in FlashAttention 3, Shah et
al., 2024.)
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire.kernels.batch_layout import SHARED_MEMBERS, BatchLayout
from quire.kernels.triton.hopper.hopper_barriers import barriers, invalidate_ring
from quire.kernels.triton.hopper.hopper_decode_merge import clear, leave_or_merge, with_shared_part
from quire.kernels.triton.hopper.hopper_decode_tiles import attend_to_keys, leave_query, load_query
from quire.kernels.triton.hopper.hopper_decode_work import fetch, first_row, oldest_key, row_behind
from quire.kernels.triton.hopper.hopper_tensor_maps import cache_boxes
from quire.kernels.triton.launch.attention_config import HopperDecodeConfig, decode_registers
from quire.kernels.triton.launch.workspace import workspace

_NUMBERS = ["num_requests", "num_tokens", "plan_is_fresh", "opens_early"]


def launch_decode(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    tiles: Tensor,
    runs: Tensor,
    shared: tuple[Tensor | None, ...],
    scale: float,
    window: int,
    out: Tensor,
    config: HopperDecodeConfig,
    scales: tuple[Tensor | None, Tensor | None] = (None, None),
    *,
    pdl: bool,
    plan_is_fresh: bool,
    opens_early: bool,
) -> None:
    """Fill the rows of out [T, Hq, D] that belong to requests with one query token.

    tiles, runs: of a `Plan` made for config. shared: the kernel's arguments for shared prefixes.
    scale: of the scores, times log2(e). scales: of keys and values in INT8. The others as
    in `paged_attention.decode_attention`.
    """
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    space = workspace(query.device)
    group = query.shape[1] // num_kv_heads
    hopper_decode_kernel[(num_kv_heads * len(runs),)](
        query, cache_boxes(k_cache, config.tile), cache_boxes(v_cache, config.tile), *scales, out,
        layout.block_table, layout.query_start_loc, layout.seq_lens, tiles, runs,
        space.partials, space.counters, *shared,
        len(layout.seq_lens), len(query), scale, query.stride(0), query.stride(1),
        layout.block_table.stride(0), out.stride(0), int(plan_is_fresh), int(opens_early),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size, TILE=config.tile, WINDOW=window, SLOTS=config.slots, PDL=pdl,
        HAS_SHARED=shared[0] is not None, MEMBERS=SHARED_MEMBERS,
        num_warps=4, maxnreg=decode_registers(config, k_cache, group, len(query)),
        launch_pdl=pdl,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["stride_table", *_NUMBERS])
def hopper_decode_kernel(
    q_ptr, k_desc, v_desc, k_scale_ptr, v_scale_ptr, out_ptr, block_table_ptr, query_start_ptr,
    seq_lens_ptr, tiles_ptr, runs_ptr, partial_ptr, counter_ptr,
    shared_index_ptr, lens_ptr, shared_sums_ptr, shared_stats_ptr, shared_plan_ptr,
    num_requests, num_tokens, scale, stride_q_token, stride_q_head, stride_table,
    stride_out_token, plan_is_fresh, opens_early,
    NUM_KV_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, TILE: gl.constexpr, WINDOW: gl.constexpr, SLOTS: gl.constexpr,
    PDL: gl.constexpr, HAS_SHARED: gl.constexpr, MEMBERS: gl.constexpr,
):  # fmt: skip
    """As `decode_attention_kernel`; caches as boxes of [slots, Hkv · D]."""
    WIDE: gl.constexpr = k_desc.dtype.primitive_bitwidth == 16
    # of queries and of softmax weights
    q_dtype: gl.constexpr = gl.float16 if k_desc.dtype == gl.int8 else k_desc.dtype
    p_dtype: gl.constexpr = k_desc.dtype if WIDE else gl.float16
    ROWS_OF_16: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    GROUPS: gl.constexpr = 4 if GROUP <= 4 else (8 if GROUP <= 8 else 16)
    # a slot has a tile of keys and one of values
    smem = gl.allocate_shared_memory(k_desc.dtype, [2 * SLOTS, TILE, HEAD_DIM], k_desc.layout)
    ring = (smem, barriers(SLOTS, 1), barriers(SLOTS, 1))
    q_smem = gl.allocate_shared_memory(
        q_dtype, [2 * GROUPS, HEAD_DIM], ROWS_OF_16 if k_desc.dtype == gl.int8 else k_desc.layout
    )
    p_smem = gl.allocate_shared_memory(p_dtype, [2 * GROUPS, TILE], ROWS_OF_16)
    fence_async_shared()
    shared = (shared_index_ptr, lens_ptr, shared_sums_ptr, shared_stats_ptr, shared_plan_ptr)
    requests = (seq_lens_ptr, tiles_ptr, runs_ptr, shared_index_ptr, lens_ptr)
    gl.warp_specialize(
        [
            (_attend, (
                q_ptr, out_ptr, ring, q_smem, p_smem, query_start_ptr, requests,
                (k_scale_ptr, v_scale_ptr), block_table_ptr, stride_table,
                shared, partial_ptr, counter_ptr, num_requests, num_tokens, scale, stride_q_token,
                stride_q_head, stride_out_token, plan_is_fresh, opens_early,
                NUM_KV_HEADS, GROUP, GROUPS, HEAD_DIM, BLOCK_SIZE, WINDOW, PDL, HAS_SHARED,
                MEMBERS)),
            (fetch, (
                k_desc, v_desc, ring, block_table_ptr, requests, stride_table, plan_is_fresh,
                NUM_KV_HEADS, BLOCK_SIZE, WINDOW, PDL, HAS_SHARED, MEMBERS)),
        ],
        [1],
        [32],
    )  # fmt: skip
    invalidate_ring(ring)


@gluon.jit
def _attend(
    q_ptr, out_ptr, ring, q_smem, p_smem, query_start_ptr, requests, scale_ptrs, block_table_ptr,
    stride_table, shared, partial_ptr, counter_ptr,
    num_requests, num_tokens, scale, stride_q_token, stride_q_head, stride_out_token,
    plan_is_fresh, opens_early,
    NUM_KV_HEADS: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr, HEAD_DIM: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, WINDOW: gl.constexpr, PDL: gl.constexpr, HAS_SHARED: gl.constexpr,
    MEMBERS: gl.constexpr,
):  # fmt: skip
    """Compute the crew's run of tiles for one key head, request by request."""
    seq_lens_ptr, tiles_ptr, runs_ptr, shared_index_ptr, lens_ptr = requests
    program = gl.program_id(0)
    if PDL:
        if plan_is_fresh > 0:
            gdc_wait()
    padding = gl.load(query_start_ptr + num_requests)
    head, crew = program % NUM_KV_HEADS, program // NUM_KV_HEADS
    begin, end, row = first_row(runs_ptr, crew)
    run = runs_ptr + crew * 10
    token, seq_len = gl.load(run + 6), gl.load(run + 7)
    first, last = gl.load(run + 8), gl.load(run + 9)  # crews that share those tiles
    all_tiles = gl.load(tiles_ptr + num_requests)
    num_crews = gl.minimum(gl.num_programs(0) // NUM_KV_HEADS, all_tiles)
    part_ptr = partial_ptr + head * (GROUP * HEAD_DIM)
    log_ptr = partial_ptr + 2 * gl.num_programs(0) * (GROUP * HEAD_DIM) + head * GROUP
    if PDL:  # results of the previous kernel are read from here on
        gdc_wait()
        if opens_early > 0:
            gdc_launch_dependents()
    q_ptr += head * GROUP * stride_q_head
    q = load_query(
        q_ptr + token * stride_q_token, begin < end,
        stride_q_head, GROUP, GROUPS, HEAD_DIM,
    )  # fmt: skip
    at = 0
    while begin < end:
        request, first_tile, num_tiles = row
        stop = gl.minimum(end, first_tile + num_tiles)
        oldest = oldest_key(
            shared_index_ptr, lens_ptr, request, seq_len, WINDOW, HAS_SHARED, MEMBERS
        )
        factor = leave_query(q, q_smem, scale_ptrs[0] is not None)
        next_token, next_len = token, seq_len
        if stop < end:  # loaded early, so that it is there when it is needed
            row = row_behind(row, tiles_ptr)
            next_token = gl.load(query_start_ptr + row[0])
            next_len = gl.load(seq_lens_ptr + row[0])
        q = load_query(
            q_ptr + next_token * stride_q_token, stop < end,
            stride_q_head, GROUP, GROUPS, HEAD_DIM,
        )  # fmt: skip
        result, weight = attend_to_keys(
            ring, at, q_smem, p_smem, factor * scale, begin - first_tile, stop - first_tile,
            oldest, seq_len, scale_ptrs, head, block_table_ptr + request * stride_table,
            NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, GROUPS,
        )  # fmt: skip
        at += stop - begin
        if HAS_SHARED:
            weight = gl.convert_layout(weight, gl.SliceLayout(1, result.type.layout))
            member = gl.load(shared_index_ptr + request)
            if (begin == first_tile) & (member >= 0):
                result, weight = with_shared_part(
                    result, weight, shared, member, head, NUM_KV_HEADS, GROUP, MEMBERS
                )
        if PDL:
            if (stop == end) & (opens_early == 0):
                gdc_launch_dependents()
        leave_or_merge(
            out_ptr + token * stride_out_token + head * GROUP * HEAD_DIM, result, weight,
            part_ptr, log_ptr, counter_ptr + request * NUM_KV_HEADS + head, crew, first, last,
            GROUP, NUM_KV_HEADS,
        )  # fmt: skip
        begin, token, seq_len = stop, next_token, next_len
        if begin < end:
            first = crew
            last = ((row[1] + row[2]) * num_crews - 1) // all_tiles  # as `owner` says
    if PDL:  # programs without work wait, too: the next kernel relies on all kernels before
        gdc_wait()
    for spare in range(padding + program, num_tokens, gl.num_programs(0)):
        clear(out_ptr + spare * stride_out_token, NUM_KV_HEADS * GROUP * HEAD_DIM)
