"""Qwen3 (dense): Llama with each head's query and key normalised before they are turned."""

from __future__ import annotations

from torch import Tensor

from quire.layers.norm import RMSNorm
from quire.layers.parameter import LayerOptions
from quire.models.architecture import ModelArchitecture
from quire.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, Rope


class Qwen3Attention(LlamaAttention):
    """Attention with a norm over each head's dimensions."""

    def __init__(self, shape: ModelArchitecture, layer_id: int, options: LayerOptions) -> None:
        super().__init__(shape, layer_id, options)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps, options)
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps, options)

    def turn(self, heads: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Normalise each head, then apply the rotary embedding."""
        query, key = heads[:, : self.num_heads], heads[:, self.num_heads :]
        return (
            self.kernels.rotary(self.q_norm(query), *rope),
            self.kernels.rotary(self.k_norm(key), *rope),
        )


class Qwen3DecoderLayer(LlamaDecoderLayer):
    """Llama's layer with Qwen3's attention."""

    attention_class = Qwen3Attention


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Qwen3 with its head."""

    layer_class = Qwen3DecoderLayer
