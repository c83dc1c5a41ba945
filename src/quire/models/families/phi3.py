"""Phi-3: Llama with a window in every layer, whose checkpoints hold fused weights. No torch."""

from __future__ import annotations

from quire.models.families.family import LLAMA_DEFAULTS, Family, read_window

PHI3 = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    defaults=LLAMA_DEFAULTS
    | {
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
    },
    has_fused_weights=True,
    has_partial_rotary=True,
    rope_kinds={"su": "longrope", "yarn": "longrope"},  # as early files have it
    windows=lambda config, num_layers: (read_window(config),) * num_layers,
)
