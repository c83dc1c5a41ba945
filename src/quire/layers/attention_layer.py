"""Attention of one layer over the KV cache, and where a step's keys and values go."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from quire.core.layer_spec import AttentionSpec
from quire.kernels.formats.weight_format import WeightFormat
from quire.kernels.operands import AttentionParams, HeadNorms, KVScales, RopeWriteKV
from quire.layers.forward_context import ForwardContext
from quire.layers.parameter import LayerOptions

# cos and sin of the step's positions, each [T, R]
Rope = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """Grouped-query attention over the paged KV cache.

    layer_id: its index in `ctx.kv`. following: the format of the weight that is next, None for the
    model's own data type.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        layer_id: int,
        options: LayerOptions,
        following: WeightFormat | None,
    ) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.head_dim = spec.key_dim
        self.params = AttentionParams(spec.scale, spec.window, spec.soft_cap)
        if following is not None:
            self.params = replace(self.params, early_launch_bytes=following.early_launch_bytes)
        self.kernels = options.kernels

    def rope_write_kv(
        self, norms: HeadNorms | None, rope: Rope, ctx: ForwardContext
    ) -> RopeWriteKV:
        """The operand for RoPE on a step's heads and for writing their keys and values.

        norms: of queries and keys before RoPE, in families that have them.
        """
        k_cache, v_cache, *scales = ctx.kv[self.layer_id]
        return RopeWriteKV(
            self.head_dim, norms, *rope, k_cache, v_cache, ctx.layout.slot_mapping,
            KVScales(*scales) if scales else None,
        )  # fmt: skip

    def forward(self, query: Tensor, ctx: ForwardContext) -> Tensor:
        """Queries [T, Hq, D] after RoPE, whose keys and values are written → [T, Hq · D]."""
        k_cache, v_cache, *scales = ctx.kv[self.layer_id]
        own = (KVScales(*scales),) if scales else ()
        found = self.kernels.attention(query, k_cache, v_cache, ctx.layout, self.params, *own)
        return found.flatten(1)
