"""Qwen3 (dense): Llama with each head's query and key normalised before RoPE. No torch."""

from __future__ import annotations

from quire.models.families.family import Family, upper_layer_windows

QWEN3 = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM", "Qwen3Model"),
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    head_norms=True,
    windows=upper_layer_windows,
)
