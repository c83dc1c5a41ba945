"""Phi-3: Llama with a window in every layer, whose checkpoints hold fused weights. No torch."""

from __future__ import annotations

from quire.models.checkpoints.config_file import ConfigFile
from quire.models.families.family import Family, Windows, no_windows


def _windows(config: ConfigFile, num_layers: int) -> Windows:
    if config.get("sliding_window") is None:
        return no_windows(config, num_layers)
    return (config.integer("sliding_window"),) * num_layers


PHI3 = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    has_fused_weights=True,
    rms_norm_eps=1e-5,
    windows=_windows,
)
