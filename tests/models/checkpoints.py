"""Tiny random checkpoints of every family, written by transformers, which is the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

SMALL = {
    "vocab_size": 509,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # large, so that attention is sharp and errors show
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# small, so that they bend these models' scores; only this way of transformers computes them
SOFT_CAPS = {
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 8.0,
    "attn_implementation": "eager",
}
WHOLE = {"vocab_size": 512}  # blocks of a head's rows, which others are padded to on a CPU


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


_HALF = [1.0 + 0.1 * i for i in range(4)]

# name → (family of transformers classes, what differs from SMALL)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama_llama3": (
        "Llama",
        _rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "llama_linear": ("Llama", _rope("linear", factor=4.0)),
    "llama_dynamic": ("Llama", _rope("dynamic", factor=2.0)),
    "llama_dynamic_short": (
        "Llama",
        {"max_position_embeddings": 64, **_rope("dynamic", factor=2.0)},
    ),
    "llama_yarn": ("Llama", _rope("yarn", factor=8.0, original_max_position_embeddings=64)),
    "llama_yarn_mscale": (
        "Llama",
        _rope(
            "yarn",
            factor=8.0,
            original_max_position_embeddings=64,
            mscale=0.7,
            mscale_all_dim=1.3,
            beta_fast=16.0,
            beta_slow=2.0,
            truncate=False,
        ),
    ),
    "llama_biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_biased_d16": (
        "Llama",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "hidden_size": 96,
            "intermediate_size": 96,
            "head_dim": 16,
        },
    ),
    "llama_yarn_d16": (
        "Llama",
        {"head_dim": 16, **_rope("yarn", factor=8.0, original_max_position_embeddings=64)},
    ),
    "llama_tied_mha": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 6}),
    "llama_mqa_d80": (
        "Llama",
        {"num_key_value_heads": 1, "head_dim": 80, "tie_word_embeddings": True},
    ),
    "llama_d96": (
        "Llama",
        {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 96},
    ),
    "mistral": ("Mistral", {"sliding_window": 33, "head_dim": 20}),
    "mistral_no_window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2_windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 17, "max_window_layers": 1},
    ),
    "qwen2_tied": ("Qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 2}),
    "qwen3": ("Qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
    "qwen3_windows": (
        "Qwen3",
        {
            **WHOLE,
            "head_dim": 16,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 21,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {"head_dim": 24, "num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True}
        | {"moe_intermediate_size": 36, "use_sliding_window": True, "sliding_window": 21},
    ),
    "qwen3_moe_mixed": (
        "Qwen3Moe",
        {**WHOLE, "hidden_size": 96, "intermediate_size": 96, "head_dim": 16, "num_experts": 7}
        | {"num_experts_per_tok": 3, "moe_intermediate_size": 64, "mlp_only_layers": [0]},
    ),
    "gemma2": (
        "Gemma2",
        {"head_dim": 24, "sliding_window": 29, "query_pre_attn_scalar": 20, **SOFT_CAPS},
    ),
    "gemma2_d16": (
        "Gemma2",
        {**WHOLE, "hidden_size": 96, "intermediate_size": 96, "head_dim": 16, "sliding_window": 21}
        | {"query_pre_attn_scalar": 16, "layer_types": ["full_attention", "sliding_attention"]}
        | SOFT_CAPS,
    ),
    "gemma2_d256": (
        "Gemma2",
        {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 256, **SOFT_CAPS},
    ),
    "phi3": ("Phi3", {"sliding_window": 40}),
    "phi3_partial": (
        "Phi3",
        {**WHOLE, "num_attention_heads": 3, **_rope("default", partial_rotary_factor=0.75)},
    ),
    "phi3_longrope": (
        "Phi3",
        {
            "original_max_position_embeddings": 64,
            **_rope("longrope", short_factor=_HALF, long_factor=[3 * f for f in _HALF]),
        },
    ),
}


def write_checkpoint(name: str, folder: Path) -> transformers.PreTrainedModel:
    """Save the named checkpoint; returns the model of transformers that it was saved from."""
    family, changes = CASES[name]
    config = getattr(transformers, f"{family}Config")(**(SMALL | changes))
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    mean = -0.5 if family.startswith("Gemma") else 0.5  # its norms add one
    for parameter in model.parameters():  # biases and norms that do something
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=mean, std=0.3)
    model.save_pretrained(folder)
    return model
