"""A decoder's weights for compiled calls, found by the description of its layers. No torch.

Owns what has to hold for a model to be run by compiled code alone; compiled_decoder.py runs it.
Anything else is refused by name: a feature of a layer, a size, or a tensor that nothing reads.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from quire.array_types import Array
from quire.core.layer_spec import (
    AttentionSpec,
    LayerSpec,
    LinearSpec,
    ModelSpec,
    NormSpec,
    UnsupportedModelError,
    check_features,
    layer_module,
)
from quire.kernels.cpu.array_ops import ARRAY_DTYPES, address
from quire.kernels.cpu.native_structs import Epilogue, LayerArgs, LinearWeightArgs, serves_heads
from quire.kernels.formats.native_format import BLOCK
from quire.kernels.formats.table import FORMATS
from quire.kernels.operands import PackedWeight, QuantizedWeight
from quire.layers.rope_scale import ROPE_FEATURES
from quire.models.prepared.prepared_reader import StoredArrays
from quire.quantization.stored_weight import restore, tensors_of

COMPUTED = frozenset(
    {
        "LinearSpec.bias",
        "LinearSpec.parts",
        "LinearSpec.is_fused_on_disk",
        "AttentionSpec.window",
        "AttentionSpec.query_norm",
        "AttentionSpec.key_norm",
        "AttentionSpec.soft_cap",
        "MLPSpec.activation",
        "LayerSpec.post_attention_norm",
        "LayerSpec.post_mlp_norm",
        "NormSpec.adds_one",  # the stored weight has it already
        "EmbeddingSpec.scale",
        "ModelSpec.logit_soft_cap",
        *ROPE_FEATURES,
    }
)
_EPILOGUES = {"silu": Epilogue.SILU, "gelu_tanh": Epilogue.GELU}


class CompiledWeights(msgspec.Struct, frozen=True):
    """The weights that a forward pass reads. memory: the arrays that `layers` points into."""

    embedding: Array | PackedWeight  # [V, H]
    layers: tuple[LayerArgs, ...]  # without caches
    norms: tuple[Array, ...]  # [H], before each layer and after the last
    head: PackedWeight | None
    inv_freq: Array  # float32 [R / 2]
    memory: Mapping[str, Array]


def find_weights(spec: ModelSpec, stored: StoredArrays, block_size: int) -> CompiledWeights:
    """The weights of a model, from its stored arrays. Raises UnsupportedModelError."""
    check_features(spec, COMPUTED)
    _check_sizes(spec, block_size)
    reader = _Reader(stored)
    norms = [
        reader.norm(f"{layer_module(i)}.", layer.pre_attention_norm)
        for i, layer in enumerate(spec.layers)
    ]
    norms.append(reader.norm("", spec.final_norm))
    if norms[0].dtype not in ARRAY_DTYPES:
        raise UnsupportedModelError(f"activations of {norms[0].dtype}")
    layers = tuple(
        _layer(layer, f"{layer_module(i)}.", reader) for i, layer in enumerate(spec.layers)
    )
    head = None if spec.head is None else reader.packed("", spec.head)
    found = CompiledWeights(
        embedding=_embedding(spec, head, reader),
        layers=layers,
        norms=tuple(norms),
        head=head,
        inv_freq=reader.array("model.rotary.inv_freq", spec.ropes[0].rotary_dim // 2),
        memory=stored.arrays,
    )
    reader.check_all_read()
    return found


def _check_sizes(spec: ModelSpec, block_size: int) -> None:
    """Refuse what differs between layers where compiled code takes one value for all."""
    if spec.head is not None and spec.head.bias:
        raise UnsupportedModelError("a bias of the head")
    if len(spec.ropes) != 1:
        raise UnsupportedModelError("layers with different rotary embeddings")
    if spec.ropes[0].kind == "dynamic":
        raise UnsupportedModelError("angles that depend on a sequence's length")
    if len({_heads(layer.attention) for layer in spec.layers}) != 1:
        raise UnsupportedModelError("layers with different heads")
    if len({layer.dense_mlp.intermediate_size for layer in spec.layers}) != 1:
        raise UnsupportedModelError("MLPs of different sizes")
    head_norms = {
        norm
        for layer in spec.layers
        for norm in (layer.attention.query_norm, layer.attention.key_norm)
    }
    norms = {norm for layer in spec.layers for norm in layer.norms} - head_norms
    if len({norm.eps for norm in (*norms, spec.final_norm)}) != 1:
        raise UnsupportedModelError("norms with different eps")
    key_dim = spec.layers[0].attention.key_dim
    if not serves_heads(key_dim, block_size):
        raise UnsupportedModelError(f"heads of {key_dim} in blocks of {block_size}")


def _heads(attention: AttentionSpec) -> tuple[int, int, int, int]:
    return attention.num_heads, attention.num_kv_heads, attention.key_dim, attention.value_dim


def _not_packed(name: str, weight: object) -> str:
    """The reason why no compiled kernel reads a weight."""
    if isinstance(weight, QuantizedWeight):
        kind = weight.spec.codes
        if not FORMATS[kind].native_formats:
            return f"{name} is in {kind}, and no compiled kernel reads {kind} weights"
        return f"{name} is in {kind}, and its sizes have no compiled kernel for {kind}"
    return f"{name} is not packed, as its sizes or data type have no compiled kernel"


class _Reader:
    """Reads arrays by name and remembers which were read."""

    def __init__(self, stored: StoredArrays) -> None:
        self._stored = stored
        self._read: set[str] = set()

    def optional(self, name: str) -> Array | None:
        """An array by name, or None if it is not stored."""
        self._read.add(name)
        return self._stored.arrays.get(name)

    def array(self, name: str, *shape: int) -> Array:
        """An array. Raises UnsupportedModelError if it is not stored, or has another shape."""
        found = self.optional(name)
        if found is None:
            raise UnsupportedModelError(f"there is no {name}")
        if found.shape != shape:
            raise UnsupportedModelError(f"{name} is {list(found.shape)}, not {list(shape)}")
        return found

    def norm(self, prefix: str, norm: NormSpec) -> Array:
        """The weight of a norm, [size]."""
        return self.array(f"{prefix}{norm.module}.weight", norm.size)

    def packed(self, prefix: str, linear: LinearSpec) -> PackedWeight:
        """A linear layer's weight; its format is stored beside it."""
        name = f"{prefix}{linear.module}"
        try:
            weight = restore(self._stored.formats[name], self._own(name))
        except LookupError as error:
            raise UnsupportedModelError(f"{name} cannot be read ({error})") from error
        if not isinstance(weight, PackedWeight):
            raise UnsupportedModelError(_not_packed(name, weight))
        if weight.inputs != linear.k or not linear.n <= weight.outputs < linear.n + BLOCK:
            found = f"[{weight.outputs}, {weight.inputs}]"
            raise UnsupportedModelError(f"{name} is {found}, not [{linear.n}, {linear.k}]")
        self._read |= {f"{name}.{leaf}" for leaf in tensors_of(weight)}
        return weight

    def _own(self, module: str) -> dict[str, Array]:
        """The arrays of a module by their names in it."""
        leaves = ("packed", "codes", "scale", "zeros", "permutation", "weight")
        found = {leaf: self._stored.arrays.get(f"{module}.{leaf}") for leaf in leaves}
        return {leaf: array for leaf, array in found.items() if array is not None}

    def linear(self, prefix: str, linear: LinearSpec) -> LinearWeightArgs:
        """The weight and the bias of a linear layer."""
        weight = self.packed(prefix, linear)
        bias = self.array(f"{prefix}{linear.module}.bias", linear.n) if linear.bias else None
        return LinearWeightArgs(
            address(weight.packed),
            *(None if each is None else address(each) for each in (bias, weight.permutation)),
            weight.outputs,
            weight.group,
            weight.format,
        )

    def check_all_read(self) -> None:
        """Refuse a model with tensors that its description does not mention."""
        left_over = sorted(self._stored.arrays.keys() - self._read)
        if left_over:
            raise UnsupportedModelError(f"nothing reads the tensor {left_over[0]}")


def _embedding(spec: ModelSpec, head: PackedWeight | None, reader: _Reader) -> Array | PackedWeight:
    """The table of the embedding, or a tied head's weight, which serves look-ups, too."""
    name = f"{spec.embedding.module}.weight"
    if spec.is_head_tied and head is not None and reader.optional(name) is None:
        return head
    return reader.array(name, spec.vocab_size, spec.hidden_size)


def _layer(layer: LayerSpec, prefix: str, reader: _Reader) -> LayerArgs:
    attention = layer.attention
    query_norm, key_norm, post_attention_norm, post_mlp_norm = (
        None if norm is None else address(reader.norm(prefix, norm))
        for norm in (
            attention.query_norm, attention.key_norm,
            layer.post_attention_norm, layer.post_mlp_norm,
        )
    )  # fmt: skip
    mlp = layer.dense_mlp
    activation = _EPILOGUES.get(mlp.activation)
    if activation is None:
        raise UnsupportedModelError(f"activation {mlp.activation}")
    args = LayerArgs(
        norm=address(reader.norm(prefix, layer.pre_attention_norm)),
        mlp_norm=address(reader.norm(prefix, layer.pre_mlp_norm)),
        query_norm=query_norm,
        key_norm=key_norm,
        post_attention_norm=post_attention_norm,
        post_mlp_norm=post_mlp_norm,
        eps=layer.pre_attention_norm.eps,
        head_eps=0.0 if attention.query_norm is None else attention.query_norm.eps,
        scale=attention.scale,
        soft_cap=attention.soft_cap or 0.0,
        window=attention.window or 0,
        activation=activation,
    )
    args.qkv = reader.linear(prefix, attention.qkv)
    args.o = reader.linear(prefix, attention.output)
    args.gate_up = reader.linear(prefix, mlp.gate_up)
    args.down = reader.linear(prefix, mlp.down)
    if args.gate_up.outputs % (2 * BLOCK):
        raise UnsupportedModelError("gate and up rows that are not interleaved")
    return args
