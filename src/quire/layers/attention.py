"""Attention of one layer: turn, write this step's keys and values, then attend over the cache."""

from __future__ import annotations

from torch import Tensor, nn

from quire.kernels.operands import HeadNorms
from quire.layers.context import ForwardContext
from quire.layers.parameter import LayerOptions

# cos and sin of the step's positions, each [T, R]
Rope = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """Grouped-query attention over the paged KV cache.

    layer_id: its place in `ctx.kv`. sliding_window: how many of the last tokens a query sees,
    itself included; None for all.
    """

    def __init__(
        self, layer_id: int, head_dim: int, sliding_window: int | None, options: LayerOptions
    ) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.scale = head_dim**-0.5
        self.sliding_window = sliding_window
        self.kernels = options.kernels

    def forward(
        self, heads: Tensor, norms: HeadNorms | None, rope: Rope, ctx: ForwardContext
    ) -> Tensor:
        """Heads of queries, keys and values, [T, Hq + 2 Hkv, D] → [T, Hq · D].

        norms: of queries and keys before they are turned, in families that have them.
        """
        k_cache, v_cache = ctx.kv[self.layer_id]
        query = self.kernels.rotary_write_kv(
            heads, norms, *rope, k_cache, v_cache, ctx.layout.slot_mapping
        )
        return self.kernels.attention(
            query, k_cache, v_cache, ctx.layout, self.scale, self.sliding_window
        ).flatten(1)
