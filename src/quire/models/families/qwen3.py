"""Qwen3 (dense): Llama with each head's query and key normalised before they are turned."""

from __future__ import annotations

from quire.kernels.operands import HeadNorms
from quire.layers.norm import RMSNorm
from quire.layers.parameter import LayerOptions
from quire.models.config.model_config import ModelConfig
from quire.models.families.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM


class Qwen3Attention(LlamaAttention):
    """Attention with a norm over each head's dimensions."""

    def __init__(self, model_config: ModelConfig, layer_id: int, options: LayerOptions) -> None:
        super().__init__(model_config, layer_id, options)
        self.q_norm = RMSNorm(model_config.head_dim, model_config.rms_norm_eps, options)
        self.k_norm = RMSNorm(model_config.head_dim, model_config.rms_norm_eps, options)

    def head_norms(self) -> HeadNorms:
        """Of this layer."""
        return HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)


class Qwen3DecoderLayer(LlamaDecoderLayer):
    """Llama's layer with Qwen3's attention."""

    attention_class = Qwen3Attention


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Qwen3 with its head."""

    layer_class = Qwen3DecoderLayer
