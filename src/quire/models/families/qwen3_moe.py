"""Qwen3 with a mixture of experts in place of the MLP, in all layers or in some. No torch."""

from __future__ import annotations

from msgspec.structs import replace

from quire.models.checkpoints.config_file import ConfigFile
from quire.models.families.family import ExpertSizes, Windows, read_window
from quire.models.families.qwen2 import QWEN_DEFAULTS
from quire.models.families.qwen3 import QWEN3

_MOST_EXPERTS = 2**16  # of all layers; the largest Qwen3 has 12,032


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


def _windows(config: ConfigFile, num_layers: int) -> Windows:
    """A switch, then one window for all layers."""
    uses_window = config.boolean("use_sliding_window")
    return (read_window(config) if uses_window else None,) * num_layers


QWEN3_MOE = replace(
    QWEN3,
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    defaults=QWEN_DEFAULTS
    | {"num_key_value_heads": 4, "norm_topk_prob": False, "decoder_sparse_step": 1},
    windows=_windows,
    experts=_experts,
)
