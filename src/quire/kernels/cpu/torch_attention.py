"""Paged attention on the CPU, on top of PyTorch's flash attention.

It serves what the native library does not: float16 checkpoints, odd head dimensions, and all where
the library was not built. There it is 2 to 12 times as fast as the twin (a decode over 1,000 keys
12 ms in place of 77 in float32, 16 decodes over 500 keys 56 in place of 516 in bfloat16, on two
cores with AVX2).

Owns the gathering of blocks into few, large calls. Heads that share a key head are not copied: for
a decode they become query rows of one head (reading 7 GB/s of keys where one row per head reads
1.4), for a prefill chunk the key heads are expanded with stride 0.

Decodes of up to a thousand tokens go through one call together, padded to the longest of them: each
call costs 50 us, and milliseconds where other processes compete for the cores, which is more than
the copy of their keys. Others go alone, on a view of their blocks where those are consecutive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels import reference
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.operands import AttentionParams
from quire.kernels.reference import dequantize_kv, soft_capped, visible

_LONG = 1024  # visible keys from which on a decode goes alone
_LARGEST_COPY = 2**24  # bytes; what is larger comes from the system anew, page by page


@dataclass(frozen=True, slots=True)
class _Group:
    """n decodes that go together, S the most keys that one of them sees."""

    rows: Tensor  # int64 [n], their tokens in the batch
    slots: Tensor  # int64 [n · S], where their keys are
    mask: Tensor  # [n, 1, 1, S] in the query's dtype, -inf at the padding


@dataclass(frozen=True, slots=True)
class _Alone:
    """A request that goes alone: where its queries start, and its visible keys."""

    start: int
    row: int
    first_slot: int | None  # where its keys begin, if its blocks are consecutive
    num_queries: int
    oldest: int  # position of the first key that any of its queries sees
    mask: Tensor | None  # [n, S] in the query's dtype; None where `is_causal` says the same
    is_causal: bool


def attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    params: AttentionParams,
) -> Tensor:
    """Twin of `reference.attention`, which it calls for layers with sinks."""
    if params.sinks is not None:
        return reference.attention(query, k_cache, v_cache, layout, params)
    heads = query.view(len(query), k_cache.shape[2], -1, query.shape[2])  # [T, Hkv, G, D]
    out = torch.empty_like(heads, memory_format=torch.contiguous_format)
    key = ("cpu attention", params.window, query.dtype, k_cache.shape[1:])
    groups, loners = layout.once(key, lambda: _plan(layout, params.window, k_cache, query.dtype))
    for group in groups:
        out[group.rows] = _together(heads[group.rows], k_cache, v_cache, group, params)
    for one in loners:
        q = heads[one.start : one.start + one.num_queries]
        k = dequantize_kv(_keys(k_cache, layout, one), q.dtype)  # a copy of those in 8 bits alone
        v = dequantize_kv(_keys(v_cache, layout, one), q.dtype)
        out[one.start : one.start + one.num_queries] = _alone(q, k, v, one, params)
    return out.view(query.shape)


def _together(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, group: _Group, params: AttentionParams
) -> Tensor:
    """Decodes of several requests: q [n, Hkv, G, D] → the same shape."""
    shape = (len(q), -1, *k_cache.shape[2:])  # n, S, Hkv, D
    k = dequantize_kv(k_cache.flatten(0, 1).index_select(0, group.slots).view(shape), q.dtype)
    v = dequantize_kv(v_cache.flatten(0, 1).index_select(0, group.slots).view(shape), q.dtype)
    return _attend(q, k.transpose(1, 2), v.transpose(1, 2), group.mask, False, params)


def _keys(cache: Tensor, layout: BatchLayout, one: _Alone) -> Tensor:
    """A request's visible keys or values: [1, Hkv, S, D]."""
    size, seq_len = cache.shape[1], layout.seq_lens_host[one.row]
    start = one.first_slot
    if start is None:
        skipped = one.oldest // size
        blocks = layout.block_table[one.row, skipped : -(-seq_len // size)]
        cache, start = cache.index_select(0, blocks), -skipped * size
    slots = cache.flatten(0, 1).transpose(0, 1).unsqueeze(0)  # [1, Hkv, all slots, D]
    return slots.narrow(2, start + one.oldest, seq_len - one.oldest)


def _alone(q: Tensor, k: Tensor, v: Tensor, one: _Alone, params: AttentionParams) -> Tensor:
    """Queries at the end of one request: q [n, Hkv, G, D], k and v [1, Hkv, S, D] → as q."""
    if one.num_queries == 1:
        return _attend(q, k, v, None, False, params)
    group = q.shape[2]
    out = _attend(
        q.permute(1, 2, 0, 3),  # [Hkv, G, n, D]
        k.transpose(0, 1).expand(-1, group, -1, -1),  # [Hkv, G, S, D]
        v.transpose(0, 1).expand(-1, group, -1, -1),
        one.mask,
        one.is_causal,
        params,
    )
    return out.permute(2, 0, 1, 3)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, params: AttentionParams
) -> Tensor:
    """PyTorch's attention of q [.., n, D] over k and v [.., S, D], or a soft-capped one in float32.

    mask: added to scores [.., n, S]. is_causal: n = S, and each query sees itself and those before.
    """
    if params.soft_cap is None:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal, scale=params.scale
        )
    scores = q.float() @ k.float().transpose(-1, -2) * params.scale
    scores = soft_capped(scores, params.soft_cap)
    if is_causal:
        hidden = ~visible(scores.shape[-2], scores.shape[-1], None, scores.device)
        scores = scores.masked_fill_(hidden, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


def _plan(
    layout: BatchLayout, sliding_window: int | None, k_cache: Tensor, dtype: torch.dtype
) -> tuple[list[_Group], list[_Alone]]:
    """A step's requests, grouped or computed alone; the same in all layers with that window."""
    bytes_per_token = k_cache[0, 0].numel() * k_cache.element_size()
    window = sliding_window or max(layout.seq_lens_host)
    num_decodes = layout.query_lens_host.count(1)
    seen = [min(n, window) for n in layout.seq_lens_host[:num_decodes]]
    rows = [r for r in _grouped(seen, bytes_per_token) if len(r) > 1]
    taken = {row for group in rows for row in group}
    groups = [_group(layout, group, seen, k_cache.shape[1], dtype) for group in rows]
    firsts = first_slots(layout, k_cache.shape[1])
    loners, start = [], 0
    for row, num_queries in enumerate(layout.query_lens_host):
        if row not in taken:
            loners.append(_loner(layout, row, start, firsts[row], sliding_window, dtype))
        start += num_queries
    return groups, loners


def first_slots(layout: BatchLayout, block_size: int) -> list[int | None]:
    """First slot of each request whose slots are consecutive, so that a slice replaces a gather."""
    lens, table = np.array(layout.seq_lens_host), layout.block_table.numpy()
    used = -(-lens // block_size)  # [B]
    jumps = np.diff(table, axis=1) != 1  # [B, max_blocks - 1]
    inner = np.arange(1, table.shape[1])[None, :] < used[:, None]
    scattered = (jumps & inner).any(axis=1)
    firsts = table[:, 0].astype(np.int64) * block_size
    return [None if s else f for s, f in zip(scattered.tolist(), firsts.tolist(), strict=True)]


def _grouped(seen: list[int], bytes_per_token: int) -> list[list[int]]:
    """Cut short decodes into groups of like lengths, so that at most half of a copy is padding."""
    groups: list[list[int]] = []
    longest = 0
    for row in sorted((r for r, n in enumerate(seen) if n < _LONG), key=lambda r: -seen[r]):
        full = groups and (len(groups[-1]) + 1) * longest * bytes_per_token > _LARGEST_COPY
        if not groups or full or 2 * seen[row] < longest:
            groups.append([])
            longest = seen[row]
        groups[-1].append(row)
    return groups


def _group(
    layout: BatchLayout, rows: list[int], seen: list[int], size: int, dtype: torch.dtype
) -> _Group:
    """Find the slots of all keys. Padding repeats a request's first one: its own, so never NaN
    unless the request itself is."""
    index = torch.tensor(rows)  # a decode's token has its row's number
    counts = torch.tensor([seen[row] for row in rows])
    steps = torch.arange(int(counts[0]))  # the longest comes first
    padding = steps >= counts[:, None]  # [n, S]
    oldest = layout.seq_lens[index].long() - counts
    positions = oldest[:, None] + steps.masked_fill(padding, 0)
    blocks = layout.block_table[index].long().gather(1, positions // size)
    mask = torch.zeros(padding.shape, dtype=dtype).masked_fill_(padding, float("-inf"))
    slots = blocks * size + positions % size
    return _Group(index, slots.flatten(), mask[:, None, None])


def _loner(
    layout: BatchLayout,
    row: int,
    start: int,
    first_slot: int | None,
    sliding_window: int | None,
    dtype: torch.dtype,
) -> _Alone:
    num_queries, seq_len = layout.query_lens_host[row], layout.seq_lens_host[row]
    window = sliding_window or seq_len
    oldest = max(0, seq_len - num_queries + 1 - window)
    is_causal = num_queries == seq_len <= window
    mask = None
    if num_queries > 1 and not is_causal:
        seen = visible(num_queries, seq_len, sliding_window, torch.device("cpu"))[:, oldest:]
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))
    return _Alone(start, row, first_slot, num_queries, oldest, mask, is_causal)
