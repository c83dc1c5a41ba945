"""Paged attention on the CPU: each request's keys as a view where they can be, then SDPA.

Owns the way from blocks to one call of PyTorch's flash attention per request. Heads that share a
key head are not copied: for a decode they become query rows of one head (reading 7 GB/s of keys
where one row per head reads 1.4), for a prefill chunk the key heads are expanded with stride 0.
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
    grouped = query.view(len(query), num_kv_heads, -1, head_dim)  # [T, Hkv, G, D]
    parts = []
    for row, q in enumerate(torch.split(grouped, layout.query_lens_host)):
        num_queries, seq_len = layout.query_lens_host[row], layout.seq_lens_host[row]
        oldest = 0
        if sliding_window is not None:
            oldest = max(0, seq_len - num_queries + 1 - sliding_window)
        k = _keys(k_cache, layout, row, oldest)
        v = _keys(v_cache, layout, row, oldest)
        if num_queries == 1:
            parts.append(F.scaled_dot_product_attention(q, k, v, scale=scale))
        else:
            parts.append(_chunk(q, k, v, scale, sliding_window))
    return torch.cat(parts).view(query.shape)


def _keys(cache: Tensor, layout: BatchLayout, row: int, oldest: int) -> Tensor:
    """A request's keys or values from position `oldest` on: [1, Hkv, S, D]."""
    size = cache.shape[1]
    seq_len, start = layout.seq_lens_host[row], layout.first_slots_host[row]
    if start is None:
        skipped = oldest // size
        blocks = layout.block_table[row, skipped : -(-seq_len // size)]
        cache, start = cache.index_select(0, blocks), -skipped * size
    slots = cache.flatten(0, 1).transpose(0, 1).unsqueeze(0)  # [1, Hkv, all slots, D]
    return slots.narrow(2, start + oldest, seq_len - oldest)


def _chunk(q: Tensor, k: Tensor, v: Tensor, scale: float, sliding_window: int | None) -> Tensor:
    """Several queries at the end of their keys: q [n, Hkv, G, D] → [n, Hkv, G, D]."""
    (num_queries, _, group, _), seq_len = q.shape, k.shape[2]
    whole = sliding_window is None or seq_len <= sliding_window
    causal = whole and num_queries == seq_len
    mask = None if causal else visible(num_queries, seq_len, sliding_window, q.device)
    out = F.scaled_dot_product_attention(
        q.permute(1, 2, 0, 3),  # [Hkv, G, n, D]
        k.transpose(0, 1).expand(-1, group, -1, -1),  # [Hkv, G, S, D]
        v.transpose(0, 1).expand(-1, group, -1, -1),
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
    )
    return out.permute(2, 0, 1, 3)
