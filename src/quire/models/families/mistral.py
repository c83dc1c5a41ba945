"""Mistral: Llama with a sliding window in every layer. No torch."""

from __future__ import annotations

from quire.models.families.family import Family, read_window

MISTRAL = Family(
    name="mistral",
    architectures=("MistralForCausalLM", "MistralModel"),
    windows=lambda config, num_layers: (read_window(config),) * num_layers,
)
