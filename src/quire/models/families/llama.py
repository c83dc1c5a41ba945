"""Llama 2, 3, 3.1, 3.2 and Mistral: the decoder that the other families vary.

What differs without changing the story (biases, windows, rope scaling) comes from the architecture;
a family with another story overrides one module class or the weight table.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from quire.kernels.operands import AttentionParams, HeadNorms, ResidualState
from quire.layers.attention_layer import Attention, Rope
from quire.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from quire.layers.forward_context import ForwardContext
from quire.layers.linear_layers import GateUpParallelLinear, QKVParallelLinear, RowParallelLinear
from quire.layers.norm import RMSNorm
from quire.layers.parameter import LayerOptions
from quire.layers.rope import RotaryEmbedding
from quire.models.config.model_config import ModelConfig


class LlamaAttention(nn.Module):
    """Project to heads that are turned, attend, project back."""

    def __init__(self, model_config: ModelConfig, layer_id: int, options: LayerOptions) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(
            model_config.hidden_size,
            model_config.head_dim,
            model_config.num_heads,
            model_config.num_kv_heads,
            options,
            bias=model_config.qkv_bias,
        )
        self.o_proj = RowParallelLinear(
            model_config.num_heads * model_config.head_dim,
            model_config.hidden_size,
            options,
            bias=model_config.output_bias,
        )
        params = AttentionParams(
            model_config.head_dim**-0.5, model_config.sliding_windows[layer_id]
        )
        self.attn = Attention(layer_id, model_config.head_dim, params, options)

    def forward(
        self, stream: ResidualState, following: RMSNorm, rope: Rope, ctx: ForwardContext
    ) -> ResidualState:
        """Add to the residual stream [T, H], which then goes to the following norm."""
        query = self.qkv_proj.turned(stream, self.attn.turning(self.head_norms(), rope, ctx))
        out = self.attn.forward(query, ctx)
        return self.o_proj.add(out, stream, following)

    def head_norms(self) -> HeadNorms | None:
        """Norms of each query's and key's dimensions, where a family has them."""
        return None


class LlamaMLP(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, model_config: ModelConfig, options: LayerOptions) -> None:
        super().__init__()
        self.gate_up_proj = GateUpParallelLinear(
            model_config.hidden_size,
            model_config.intermediate_size,
            options,
            bias=model_config.mlp_bias,
        )
        self.down_proj = RowParallelLinear(
            model_config.intermediate_size,
            model_config.hidden_size,
            options,
            bias=model_config.mlp_bias,
        )

    def forward(self, stream: ResidualState, following: RMSNorm) -> ResidualState:
        """Add to the residual stream [T, H], which then goes to the following norm."""
        return self.down_proj.add(self.gate_up_proj.silu(stream), stream, following)


class LlamaDecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and adding to the residual stream."""

    attention_class: ClassVar[type[LlamaAttention]] = LlamaAttention

    def __init__(self, model_config: ModelConfig, layer_id: int, options: LayerOptions) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(model_config.hidden_size, model_config.rms_norm_eps, options)
        self.self_attn = self.attention_class(model_config, layer_id, options)
        self.post_attention_layernorm = RMSNorm(
            model_config.hidden_size, model_config.rms_norm_eps, options
        )
        self.mlp = LlamaMLP(model_config, options)

    def forward(
        self, stream: ResidualState, following: RMSNorm, rope: Rope, ctx: ForwardContext
    ) -> ResidualState:
        """The residual stream behind this layer's first norm → behind the following layer's."""
        stream = self.self_attn.forward(stream, self.post_attention_layernorm, rope, ctx)
        return self.mlp.forward(stream, following)


class LlamaModel(nn.Module):
    """Token ids to the last hidden states."""

    def __init__(
        self,
        model_config: ModelConfig,
        max_model_len: int,
        options: LayerOptions,
        layer_class: type[LlamaDecoderLayer],
    ) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            model_config.vocab_size, model_config.hidden_size, options
        )
        self.rotary = RotaryEmbedding(model_config.rope, max_model_len, options)
        layers = [
            layer_class(model_config, layer_id, options)
            for layer_id in range(model_config.num_layers)
        ]
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(model_config.hidden_size, model_config.rms_norm_eps, options)
        self.norms = [*(layer.input_layernorm for layer in layers), self.norm]
        self.path = list(zip(layers, self.norms[1:], strict=True))

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """input_ids, positions int64 [T] → [T, H], through as many layers as have a cache."""
        ctx.layout.forget()
        rope = self.rotary(positions)
        stream = self.norms[0].begin(self.embed_tokens(input_ids))
        for (layer, following), _ in zip(self.path, ctx.kv, strict=False):
            ctx.heartbeat()
            stream = layer.forward(stream, following, rope, ctx)  # no hooks are looked for
        return self.norm.finish(stream)


class LlamaForCausalLM(nn.Module):
    """The model with its head, where the checkpoint has one.

    packed_modules: name here → the names in checkpoints, and which part of it each is.
    """

    layer_class: ClassVar[type[LlamaDecoderLayer]] = LlamaDecoderLayer
    packed_modules: ClassVar[dict[str, dict[str, str]]] = {
        "qkv_proj": {"q_proj": "q", "k_proj": "k", "v_proj": "v"},
        "gate_up_proj": {"gate_proj": "gate", "up_proj": "up"},
    }

    def __init__(
        self, model_config: ModelConfig, max_model_len: int, options: LayerOptions
    ) -> None:
        super().__init__()
        self.model = LlamaModel(model_config, max_model_len, options, self.layer_class)
        if model_config.has_head:
            tied = self.model.embed_tokens if model_config.tie_word_embeddings else None
            self.lm_head = ParallelLMHead(
                model_config.vocab_size, model_config.hidden_size, options, tied
            )

    @property
    def attention_params(self) -> list[AttentionParams]:
        """Of each layer, in order."""
        return [layer.self_attn.attn.params for layer, _ in self.model.path]

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """input_ids, positions int64 [T] → hidden states [T, H]."""
        return self.model(input_ids, positions, ctx)  # type: ignore[no-any-return]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [S, H] → [S, V], in the type of the products. Only for checkpoints with a head."""
        return self.lm_head(hidden)  # type: ignore[no-any-return]
