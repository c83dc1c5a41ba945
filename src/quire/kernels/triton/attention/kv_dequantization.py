"""Keys and values in 8 bits dequantized to bfloat16, once for all query tiles of a prompt.

Attention converts them for each tile of queries that reads them, which costs more than its MMAs
leave time for. For prompts with many queries in a step a kernel converts them before, to scratch
memory that all layers use one after another: in FP8 exactly, in INT8 times their scales, rounded
once. Prompts with few queries, or whose keys do not fit, are left to attention. Both are decided on
the device, so that one CUDA graph serves any batch.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents

from quire.kernels.batch_layout import BatchLayout
from quire.kernels.triton.attention.attention_plan import padded_count, query_tile_list
from quire.kernels.triton.launch.attention_config import DequantizationConfig
from quire.kernels.triton.launch.workspace import workspace

NUM_DEQUANTIZED = 2**28  # numbers of 16 bits, 512 MiB
_CHUNK = 16  # keys that a program converts at a time
_PER_SM = 4  # programs
_MOST_NUMBERS = 1024  # of a key, that a program converts


@dataclass(frozen=True, slots=True)
class DequantizationPlan:
    """Prompts whose keys are dequantized, and the rows for them; for one window and config."""

    chunks: Tensor  # int32 [B + 1]: number of chunks of all dequantized keys before each request
    first_keys: Tensor  # int32 [B]: the first key of each request that is dequantized
    rows: Tensor  # int32 [B]: the row of the scratch memory at which a request's key 0 would be
    work: Tensor  # as in `Plan`, of prompts whose keys are dequantized
    num_query_tiles: Tensor
    other_work: Tensor  # of all other prompts
    num_other_tiles: Tensor


def most_keys(num_kv_heads: int, head_dim: int, tile: int) -> int:
    """The number of keys, with their values, that the scratch memory holds, in whole tiles."""
    return NUM_DEQUANTIZED // (2 * num_kv_heads * head_dim) // tile * tile


@functools.cache
def _scratch(device: torch.device) -> Tensor:
    """Allocated once in a process, so that CUDA graphs may hold its address.

    It outlives the models: the next one takes it over.
    """
    return torch.empty(NUM_DEQUANTIZED, dtype=torch.bfloat16, device=device)


def scratch_caches(k_cache: Tensor, tile: int) -> Tensor:
    """The scratch memory as keys and values [2, tiles, tile, Hkv, D]."""
    num_kv_heads, head_dim = k_cache.shape[2:]
    num_tiles = most_keys(num_kv_heads, head_dim, tile) // tile
    size = 2 * num_tiles * tile * num_kv_heads * head_dim
    return _scratch(k_cache.device)[:size].view(2, num_tiles, tile, num_kv_heads, head_dim)


def plan_dequantization(
    layout: BatchLayout, window: int, config: DequantizationConfig
) -> DequantizationPlan:
    """Decide on the device which prompts' keys are dequantized. window: 0 for none."""
    num_requests = len(layout.seq_lens)
    numbers = layout.seq_lens.new_empty(5, num_requests + 1)
    chunks, first_keys, rows, tiles, other_tiles = numbers
    dequantization_plan_kernel[(1,)](
        layout.query_start_loc, layout.seq_lens, chunks, first_keys, rows, tiles, other_tiles,
        num_requests, config.least_queries, config.most_keys,
        QUERY_TILE=config.query_tile, TILE=config.tile, WINDOW=window, CHUNK=_CHUNK,
        BLOCK_B=padded_count(num_requests),
    )  # fmt: skip
    work = query_tile_list(layout, tiles, config.query_tile)
    other_work = query_tile_list(layout, other_tiles, config.query_tile)
    return DequantizationPlan(
        chunks, first_keys, rows, work, tiles[-1:], other_work, other_tiles[-1:]
    )


def dequantize_kv(
    k_cache: Tensor,
    v_cache: Tensor,
    scales: tuple[Tensor | None, Tensor | None],
    layout: BatchLayout,
    plan: DequantizationPlan,
    out: Tensor,
    *,
    pdl: bool = False,
) -> None:
    """Convert the keys and values of a plan to out [2, tiles, tile, Hkv, D].

    scales: of caches in INT8. pdl: let the next kernel be launched early.
    """
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    heads = num_kv_heads & -num_kv_heads  # the largest power of two that divides it
    while heads > 1 and heads * head_dim > _MOST_NUMBERS:
        heads //= 2
    parts = num_kv_heads // heads
    num_programs = max(1, _PER_SM * workspace(k_cache.device).num_sms // parts)
    num_requests = len(layout.seq_lens)
    dequantize_kv_kernel[(num_programs, parts)](
        k_cache, v_cache, *scales, *out, layout.block_table, layout.seq_lens,
        plan.chunks, plan.first_keys, plan.rows, num_requests, layout.block_table.stride(0),
        NUM_HEADS=num_kv_heads, HEADS=heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        CHUNK=_CHUNK, BLOCK_B=padded_count(num_requests), PDL=pdl,
        num_warps=max(1, heads * head_dim // 128),
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_requests", "least_queries", "most_keys"])
def dequantization_plan_kernel(
    query_start_ptr, seq_lens_ptr, chunks_ptr, first_keys_ptr, rows_ptr, tiles_ptr,
    other_tiles_ptr, num_requests, least_queries, most_keys,
    QUERY_TILE: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_B: tl.constexpr,
):  # fmt: skip
    """Fill the numbers of a `DequantizationPlan`, and those of query tiles before each request."""
    request = tl.arange(0, BLOCK_B)
    there = request < num_requests
    begin = tl.load(query_start_ptr + request, mask=there, other=0)
    queries = tl.load(query_start_ptr + request + 1, mask=there, other=0) - begin
    seq_len = tl.load(seq_lens_ptr + request, mask=there, other=0)
    first_key = tl.zeros_like(seq_len)
    if WINDOW > 0:
        first_key = tl.maximum(seq_len - queries + 1 - WINDOW, 0) // TILE * TILE
    wide = there & (queries >= least_queries)
    keys = tl.where(wide, seq_len - first_key, 0)
    ends = tl.cumsum(keys, axis=0)
    wide = wide & (ends <= most_keys)
    chunks = tl.where(wide, tl.cdiv(keys, CHUNK), 0)
    query_tiles = tl.where(there & (queries > 1), tl.cdiv(queries, QUERY_TILE), 0)
    tl.store(first_keys_ptr + request, first_key, mask=there)
    tl.store(rows_ptr + request, ends - keys - first_key, mask=there)
    _store_sums(chunks_ptr, chunks, request, there)
    _store_sums(tiles_ptr, tl.where(wide, query_tiles, 0), request, there)
    _store_sums(other_tiles_ptr, tl.where(wide, 0, query_tiles), request, there)


@triton.jit
def _store_sums(pointer, numbers, request, there):
    """Store the sums of the numbers of all requests before each, and of all."""
    tl.store(pointer, 0)
    tl.store(pointer + 1 + request, tl.cumsum(numbers, axis=0), mask=there)


@triton.jit(do_not_specialize=["num_requests", "stride_table"])
def dequantize_kv_kernel(
    k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, k_out_ptr, v_out_ptr, block_table_ptr, seq_lens_ptr,
    chunks_ptr, first_keys_ptr, rows_ptr, num_requests, stride_table,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, CHUNK: tl.constexpr, BLOCK_B: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Convert one chunk of CHUNK keys of HEADS heads after another."""
    if PDL:
        gdc_launch_dependents()
    each = tl.arange(0, BLOCK_B)
    ends = tl.load(chunks_ptr + 1 + each, mask=each < num_requests, other=2**30)
    num_chunks = tl.load(chunks_ptr + num_requests)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    d = tl.arange(0, HEAD_DIM)[None, None, :]
    for chunk in range(tl.program_id(0), num_chunks, tl.num_programs(0)):
        request = tl.sum((ends <= chunk).to(tl.int32))
        first = tl.load(first_keys_ptr + request)
        key = first + (chunk - tl.load(chunks_ptr + request)) * CHUNK + tl.arange(0, CHUNK)
        there = key < tl.load(seq_lens_ptr + request)
        table = block_table_ptr + request.to(tl.int64) * stride_table
        block = tl.load(table + key // BLOCK_SIZE, mask=there, other=0)
        slot = block.to(tl.int64) * BLOCK_SIZE + key % BLOCK_SIZE
        row = tl.load(rows_ptr + request).to(tl.int64) + key
        source = (slot * NUM_HEADS)[:, None] + head[None, :]  # of scales [CHUNK, HEADS]
        target = ((row * NUM_HEADS)[:, None] + head[None, :])[:, :, None] * HEAD_DIM + d
        mask = there[:, None, None]
        codes = source[:, :, None] * HEAD_DIM + d
        keys = tl.load(k_ptr + codes, mask=mask, eviction_policy="evict_first")
        values = tl.load(v_ptr + codes, mask=mask, eviction_policy="evict_first")
        tl.store(k_out_ptr + target, _numbers(keys, k_scale_ptr, source, there), mask=mask)
        tl.store(v_out_ptr + target, _numbers(values, v_scale_ptr, source, there), mask=mask)


@triton.jit
def _numbers(codes, scale_ptr, source, there):
    """Codes as bfloat16, in INT8 times their scales."""
    numbers = codes.to(tl.float32)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + source, mask=there[:, None], other=0.0)
        numbers = numbers * scale.to(tl.float32)[:, :, None]
    return numbers.to(tl.bfloat16)
