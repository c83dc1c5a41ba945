"""The decoder's modules: Llama's, from which the other families differ by their description.

Built from a `ModelSpec`, layer by layer. What the modules do not compute is refused by name.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from quire.core.layer_spec import (
    AttentionSpec,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    NormSpec,
    check_features,
    layer_module,
)
from quire.kernels.operands import HeadNorms, ResidualState
from quire.kernels.reference import soft_capped
from quire.layers.attention_layer import Attention, Rope
from quire.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from quire.layers.forward_context import ForwardContext
from quire.layers.linear_layers import QKVParallelLinear, RowParallelLinear
from quire.layers.mlp import GatedMLP, MixtureOfExperts
from quire.layers.norm import RMSNorm
from quire.layers.parameter import LayerOptions
from quire.layers.rope import RotaryEmbedding
from quire.layers.rope_scale import ROPE_FEATURES

COMPUTED = frozenset(
    {
        "LinearSpec.bias",
        "LinearSpec.parts",
        "LinearSpec.is_fused_on_disk",
        "AttentionSpec.window",
        "AttentionSpec.soft_cap",
        "AttentionSpec.query_norm",
        "AttentionSpec.key_norm",
        "MLPSpec.activation",
        "MoESpec",
        "LayerSpec.post_attention_norm",
        "LayerSpec.post_mlp_norm",
        "NormSpec.adds_one",
        "EmbeddingSpec.scale",
        "ModelSpec.logit_soft_cap",
        *ROPE_FEATURES,
    }
)


class LlamaAttention(nn.Module):
    """Attention of a decoder layer: QKV projection, RoPE, attention, output projection."""

    def __init__(self, spec: AttentionSpec, layer_id: int, options: LayerOptions) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(spec.qkv, options)
        self.o_proj = RowParallelLinear(spec.output, options)
        self.attn = Attention(spec, layer_id, options, self.o_proj.method.weight_format)
        self.q_norm = None if spec.query_norm is None else RMSNorm(spec.query_norm, options)
        self.k_norm = None if spec.key_norm is None else RMSNorm(spec.key_norm, options)

    def attend(self, residual: ResidualState, rope: Rope, ctx: ForwardContext) -> Tensor:
        """The heads' outputs [T, Hq · D], before the output projection; writes the KV cache."""
        query = self.qkv_proj.rope_write_kv(
            residual, self.attn.rope_write_kv(self.head_norms(), rope, ctx)
        )
        return self.attn.forward(query, ctx)

    def head_norms(self) -> HeadNorms | None:
        """Norms of each query's and key's dimensions, where there are some."""
        if self.q_norm is None or self.k_norm is None:
            return None
        return HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)


class LlamaDecoderLayer(nn.Module):
    """Attention and MLP, each between norms and adding to the residual."""

    def __init__(self, spec: LayerSpec, layer_id: int, options: LayerOptions) -> None:
        super().__init__()
        self.spec = spec
        self.pre_attention_norm = self._add_norm(spec.pre_attention_norm, options)
        self.self_attn = LlamaAttention(spec.attention, layer_id, options)
        self.pre_mlp_norm = self._add_norm(spec.pre_mlp_norm, options)
        self.mlp: GatedMLP | MixtureOfExperts = (
            GatedMLP(spec.mlp, options)
            if isinstance(spec.mlp, MLPSpec)
            else MixtureOfExperts(spec.mlp, options)
        )
        after = spec.post_attention_norm, spec.post_mlp_norm
        self.post_attention_norm, self.post_mlp_norm = (
            None if norm is None else self._add_norm(norm, options) for norm in after
        )

    def _add_norm(self, spec: NormSpec, options: LayerOptions) -> RMSNorm:
        """A norm whose parameters are known by its name in checkpoints."""
        norm = RMSNorm(spec, options)
        self.add_module(spec.module, norm)
        return norm

    def forward(
        self, residual: ResidualState, following: RMSNorm, rope: Rope, ctx: ForwardContext
    ) -> ResidualState:
        """The residual for this layer's first norm → for the following layer's."""
        heads = self.self_attn.attend(residual, rope, ctx)
        return self.finish(heads, residual, following)

    def finish(self, heads: Tensor, residual: ResidualState, following: RMSNorm) -> ResidualState:
        """The rest of `forward` after the heads' outputs; no token depends on another here."""
        norms = self.pre_mlp_norm, self.post_attention_norm
        residual = self.self_attn.o_proj.add(heads, residual, *norms)
        return self.mlp.forward(residual, (following, self.post_mlp_norm))


class LlamaModel(nn.Module):
    """A decoder of Llama's kind: from token ids to the last hidden states."""

    def __init__(self, spec: ModelSpec, max_model_len: int, options: LayerOptions) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(spec.embedding, options)
        ropes = spec.ropes
        self.rotaries = [RotaryEmbedding(rope, max_model_len, options) for rope in ropes]
        for i, rotary in enumerate(self.rotaries):
            self.add_module(f"rotary_{i}" if i else "rotary", rotary)
        layers = [
            LlamaDecoderLayer(layer, i, replace(options, module=layer_module(i)))
            for i, layer in enumerate(spec.layers)
        ]
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(spec.final_norm, options)
        self.norms = [*(layer.pre_attention_norm for layer in layers), self.norm]
        which = [ropes.index(layer.attention.rope) for layer in spec.layers]
        self.path = list(zip(layers, self.norms[1:], which, strict=True))

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """See `LlamaForCausalLM`: through as many layers as have a cache."""
        residual, _ = self._run(input_ids, positions, ctx, len(ctx.kv))
        return self.norm.finish(residual)

    def attend(
        self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext, num_before: int
    ) -> tuple[Tensor, Tensor]:
        """See `LlamaForCausalLM`."""
        residual, ropes = self._run(input_ids, positions, ctx, min(num_before, len(self.path) - 1))
        layer, _, rope = self.path[-1]
        ctx.heartbeat()
        return residual.residual, layer.self_attn.attend(residual, ropes[rope], ctx)

    def finish(self, residual: Tensor, heads: Tensor) -> Tensor:
        """See `LlamaForCausalLM`."""
        layer, following, _ = self.path[-1]
        norm = layer.pre_attention_norm
        state = ResidualState(residual, None, norm.weight, norm.eps)
        return self.norm.finish(layer.finish(heads, state, following))

    def _run(
        self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext, num_layers: int
    ) -> tuple[ResidualState, list[Rope]]:
        """The residual after the first layers, and the step's angles."""
        ctx.layout.forget()
        ropes = [rotary(positions) for rotary in self.rotaries]
        residual = self.norms[0].begin(self.embed_tokens(input_ids))
        for layer, following, rope in self.path[:num_layers]:
            ctx.heartbeat()
            # called directly: PyTorch would look for hooks
            residual = layer.forward(residual, following, ropes[rope], ctx)
        return residual, ropes


class LlamaForCausalLM(nn.Module):
    """The model with its head, where the checkpoint has one.

    Raises UnsupportedModelError for a feature that the modules do not compute.
    """

    def __init__(self, spec: ModelSpec, max_model_len: int, options: LayerOptions) -> None:
        check_features(spec, COMPUTED)
        super().__init__()
        self.spec = spec
        self.model = LlamaModel(spec, max_model_len, options)
        if spec.head is not None:
            tied = self.model.embed_tokens if spec.is_head_tied else None
            self.lm_head = ParallelLMHead(spec.head, options, tied)

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """input_ids, positions int64 [T] → hidden states [T, H]; writes the KV cache."""
        return self.model(input_ids, positions, ctx)  # type: ignore[no-any-return]

    def attend(
        self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext, num_before: int
    ) -> tuple[Tensor, Tensor]:
        """The part of `forward` where tokens depend on each other: to the last layer's attention.

        Returns the residual before that layer [T, H], and what its heads found [T, Hq · D].
        num_before: layers that are computed before it, fewer than all in a warm-up.
        """
        return self.model.attend(input_ids, positions, ctx, num_before)

    def finish(self, residual: Tensor, heads: Tensor) -> Tensor:
        """Rows [S, H] and [S, Hq · D] of what `attend` returned → hidden states [S, H].

        May write over the residual.
        """
        return self.model.finish(residual, heads)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [S, H] → logits [S, V]. Only for checkpoints with a head.

        In float32 with a soft cap, else in hidden's data type.
        """
        logits: Tensor = self.lm_head(hidden)
        cap = self.spec.logit_soft_cap
        return logits if cap is None else soft_capped(logits.float(), cap)
