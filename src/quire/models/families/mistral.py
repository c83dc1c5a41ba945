"""Mistral: Llama with a sliding window in every layer. No torch."""

from __future__ import annotations

from quire.models.checkpoints.config_file import ConfigFile
from quire.models.families.family import Family, Windows, no_windows


def _windows(config: ConfigFile, num_layers: int) -> Windows:
    """A file without the key means the first Mistral, with its window; a null means no window."""
    if "sliding_window" in config.values and config.get("sliding_window") is None:
        return no_windows(config, num_layers)
    return (config.integer("sliding_window", 4096),) * num_layers


MISTRAL = Family(
    name="mistral", architectures=("MistralForCausalLM", "MistralModel"), windows=_windows
)
