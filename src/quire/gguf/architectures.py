"""Architectures of GGUF files: names, and how tensors were changed for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture (general.architecture) and its class in config.json.

    parts: names of tensors that differ from Llama's. interleaves_rope: rows of queries and keys
    are in the order of interleaved RoPE. adds_one: weights of norms are stored plus 1.
    """

    model_class: str
    parts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    interleaves_rope: bool = False
    adds_one: bool = False


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", interleaves_rope=True),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "phi3": Architecture("Phi3ForCausalLM", {"ffn_up": "mlp.gate_up_proj"}),
    "gemma2": Architecture(
        "Gemma2ForCausalLM",
        {
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        adds_one=True,
    ),
}
