"""Attention of decoding requests over the keys of their shared prefixes, which are read once.

Floor: the bytes of a shared prefix's keys and values once; decode attention alone reads them once
for each request. The requests' query heads of one key head are the rows of one MMA. Where tiles are
few, their keys are split among programs. The result is a partial softmax for each query head, which
decode attention merges with its own over the keys behind the prefix.
(Hydragen: Juravsky et al., 2024; cascade inference in FlashInfer: Ye et al., 2024.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.kernels.batch_layout import SHARED_MEMBERS, BatchLayout
from quire.kernels.triton.attention.kv_codes import scale_to_float16
from quire.kernels.triton.attention.prefill_attention import attend_tiles
from quire.kernels.triton.launch.attention_config import padded_head_dim
from quire.kernels.triton.launch.attention_memory import SHARED_STAGES, shared_rows, shared_tile
from quire.kernels.triton.launch.workspace import workspace

MOST_SPLITS = 8
_PER_SM = 2  # programs


@dataclass(frozen=True, slots=True)
class SharedParts:
    """Partial softmaxes of each query head, by members of `SharedPrefixes`.

    That of member p in split i is at index i · num_tiles · SHARED_MEMBERS + p.
    """

    sums: Tensor  # float32 [members, Hq, D padded], sums of weight · v
    stats: Tensor  # float32 [members, Hq, 2], maximum of scores, sum of weights
    plan: Tensor  # int32 [2], numbers of tiles and of splits


def shared_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    log2_scale: float,
    log2_soft_cap: float,
    precision: str,
    scales: tuple[Tensor | None, Tensor | None] = (None, None),
) -> SharedParts:
    """Attend to the layout's shared prefixes.

    log2_scale, log2_soft_cap: of the scores, times log2(e); a cap of 0 for none. scales: of keys
    and values in INT8.
    """
    assert layout.shared is not None
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    num_heads = query.shape[1]
    group = num_heads // num_kv_heads
    space = workspace(query.device)
    num_programs = _PER_SM * space.num_sms
    plan = layout.once(
        ("shared plan", num_kv_heads), lambda: _plan(layout, num_kv_heads, num_programs)
    )
    most_members = max(len(layout.shared.lens), num_programs // num_kv_heads) * SHARED_MEMBERS
    block_d = padded_head_dim(k_cache)  # as decode attention reads the sums
    sums = torch.empty(most_members, num_heads, block_d, device=query.device)
    stats = torch.empty(most_members, num_heads, 2, device=query.device)
    rows, tile = shared_rows(group), shared_tile(query, k_cache, space.shared_memory)
    assert tile, "callers share where there is a tile"
    shared_attention_kernel[(num_programs,)](
        query, k_cache, v_cache, *scales, layout.block_table, layout.query_start_loc,
        layout.shared.rows, layout.shared.lens, plan, sums, stats,
        log2_scale, query.stride(0), query.stride(1), *k_cache.stride()[:3],
        layout.block_table.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        BLOCK_D=block_d, MEMBERS=SHARED_MEMBERS, TILE=tile, SOFT_CAP=log2_soft_cap,
        STAGES=SHARED_STAGES, PRECISION=precision, num_warps=4 if rows <= 64 else 8,
    )  # fmt: skip
    return SharedParts(sums, stats, plan)


def _plan(layout: BatchLayout, num_kv_heads: int, num_programs: int) -> Tensor:
    """The numbers of tiles and of splits of their keys, computed on the device: int32 [2]."""
    assert layout.shared is not None
    plan = layout.seq_lens.new_empty(2)
    shared_plan_kernel[(1,)](
        layout.shared.num_tiles, plan, num_programs // num_kv_heads, MOST=MOST_SPLITS
    )
    return plan


@triton.jit
def shared_plan_kernel(num_tiles_ptr, plan_ptr, num_items, MOST: tl.constexpr):
    """Store the numbers of tiles and of splits, for about num_items items of work."""
    num_tiles = tl.load(num_tiles_ptr)
    splits = tl.minimum(tl.maximum(num_items // tl.maximum(num_tiles, 1), 1), MOST)
    tl.store(plan_ptr, num_tiles)
    tl.store(plan_ptr + 1, splits)


@triton.jit(do_not_specialize=["stride_table"])
def shared_attention_kernel(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, block_table_ptr, query_start_ptr, rows_ptr,
    lens_ptr, plan_ptr, sums_ptr, stats_ptr,
    scale, stride_q_token, stride_q_head, stride_block, stride_slot, stride_kv_head, stride_table,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, MEMBERS: tl.constexpr, TILE: tl.constexpr,
    SOFT_CAP: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """q [T, Hq, D], caches [blocks, BLOCK_SIZE, Hkv, D] → `SharedParts`.

    An item of work is a tile of MEMBERS requests, a key head and a split of the tile's keys. rows
    int32 [tiles · MEMBERS]: the requests, -1 for none; lens int32 [tiles]: shared keys.
    """
    GROUP_2: tl.constexpr = triton.next_power_of_2(GROUP)
    ROWS: tl.constexpr = MEMBERS * GROUP_2
    num_tiles, num_splits = tl.load(plan_ptr), tl.load(plan_ptr + 1)
    d = tl.arange(0, BLOCK_D)[None, :]
    member, g = tl.arange(0, ROWS) // GROUP_2, tl.arange(0, ROWS) % GROUP_2
    num_items = num_tiles * num_splits * NUM_KV_HEADS
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        tile = item % num_tiles  # programs next to each other read the same keys
        head = item // num_tiles % NUM_KV_HEADS
        split = item // (num_tiles * NUM_KV_HEADS)
        row = tl.load(rows_ptr + tile * MEMBERS + member)  # [ROWS]
        there = (row >= 0) & (g < GROUP)
        token = tl.load(query_start_ptr + row, mask=there, other=0)
        offset = (token * stride_q_token + (head * GROUP + g) * stride_q_head)[:, None] + d
        q = tl.load(q_ptr + offset, mask=there[:, None] & (d < HEAD_DIM), other=0.0)
        row_scale = tl.full([ROWS], scale, tl.float32)
        if k_ptr.dtype.element_ty == tl.float8e4nv and q.dtype == tl.bfloat16:
            q, factor = scale_to_float16(q)
            row_scale *= factor
        leader = tl.load(rows_ptr + tile * MEMBERS)
        num_keys = tl.load(lens_ptr + tile)
        key_tiles = num_keys // TILE
        acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
        m = tl.full([ROWS], -1e30, tl.float32)
        s = tl.zeros([ROWS], tl.float32)
        acc, m, s = attend_tiles(
            acc, m, s, q, row, k_ptr + head * stride_kv_head, v_ptr + head * stride_kv_head,
            (k_scale_ptr, v_scale_ptr, head), block_table_ptr + leader * stride_table,
            key_tiles * split // num_splits, key_tiles * (split + 1) // num_splits, num_keys,
            row_scale, stride_block, stride_slot,
            NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, 0, SOFT_CAP, STAGES, BLOCK_D, False,
            PRECISION,
        )  # fmt: skip
        part = (split * num_tiles + tile) * MEMBERS + member
        slot = (part * NUM_KV_HEADS + head) * GROUP + g
        tl.store(sums_ptr + slot.to(tl.int64)[:, None] * BLOCK_D + d, acc, mask=there[:, None])
        tl.store(stats_ptr + slot * 2, m, mask=there)
        tl.store(stats_ptr + slot * 2 + 1, s, mask=there)


@triton.jit
def with_shared_part(
    result, weight, sums_ptr, stats_ptr, plan_ptr, member, head,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
    MEMBERS: tl.constexpr,
):  # fmt: skip
    """Merge a request's partial softmax for one key head with those over its shared prefix.

    result [ROWS, BLOCK_D]: weighted mean of v; weight [ROWS]: log2 of its weight; both returned.
    """
    num_tiles, num_splits = tl.load(plan_ptr), tl.load(plan_ptr + 1)
    g, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)[None, :]
    there = g < GROUP
    acc, m = result, weight
    s = tl.full([ROWS], 1.0, tl.float32)
    for split in range(num_splits):
        part = split * num_tiles * MEMBERS + member
        slot = (part * NUM_KV_HEADS + head) * GROUP + g
        sums = tl.load(
            sums_ptr + slot.to(tl.int64)[:, None] * BLOCK_D + d, mask=there[:, None], other=0.0
        )
        part_m = tl.load(stats_ptr + slot * 2, mask=there, other=-1e30)
        part_s = tl.load(stats_ptr + slot * 2 + 1, mask=there, other=0.0)
        new_m = tl.maximum(m, part_m)
        shrink, share = tl.exp2(m - new_m), tl.exp2(part_m - new_m)
        acc = acc * shrink[:, None] + sums * share[:, None]
        s = s * shrink + part_s * share
        m = new_m
    return acc / s[:, None], m + tl.log2(s)
