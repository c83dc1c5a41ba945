"""A model family: how its decoders differ from Llama, as a table of facts. No torch.

The defaults are Llama's. registry.py has the families' tables, or lists files that have them; the
modules for all of them are in llama.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from quire.config_file import ConfigFile
from quire.core.layer_spec import Activation

Windows = tuple[int | None, ...]

# Whether there are biases: always or never, or the key of config.json that says so.
BiasRule = bool | str


# What transformers takes for keys that config.json lacks. None: none, or from the other sizes.
LLAMA_DEFAULTS: MappingProxyType[str, Any] = MappingProxyType(
    {
        "num_key_value_heads": None,
        "head_dim": None,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    }
)


def read_window(config: ConfigFile) -> int | None:
    """The sliding window; a null means none."""
    window = config.get_nullable("sliding_window")
    return None if window is None else config.integer("sliding_window")


def no_windows(_: ConfigFile, num_layers: int) -> Windows:
    """No sliding window: every query sees all tokens, in every layer."""
    return (None,) * num_layers


def listed_windows(config: ConfigFile, window: int | None, usual: Windows) -> Windows:
    """The windows by `layer_types`; the usual ones without that key. Raises CheckpointError."""
    types, num_layers = config.get("layer_types"), len(usual)
    if types is None:
        return usual
    known = {"sliding_attention": window, "full_attention": None}
    listed = isinstance(types, list) and all(isinstance(kind, str) for kind in types)
    if not listed or len(types) != num_layers or not set(types) <= set(known):
        raise config.wrong("layer_types", f"must list {num_layers} times one of {', '.join(known)}")
    return tuple(known[kind] for kind in types)


class ExpertSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a layer's mixture of experts, see `MoESpec`. intermediate_size: of one expert."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    renormalize: bool


def no_experts(_: ConfigFile, num_layers: int) -> tuple[ExpertSizes | None, ...]:
    """Every layer has one dense MLP."""
    return (None,) * num_layers


class NormNames(msgspec.Struct, frozen=True, kw_only=True):
    """Modules of a layer's norms in checkpoints; None where there is no such norm."""

    pre_attention: str = "input_layernorm"
    post_attention: str | None = None
    pre_mlp: str = "post_attention_layernorm"
    post_mlp: str | None = None


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a family that its config files do not say, or say under keys of their own.

    defaults: values of keys that config.json lacks, as those of its class in transformers.
    Sizes of weights that all families have must be there. architectures: classes named in
    config.json; those that do not end in "ForCausalLM" have no head, so they make embeddings
    and draw no tokens. windows: reads the window of each layer; experts: the sizes of each
    layer's mixture of experts, None where its MLP is dense. head_norms: queries and keys are
    normalised by head. has_fused_weights: checkpoints hold qkv_proj and gate_up_proj as one
    weight each. has_partial_rotary: a part of each head's dimensions may be rotated.
    rope_kinds: its own names of kinds of RoPE scaling, and their usual ones.
    activations: by their names in config.json. The keys of attention_scale (its value's inverse
    square root) and of soft caps are None where a family has no such key.
    """

    name: str
    architectures: tuple[str, ...]
    defaults: Mapping[str, Any] = LLAMA_DEFAULTS
    qkv_bias: BiasRule = False
    output_bias: BiasRule = False
    mlp_bias: BiasRule = False
    head_norms: bool = False
    has_fused_weights: bool = False
    has_partial_rotary: bool = False
    rope_kinds: Mapping[str, str] = MappingProxyType({})
    windows: Callable[[ConfigFile, int], Windows] = no_windows
    experts: Callable[[ConfigFile, int], tuple[ExpertSizes | None, ...]] = no_experts
    norm_names: NormNames = NormNames()
    norms_add_one: bool = False
    activation_key: str = "hidden_act"
    activations: tuple[tuple[str, Activation], ...] = (("silu", "silu"),)
    is_embedding_scaled: bool = False
    attention_scale_key: str | None = None
    attention_soft_cap_key: str | None = None
    logit_soft_cap_key: str | None = None
