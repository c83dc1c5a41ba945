"""Phi-3: Llama with a window in every layer, whose checkpoints hold fused weights. No torch."""

from __future__ import annotations

from quire.models.families.family import Family, read_window

PHI3 = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    has_fused_weights=True,
    rms_norm_eps=1e-5,
    windows=lambda config, num_layers: (read_window(config, default=None),) * num_layers,
)
