"""Qwen2 and Qwen2.5: Llama with biases on query, key and value, and windows in upper layers."""

from __future__ import annotations

from quire.models.families.family import LLAMA_DEFAULTS, Family, upper_layer_windows

QWEN_DEFAULTS = LLAMA_DEFAULTS | {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
QWEN2 = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM", "Qwen2Model"),
    defaults=QWEN_DEFAULTS,
    qkv_bias=True,
    windows=upper_layer_windows,
)
