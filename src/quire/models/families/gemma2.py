"""Gemma 2: norms before and after each part, soft caps, GELU, every second layer with a window.

No torch.
"""

from __future__ import annotations

from quire.config_file import ConfigFile
from quire.models.families.family import (
    LLAMA_DEFAULTS,
    Family,
    NormNames,
    Windows,
    listed_windows,
    read_window,
)


def _windows(config: ConfigFile, num_layers: int) -> Windows:
    """Windows by `layer_types`; without it, in the first layer and every second one."""
    window = read_window(config)
    every_second = tuple(None if i % 2 else window for i in range(num_layers))
    return listed_windows(config, window, every_second)


GEMMA2 = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM", "Gemma2Model"),
    defaults=LLAMA_DEFAULTS
    | {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    windows=_windows,
    norm_names=NormNames(
        post_attention="post_attention_layernorm",
        pre_mlp="pre_feedforward_layernorm",
        post_mlp="post_feedforward_layernorm",
    ),
    norms_add_one=True,
    activation_key="hidden_activation",
    activations=(("gelu_pytorch_tanh", "gelu_tanh"),),
    is_embedding_scaled=True,
    attention_scale_key="query_pre_attn_scalar",
    attention_soft_cap_key="attn_logit_softcapping",
    logit_soft_cap_key="final_logit_softcapping",
)
