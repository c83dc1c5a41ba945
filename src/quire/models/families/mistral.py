"""Mistral: Llama with a sliding window in every layer. No torch."""

from __future__ import annotations

from quire.models.families.family import LLAMA_DEFAULTS, Family, read_window

MISTRAL = Family(
    name="mistral",
    architectures=("MistralForCausalLM", "MistralModel"),
    defaults=LLAMA_DEFAULTS
    | {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    windows=lambda config, num_layers: (read_window(config),) * num_layers,
)
