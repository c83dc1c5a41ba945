"""A decoder's weights as compiled calls take them, found by the names that modules give them.

Owns what has to hold for a model to be run by compiled code alone; compiled_decoder.py runs it. No
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quire.array_types import Array
from quire.kernels.cpu.array_ops import BLOCK, DTYPES, PackedWeight, address
from quire.kernels.cpu.native_structs import (
    BFLOAT16,
    FLOAT32,
    INT4_SPREAD,
    INT8,
    LayerArgs,
    ProductArgs,
)
from quire.models.config.model_config import ModelConfig
from quire.quantization.scheme import INT4_GROUP

_MOST_DIMS = 256  # of a head, a multiple of
_DIMS = 16

Arrays = Mapping[str, Array]


class UnsupportedModelError(Exception):
    """Compiled code does not run a model; says why."""


@dataclass(frozen=True, slots=True)
class CompiledWeights:
    """What a forward pass reads. kept: the memory that `layers` points to."""

    embedding: Array  # [V, H], or packed
    layers: tuple[LayerArgs, ...]  # without caches
    norms: tuple[Array, ...]  # [H], before each layer and behind the last
    head: PackedWeight | None
    inv_freq: Array  # float32 [R / 2]
    kept: Arrays


def find_weights(model_config: ModelConfig, arrays: Arrays, block_size: int) -> CompiledWeights:
    """arrays: as a model keeps its tensors, by name. Raises UnsupportedModelError."""
    if model_config.rope.kind == "dynamic":
        raise UnsupportedModelError("angles that depend on a sequence's length")
    if (
        model_config.head_dim % _DIMS
        or model_config.head_dim > _MOST_DIMS
        or block_size & (block_size - 1)
    ):
        raise UnsupportedModelError(f"heads of {model_config.head_dim} in blocks of {block_size}")
    names = [f"model.layers.{i}.input_layernorm.weight" for i in range(model_config.num_layers)]
    norms = tuple(_found(name, arrays) for name in (*names, "model.norm.weight"))
    if norms[0].dtype not in DTYPES:
        raise UnsupportedModelError(f"activations of {norms[0].dtype}")
    return CompiledWeights(
        embedding=_found(_embedding_name(arrays), arrays),
        layers=tuple(_layer(model_config, arrays, i) for i in range(model_config.num_layers)),
        norms=norms,
        head=_packed("lm_head", arrays) if model_config.has_head else None,
        inv_freq=_found("model.rotary.inv_freq", arrays),
        kept=arrays,
    )


def _found(name: str, arrays: Arrays) -> Array:
    if name not in arrays:
        raise UnsupportedModelError(f"there is no {name}")
    return arrays[name]


def _embedding_name(arrays: Arrays) -> str:
    """A tied head's weight serves look-ups, too, where rows can be found in it."""
    own = "model.embed_tokens.weight"
    return own if own in arrays else "lm_head.weight"


def _layer(model_config: ModelConfig, arrays: Arrays, index: int) -> LayerArgs:
    prefix = f"model.layers.{index}."

    def place(name: str) -> int | None:
        array = arrays.get(f"{prefix}{name}.weight")
        return None if array is None else address(array)

    args = LayerArgs(
        norm=place("input_layernorm"),
        mlp_norm=place("post_attention_layernorm"),
        query_norm=place("self_attn.q_norm"),
        key_norm=place("self_attn.k_norm"),
        eps=model_config.rms_norm_eps,
        head_eps=model_config.rms_norm_eps,
        scale=model_config.head_dim**-0.5,
        window=model_config.sliding_windows[index] or 0,
    )
    args.qkv = _product(f"{prefix}self_attn.qkv_proj", arrays)
    args.o = _product(f"{prefix}self_attn.o_proj", arrays)
    args.gate_up = _product(f"{prefix}mlp.gate_up_proj", arrays)
    args.down = _product(f"{prefix}mlp.down_proj", arrays)
    if args.gate_up.outputs % (2 * BLOCK):
        raise UnsupportedModelError("gate and up rows that do not come by turns")
    return args


def _product(name: str, arrays: Arrays) -> ProductArgs:
    weight, bias = _packed(name, arrays), arrays.get(f"{name}.bias")
    return ProductArgs(
        address(weight.packed),
        None if bias is None else address(bias),
        weight.outputs,
        weight.group,
        weight.form,
    )


def _packed(name: str, arrays: Arrays) -> PackedWeight:
    """A weight by its module's name; its form is told by its type and its dimensions."""
    codes, scale = arrays.get(f"{name}.codes"), arrays.get(f"{name}.scale")
    if codes is not None and scale is not None:
        if codes.dtype != np.uint8 or scale.ndim != 2 or scale.shape[1]:
            raise UnsupportedModelError(f"{name} is not packed")
        if scale.dtype == np.float16:
            return PackedWeight(codes, len(scale), INT4_GROUP, INT4_SPREAD)
        return PackedWeight(codes, len(scale), 0, INT8)
    weight = arrays.get(f"{name}.weight")
    forms = {(np.dtype(np.float32), 3): FLOAT32, (np.dtype(np.uint16), 4): BFLOAT16}
    form = None if weight is None else forms.get((weight.dtype, weight.ndim))
    if weight is None or form is None:
        raise UnsupportedModelError(f"{name} is not packed")
    return PackedWeight(weight, len(weight) * BLOCK, 0, form)
