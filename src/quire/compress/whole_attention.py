"""Attention of whole sequences of one length, by PyTorch's own: on any device, with gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels import reference
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.operands import AttentionParams


def whole_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    params: AttentionParams,
) -> Tensor:
    """Twin of `reference.attention` for B sequences of one length, each from its first token.

    Their blocks are consecutive: caches [B · blocks, size, Hkv, D]. query [T, Hq, D] → the same.
    """
    if params.sinks is not None or params.soft_cap is not None:
        return reference.attention(query, k_cache, v_cache, layout, params)
    lengths = layout.query_lens_host
    batch, length = len(lengths), lengths[0]
    group = query.shape[1] // k_cache.shape[2]
    k, v = (_heads(cache, batch, length, group) for cache in (k_cache, v_cache))
    q = torch.unflatten(query, 0, (batch, length)).transpose(1, 2)
    seen = None
    if params.window is not None and params.window < length:
        seen = reference.visible(length, length, params.window, query.device)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, is_causal=seen is None, scale=params.scale
    )
    return out.transpose(1, 2).flatten(0, 1)


def _heads(cache: Tensor, batch: int, length: int, group: int) -> Tensor:
    """Keys or values of each query head: [B, Hq, T, D]."""
    rows = torch.unflatten(cache.flatten(0, 1), 0, (batch, -1))[:, :length]
    return rows.transpose(1, 2).repeat_interleave(group, dim=1)
