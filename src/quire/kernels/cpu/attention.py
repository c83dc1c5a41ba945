"""Paged attention on the CPU: each request's keys as a view where they can be, then SDPA.

Owns the way from blocks to one call of PyTorch's flash attention per request. Heads that share a
key head are not copied: for a decode they become query rows of one head, for a prefill chunk the
key heads are expanded with stride 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.layout import BatchLayout
from quire.kernels.reference import visible


def attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    """Twin of `reference.attention`."""
    num_kv_heads, head_dim = k_cache.shape[2:]
    heads = (num_kv_heads, query.shape[1] // num_kv_heads, head_dim)  # Hkv, G, D
    parts = []
    for row, q in enumerate(torch.split(query, layout.query_lens_host)):
        num_queries, seq_len = layout.query_lens_host[row], layout.seq_lens_host[row]
        oldest = 0
        if sliding_window is not None:
            oldest = max(0, seq_len - num_queries + 1 - sliding_window)
        k, v = _keys_and_values(k_cache, v_cache, layout, row, oldest)  # [Hkv, 1, S, D]
        if num_queries == 1:
            out = _decode(q.view(heads), k, v, scale)
        else:
            out = _chunk(q.view(num_queries, *heads), k, v, scale, sliding_window)
        parts.append(out)
    return torch.cat(parts).view(query.shape)


def _keys_and_values(
    k_cache: Tensor, v_cache: Tensor, layout: BatchLayout, row: int, oldest: int
) -> tuple[Tensor, Tensor]:
    """A request's keys and values from position `oldest` on, each [Hkv, 1, S, D]."""
    block_size = k_cache.shape[1]
    seq_len, first = layout.seq_lens_host[row], layout.first_slots_host[row]
    if first is not None:
        start, end = first + oldest, first + seq_len
        return _slots(k_cache, start, end), _slots(v_cache, start, end)
    skipped = oldest // block_size
    blocks = layout.block_table[row, skipped : -(-seq_len // block_size)]
    start, end = oldest - skipped * block_size, seq_len - skipped * block_size
    k, v = k_cache.index_select(0, blocks), v_cache.index_select(0, blocks)
    return _slots(k, start, end), _slots(v, start, end)


def _slots(cache: Tensor, start: int, end: int) -> Tensor:
    """Slots [start, end) of [blocks, size, Hkv, D] as a view [Hkv, 1, S, D]."""
    return cache.flatten(0, 1)[start:end].transpose(0, 1).unsqueeze(1)


def _decode(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """One query that sees all keys: q [Hkv, G, D] → [1, Hkv, G, D].

    The group's heads are rows of one query, so that each key is read once.
    """
    return F.scaled_dot_product_attention(
        q.unsqueeze(0), k.transpose(0, 1), v.transpose(0, 1), scale=scale
    )


def _chunk(q: Tensor, k: Tensor, v: Tensor, scale: float, sliding_window: int | None) -> Tensor:
    """Several queries at the end of their keys: q [n, Hkv, G, D] → [n, Hkv, G, D]."""
    num_queries, seq_len, group = q.shape[0], k.shape[2], q.shape[2]
    full = sliding_window is None or seq_len <= sliding_window
    causal = full and num_queries == seq_len
    mask = None if causal else visible(num_queries, seq_len, sliding_window, q.device)
    out = F.scaled_dot_product_attention(
        q.permute(1, 2, 0, 3),  # [Hkv, G, n, D]
        k.expand(-1, group, -1, -1),
        v.expand(-1, group, -1, -1),
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
    )
    return out.permute(2, 0, 1, 3)
