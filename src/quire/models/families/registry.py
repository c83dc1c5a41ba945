"""The families of decoders, by name, and the class names of config.json that mean them. No torch.

Every family is computed by the modules of llama.py, from the description of its layers. To add a
family: a table of facts here, or in a file of its own with what it reads (docs/models.md).
"""

from __future__ import annotations

from quire.config_file import ConfigFile
from quire.models.families.family import LLAMA_DEFAULTS, Family, Windows, read_window
from quire.models.families.gemma2 import GEMMA2
from quire.models.families.qwen import QWEN2, QWEN3, QWEN3_MOE


def _one_window(config: ConfigFile, num_layers: int) -> Windows:
    """One sliding window for all layers."""
    return (read_window(config),) * num_layers


LLAMA = Family(
    name="llama",
    architectures=("LlamaForCausalLM", "LlamaModel"),
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
)
MISTRAL = Family(
    name="mistral",
    architectures=("MistralForCausalLM", "MistralModel"),
    defaults=LLAMA_DEFAULTS
    | {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    windows=_one_window,
)
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
    windows=_one_window,
)
FAMILIES = {
    family.name: family for family in (LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, PHI3, GEMMA2)
}

# class named in config.json → family
ARCHITECTURES = {
    architecture: family for family in FAMILIES.values() for architecture in family.architectures
}
