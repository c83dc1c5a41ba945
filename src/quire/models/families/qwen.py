"""Qwen: Llama with biases on query, key and value, or each head's normalised; windows. No torch.

Qwen3-MoE has a mixture of experts in place of the MLP, in all layers or in some.
"""

from __future__ import annotations

from msgspec.structs import replace

from quire.config_file import ConfigFile
from quire.models.families.family import (
    LLAMA_DEFAULTS,
    ExpertSizes,
    Family,
    Windows,
    listed_windows,
    no_windows,
    read_window,
)

_MOST_EXPERTS = 2**16  # of all layers; the largest Qwen3 has 12,032


def _upper_windows(config: ConfigFile, num_layers: int) -> Windows:
    """Qwen's rule: a switch, then a window by `layer_types` or from `max_window_layers` on."""
    if not config.boolean("use_sliding_window"):
        return no_windows(config, num_layers)
    window, first = read_window(config), config.integer("max_window_layers", low=0)
    upper = tuple(window if i >= first else None for i in range(num_layers))
    return listed_windows(config, window, upper)


def _switched_window(config: ConfigFile, num_layers: int) -> Windows:
    """A switch, then one window for all layers."""
    uses_window = config.boolean("use_sliding_window")
    return (read_window(config) if uses_window else None,) * num_layers


def _experts(config: ConfigFile, num_layers: int) -> tuple[ExpertSizes | None, ...]:
    """Experts in every `decoder_sparse_step`-th layer that `mlp_only_layers` does not list."""
    key = "num_local_experts" if "num_local_experts" in config.values else "num_experts"
    # transformers 5 writes num_local_experts; all are described before weights are looked at
    num_experts = config.integer(key, high=_MOST_EXPERTS // num_layers)
    sizes = ExpertSizes(
        num_experts=num_experts,
        experts_per_token=config.integer("num_experts_per_tok", high=num_experts),
        intermediate_size=config.integer("moe_intermediate_size", high=2**22),
        renormalize=config.boolean("norm_topk_prob"),
    )
    step = config.integer("decoder_sparse_step")
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise config.wrong("mlp_only_layers", "must be a list of layers' numbers, or empty")
    return tuple(None if i in dense or (i + 1) % step else sizes for i in range(num_layers))


_DEFAULTS = LLAMA_DEFAULTS | {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
QWEN2 = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM", "Qwen2Model"),
    defaults=_DEFAULTS,
    qkv_bias=True,
    windows=_upper_windows,
)
QWEN3 = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM", "Qwen3Model"),
    defaults=_DEFAULTS | {"head_dim": 128},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    head_norms=True,
    windows=_upper_windows,
)
QWEN3_MOE = replace(
    QWEN3,
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    defaults=_DEFAULTS
    | {"num_key_value_heads": 4, "norm_topk_prob": False, "decoder_sparse_step": 1},
    windows=_switched_window,
    experts=_experts,
)
