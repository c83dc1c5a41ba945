"""Qwen2 and Qwen2.5: Llama with biases on query, key and value, and windows in upper layers."""

from __future__ import annotations

from quire.models.families.family import Family, upper_layer_windows

QWEN2 = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM", "Qwen2Model"),
    qkv_bias=True,
    windows=upper_layer_windows,
)
