"""Qwen3 (dense): Llama with each head's query and key normalised before RoPE. No torch."""

from __future__ import annotations

from quire.models.families.family import Family, upper_layer_windows
from quire.models.families.qwen2 import QWEN_DEFAULTS

QWEN3 = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM", "Qwen3Model"),
    defaults=QWEN_DEFAULTS | {"head_dim": 128},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    head_norms=True,
    windows=upper_layer_windows,
)
