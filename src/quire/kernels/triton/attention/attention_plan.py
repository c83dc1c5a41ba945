"""The plan of a step's attention, computed on the device: which program works on which keys."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from quire.kernels.batch_layout import SHARED_MEMBERS, BatchLayout
from quire.kernels.triton.attention.prefill_tiles import WORK_FIELDS, prefill_work_kernel
from quire.kernels.triton.launch.attention_config import DecodeConfig, HopperDecodeConfig
from quire.kernels.triton.launch.work_partition import owner, run_begin
from quire.kernels.triton.launch.workspace import follow, launches_early, workspace


@dataclass(frozen=True, slots=True)
class Plan:
    """The partition of a step's attention among programs, for one window and config."""

    decode_tiles: Tensor  # int32 [B + 1]: number of key tiles of all decodes before each request
    decode_runs: Tensor  # int32 [programs, 10]: run of each decode program, see `_store_runs`
    num_query_tiles: Tensor  # int32 [1], query tiles of all prefills
    work: Tensor  # int32 [most, WORK_FIELDS]: query tiles, see `prefill_work_kernel`


def _most_query_tiles(num_tokens: int, num_requests: int, query_tile: int) -> int:
    """A bound on the number of query tiles that holds for any lengths of requests.

    Each request has a token or more, and one partial tile at most.
    """
    most_requests = min(num_requests, num_tokens)
    return max(1, most_requests + (num_tokens - most_requests) // query_tile)


def padded_count(num_requests: int) -> int:
    """num_requests rounded up to a power of two, 64 at least, so that few kernels are compiled."""
    return max(64, 1 << (num_requests - 1).bit_length())


def make_plan(
    layout: BatchLayout,
    window: int,
    decode: DecodeConfig | HopperDecodeConfig | None,
    query_tile: int,
    num_kv_heads: int,
    most_programs: int = 2**31,
) -> Plan:
    """Compute a plan on the device. window: 0 for none. query_tile: tokens of a query tile.

    decode: None: prefill attention serves requests with one query token, too. most_programs: of
    decode attention, but for Hopper's.
    """
    num_requests = len(layout.seq_lens)
    config = decode or DecodeConfig(tile=16, stages=1, per_sm=1)
    num_programs = config.per_sm * workspace(layout.seq_lens.device).num_sms
    if isinstance(config, HopperDecodeConfig):  # a run for each crew, see `hopper_decode_work`
        num_programs, num_kv_heads = max(1, num_programs // num_kv_heads), 1
    else:
        num_programs = min(num_programs, most_programs)
    shared = layout.shared if not window else None
    index, lens = (None, None) if shared is None else (shared.index, shared.lens)
    pdl = launches_early(layout.seq_lens.device)
    starts = layout.seq_lens.new_empty(2, num_requests + 1)
    runs = layout.seq_lens.new_empty(num_programs, 10)
    most = padded_count(num_requests)
    plan_kernel[(triton.cdiv(num_programs, 4),)](
        layout.query_start_loc, layout.seq_lens, index, lens, starts[0], starts[1], runs,
        num_requests, num_programs,
        KEY_TILE=config.tile, QUERY_TILE=query_tile, WINDOW=window, NUM_KV_HEADS=num_kv_heads,
        DECODES=decode is not None, MEMBERS=SHARED_MEMBERS,
        WHOLE=keeps_requests(config),
        BLOCK_B=most, BLOCK_P=4, PDL=pdl, launch_pdl=pdl, num_warps=1 if most <= 256 else 4,
    )  # fmt: skip
    work = starts.new_empty(1, WORK_FIELDS)
    if layout.has_prefills or decode is None:
        work = query_tile_list(layout, starts[1], query_tile)
    return Plan(starts[0], runs, num_query_tiles=starts[1, -1:], work=work)


def keeps_requests(config: DecodeConfig | HopperDecodeConfig) -> bool:
    """Whether runs stay within a request where that makes none longer."""
    return isinstance(config, HopperDecodeConfig)


def query_tile_list(layout: BatchLayout, tiles: Tensor, query_tile: int) -> Tensor:
    """The `work` of a plan. tiles int32 [B + 1]: number of query tiles before each request."""
    num_requests = len(layout.seq_lens)
    most_tiles = _most_query_tiles(len(layout.slot_mapping), num_requests, query_tile)
    work = layout.seq_lens.new_empty(most_tiles, WORK_FIELDS)
    prefill_work_kernel[(triton.cdiv(most_tiles, 16),)](
        layout.query_start_loc, layout.seq_lens, tiles, work, num_requests,
        TOKENS=query_tile, BLOCK_B=padded_count(num_requests), BLOCK_T=16, FIELDS=WORK_FIELDS,
    )  # fmt: skip
    return work


@triton.jit(do_not_specialize=["num_requests", "num_programs"])
def plan_kernel(
    query_start_ptr, seq_lens_ptr, shared_index_ptr, lens_ptr, decode_tiles_ptr, query_tiles_ptr,
    runs_ptr, num_requests, num_programs,
    KEY_TILE: tl.constexpr, QUERY_TILE: tl.constexpr, WINDOW: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, DECODES: tl.constexpr, MEMBERS: tl.constexpr,
    WHOLE: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Fill a `Plan`: each program BLOCK_P of the runs, program 0 the tile counts as well.

    WHOLE: runs stay within a request where that makes none longer; NUM_KV_HEADS is 1.
    """
    if PDL:
        follow()
    request = tl.arange(0, BLOCK_B)
    there = request < num_requests
    begin = tl.load(query_start_ptr + request, mask=there, other=0)
    queries = tl.load(query_start_ptr + request + 1, mask=there, other=0) - begin
    seq_len = tl.load(seq_lens_ptr + request, mask=there, other=0)
    oldest = tl.zeros_like(seq_len)
    if WINDOW > 0:
        oldest = tl.maximum(seq_len - WINDOW, 0)
    if shared_index_ptr is not None:
        member = tl.load(shared_index_ptr + request, mask=there, other=-1)
        oldest = tl.load(lens_ptr + member // MEMBERS, mask=member >= 0, other=0)
    key_tiles = tl.cdiv(seq_len, KEY_TILE) - oldest // KEY_TILE
    decodes = there & (queries == 1) & DECODES
    key_tiles = tl.where(decodes, key_tiles, 0)
    ends = tl.cumsum(key_tiles, axis=0)
    if tl.program_id(0) == 0:
        query_tiles = tl.where(there & (decodes == 0), tl.cdiv(queries, QUERY_TILE), 0)
        tl.store(decode_tiles_ptr, 0)
        tl.store(query_tiles_ptr, 0)
        tl.store(decode_tiles_ptr + 1 + request, ends, mask=there)
        tl.store(query_tiles_ptr + 1 + request, tl.cumsum(query_tiles, axis=0), mask=there)
    program = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    _store_runs(
        runs_ptr, query_start_ptr, seq_lens_ptr, program, key_tiles, ends,
        num_programs, NUM_KV_HEADS, WHOLE,
    )  # fmt: skip


@triton.jit
def _store_runs(
    runs_ptr, query_start_ptr, seq_lens_ptr, program, key_tiles, ends, num_programs,
    NUM_KV_HEADS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Store runs [programs, 10], the run of units of each decode program:

    its first unit and its end; the first unit's request and key head; the first unit and the number
    of tiles of that (request, head); the request's token and length; the first and the last program
    that work on that (request, head). key_tiles, ends: tiles of each request, and up to its end.
    """
    num_units = tl.sum(key_tiles) * NUM_KV_HEADS
    busy = tl.minimum(num_programs, num_units)
    works = program < busy
    busy, units = tl.maximum(busy, 1), tl.maximum(num_units, 1)
    begin = tl.where(works, run_begin(program, busy, num_units), num_units)
    end = tl.where(works, run_begin(program + 1, busy, num_units), num_units)
    passed = ends[None, :] <= (begin // NUM_KV_HEADS)[:, None]  # [BLOCK_P, BLOCK_B]
    request, before, num_tiles = _row_of(passed, ends)
    head = (begin - before * NUM_KV_HEADS) // num_tiles
    row_unit = before * NUM_KV_HEADS + head * num_tiles
    first, last = owner(row_unit, busy, units), owner(row_unit + num_tiles - 1, busy, units)
    if WHOLE:
        shares = key_tiles * busy // units  # programs of each request
        share_ends = tl.cumsum(shares, axis=0)
        longest = tl.cdiv(key_tiles, tl.maximum(shares, 1)) + tl.where(shares > 0, 0, 2**30)
        longest = tl.max(tl.where(key_tiles > 0, longest, 0))
        if longest <= tl.cdiv(units, busy):  # a second request in a run would be a merge more
            works = program < tl.sum(shares)
            passed = share_ends[None, :] <= program[:, None]
            request, row_unit, num_tiles = _row_of(passed, ends)
            _, first, count = _row_of(passed, share_ends)
            part, last = program - first, first + count - 1
            begin = tl.where(works, row_unit + part * num_tiles // count, num_units)
            end = tl.where(works, row_unit + (part + 1) * num_tiles // count, num_units)
            head = tl.zeros_like(head)
    run, there = runs_ptr + program * 10, program < num_programs
    tl.store(run, begin, mask=there)
    tl.store(run + 1, end, mask=there)
    tl.store(run + 2, request, mask=there)
    tl.store(run + 3, head, mask=there)
    tl.store(run + 4, row_unit, mask=there)
    tl.store(run + 5, num_tiles, mask=there)
    tl.store(run + 6, tl.load(query_start_ptr + request, mask=works, other=0), mask=there)
    tl.store(run + 7, tl.load(seq_lens_ptr + request, mask=works, other=0), mask=there)
    tl.store(run + 8, first, mask=there)
    tl.store(run + 9, last, mask=there)


@triton.jit
def _row_of(passed, ends):
    """(request, units before it, its units), of the first request that a program has not passed."""
    before = tl.max(tl.where(passed, ends[None, :], 0), axis=1)
    end = tl.min(tl.where(passed, 2**30, ends[None, :]), axis=1)
    return tl.sum(passed.to(tl.int32), axis=1), before, end - before
