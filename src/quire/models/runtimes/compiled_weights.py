"""A decoder's weights as compiled calls take them, found by the names that modules give them.

Owns what has to hold for a model to be run by compiled code alone; compiled_decoder.py runs it. No
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.array_types import Array
from quire.kernels.cpu.array_ops import BLOCK, DTYPES, address
from quire.kernels.cpu.native_structs import LayerArgs, LinearWeightArgs
from quire.kernels.operands import PackedWeight
from quire.models.config.model_config import ModelConfig
from quire.models.prepared.prepared_reader import StoredArrays
from quire.quantization.stored_weight import restore

_MOST_DIMS = 256  # of a head, a multiple of
_DIMS = 16

Arrays = Mapping[str, Array]


class UnsupportedModelError(Exception):
    """Compiled code does not run a model; says why."""


@dataclass(frozen=True, slots=True)
class CompiledWeights:
    """What a forward pass reads. kept: the memory that `layers` points to."""

    embedding: Array | PackedWeight  # [V, H]
    layers: tuple[LayerArgs, ...]  # without caches
    norms: tuple[Array, ...]  # [H], before each layer and behind the last
    head: PackedWeight | None
    inv_freq: Array  # float32 [R / 2]
    kept: Arrays


def find_weights(
    model_config: ModelConfig, stored: StoredArrays, block_size: int
) -> CompiledWeights:
    """The weights of a model, from its stored arrays. Raises UnsupportedModelError."""
    arrays = stored.arrays
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
        embedding=_embedding(stored),
        layers=tuple(_layer(model_config, stored, i) for i in range(model_config.num_layers)),
        norms=norms,
        head=_packed("lm_head", stored) if model_config.has_head else None,
        inv_freq=_found("model.rotary.inv_freq", arrays),
        kept=arrays,
    )


def _found(name: str, arrays: Arrays) -> Array:
    if name not in arrays:
        raise UnsupportedModelError(f"there is no {name}")
    return arrays[name]


def _embedding(stored: StoredArrays) -> Array | PackedWeight:
    """The table of the embedding, or a tied head's weight, in which rows are found, too."""
    own = stored.arrays.get("model.embed_tokens.weight")
    return _packed("lm_head", stored) if own is None else own


def _layer(model_config: ModelConfig, stored: StoredArrays, index: int) -> LayerArgs:
    prefix = f"model.layers.{index}."

    def place(name: str) -> int | None:
        array = stored.arrays.get(f"{prefix}{name}.weight")
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
    args.qkv = _linear(f"{prefix}self_attn.qkv_proj", stored)
    args.o = _linear(f"{prefix}self_attn.o_proj", stored)
    args.gate_up = _linear(f"{prefix}mlp.gate_up_proj", stored)
    args.down = _linear(f"{prefix}mlp.down_proj", stored)
    if args.gate_up.outputs % (2 * BLOCK):
        raise UnsupportedModelError("gate and up rows that are not interleaved")
    return args


def _linear(name: str, stored: StoredArrays) -> LinearWeightArgs:
    weight, bias = _packed(name, stored), stored.arrays.get(f"{name}.bias")
    return LinearWeightArgs(
        address(weight.packed),
        None if bias is None else address(bias),
        weight.outputs,
        weight.group,
        weight.format,
    )


def _packed(name: str, stored: StoredArrays) -> PackedWeight:
    """A linear layer's weight by its module's name; its format is stored beside it."""
    try:
        tensors = {"packed": stored.arrays[f"{name}.packed"]}
        weight = restore(stored.formats[name], tensors)
    except LookupError as error:
        raise UnsupportedModelError(f"{name} is not packed") from error
    assert isinstance(weight, PackedWeight)
    return weight
