"""Description of a decoder, layer by layer, as plain comparable records. No torch.

`ModelConfig.spec` makes them from a checkpoint's config file. Everything that depends on a model's
structure is derived from them: memory plan, KV cache, table of expected tensors, modules, warm-up.

A field with a default is a feature: a value other than the default has to be computed by whatever
runs the model, or refused by name (`check_features`). So a new feature is a new field with a
default, and no runtime can pass over it silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Literal

import msgspec

from quire.core.rope_settings import RopeSettings

# What a weight is for, by which its format is chosen: a linear layer of a decoder layer, the head,
# which makes logits, or a router, which makes probabilities of experts. Embeddings are looked up,
# norms and biases are few: they have no role.
Role = Literal["layer", "head", "router"]
Activation = Literal["silu", "gelu_tanh"]

LAYERS = "model.layers"  # module that holds the layers, by their index

_WORDS = {
    "soft_cap": "soft cap",
    "sinks": "attention sinks",
    "query_norm": "query norm",
    "key_norm": "key norm",
    "post_attention_norm": "post-norm after attention",
    "post_mlp_norm": "post-norm after the MLP",
    "adds_one": "norm weight (1 + w)",
    "logit_soft_cap": "soft cap of logits",
    "scale": "embedding scale",
}


class UnsupportedModelError(Exception):
    """A runtime does not compute what a model is described to be; names the feature."""


class LinearPart(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows of a fused weight. module: what holds them alone in most checkpoints."""

    name: str
    rows: int
    module: str


class LinearSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A linear layer y = W x + b with W [n, k].

    module: its name within its layer, or within the model for the head. parts: of a fused weight,
    in order of their rows; is_fused_on_disk: checkpoints hold it under `module` and not by parts.
    Its weight format follows from module name, role and sizes (`FormatChoice.format_for`).
    """

    module: str
    n: int
    k: int
    role: Role
    bias: bool = False
    parts: tuple[LinearPart, ...] = ()
    is_fused_on_disk: bool = False

    @property
    def num_weights(self) -> int:
        """The number of weights in W."""
        return self.n * self.k

    def rows_of(self, part: str | None) -> tuple[int, int]:
        """The first row of a part of a fused weight, and the one after its last; None: all.

        Raises LookupError for a part that it has not.
        """
        start = 0
        for known in self.parts if part is not None else ():
            if known.name == part:
                return start, start + known.rows
            start += known.rows
        if part is not None:
            raise LookupError(f"{self.module} has no part {part!r}")
        return 0, self.n

    def sources(self) -> list[tuple[str, str | None]]:
        """Modules of a checkpoint that fill the weight, and the part that each fills, None: all."""
        if self.is_fused_on_disk or not self.parts:
            return [(self.module, None)]
        return [(part.module, part.name) for part in self.parts]


class NormSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An RMSNorm over `size` dimensions. adds_one: it multiplies by (1 + weight)."""

    module: str
    size: int
    eps: float
    adds_one: bool = False


class KVLayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Keys and values that one layer stores of each token in the KV cache.

    Layers with equal records are a group; all groups share a request's block table.

    window: how many of the last tokens are read; None for all. dtype: of its keys and values, by
    PyTorch's name, where it is not the cache's.
    """

    num_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    dtype: str | None = None


class AttentionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An attention layer (grouped-query attention, GQA).

    scale: multiplies scores. window: how many of the last tokens a query sees, itself included;
    None for all. soft_cap: scores become cap * tanh(score / cap). sinks: a learned logit per head
    takes part in each softmax. query_norm, key_norm: over each head's dimensions, before RoPE.
    """

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    rope: RopeSettings
    qkv: LinearSpec
    output: LinearSpec
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    query_norm: NormSpec | None = None
    key_norm: NormSpec | None = None


class MLPSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A gated MLP: down(activation(gate(x)) * up(x))."""

    gate_up: LinearSpec
    down: LinearSpec
    activation: Activation = "silu"

    @property
    def linears(self) -> tuple[LinearSpec, ...]:
        """Its linear layers, in the order in which a step reads them."""
        return self.gate_up, self.down

    @property
    def intermediate_size(self) -> int:
        """The number of rows of the gate weight, and of the up weight."""
        return self.down.k


class MoESpec(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts (MoE): many MLPs, of which each token passes through a few.

    A router [E, H] gives a probability per expert (softmax over all E). A token's result is the sum
    of the results of its `experts_per_token` most probable experts, each times its probability;
    renormalize: these are divided by their sum first. (Shazeer et al., 2017; Fedus et al., 2022)
    """

    router: LinearSpec
    experts: tuple[MLPSpec, ...]
    experts_per_token: int
    renormalize: bool

    @property
    def linears(self) -> tuple[LinearSpec, ...]:
        """The router, then the experts' linear layers in their order."""
        return self.router, *(linear for expert in self.experts for linear in expert.linears)

    @property
    def intermediate_size(self) -> int:
        """The greatest of the experts' sizes, see `MLPSpec`."""
        return max(expert.intermediate_size for expert in self.experts)

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"mixture of {len(self.experts)} experts (MoE)"


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One decoder layer. Layers that compute the same have equal records.

    Norms before a part are applied to what it reads, norms after it to what it adds to the
    residual; None where there is none.
    """

    attention: AttentionSpec
    mlp: MLPSpec | MoESpec
    pre_attention_norm: NormSpec
    pre_mlp_norm: NormSpec
    post_attention_norm: NormSpec | None = None
    post_mlp_norm: NormSpec | None = None

    @property
    def linears(self) -> tuple[LinearSpec, ...]:
        """All linear layers, in the order in which a step reads them."""
        return self.attention.qkv, self.attention.output, *self.mlp.linears

    @property
    def dense_mlp(self) -> MLPSpec:
        """Its MLP. Raises UnsupportedModelError for experts."""
        if isinstance(self.mlp, MoESpec):
            raise UnsupportedModelError(self.mlp.name)
        return self.mlp

    @property
    def norms(self) -> tuple[NormSpec, ...]:
        """All norms that there are, those of heads included."""
        attention = self.attention
        found = (
            self.pre_attention_norm, attention.query_norm, attention.key_norm,
            self.post_attention_norm, self.pre_mlp_norm, self.post_mlp_norm,
        )  # fmt: skip
        return tuple(norm for norm in found if norm is not None)

    @property
    def kv(self) -> KVLayerSpec:
        """The layer's keys and values in the KV cache."""
        attention = self.attention
        return KVLayerSpec(
            num_heads=attention.num_kv_heads,
            key_dim=attention.key_dim,
            value_dim=attention.value_dim,
            window=attention.window,
        )


class EmbeddingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One vector per token of the vocabulary. scale: multiplies what is looked up."""

    module: str
    vocab_size: int
    hidden_size: int
    scale: float = 1.0


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder. head: None where its states never become logits.

    is_head_tied: the head's weight is the embedding's. logit_soft_cap: as in attention.
    """

    embedding: EmbeddingSpec
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec
    head: LinearSpec | None
    is_head_tied: bool
    logit_soft_cap: float | None = None

    @property
    def hidden_size(self) -> int:
        """The number of dimensions of the hidden states."""
        return self.embedding.hidden_size

    @property
    def vocab_size(self) -> int:
        """The number of tokens in the vocabulary that have an embedding."""
        return self.embedding.vocab_size

    @property
    def ropes(self) -> tuple[RopeSettings, ...]:
        """The different rotary embeddings of its layers, in order of their first use."""
        return tuple(dict.fromkeys(layer.attention.rope for layer in self.layers))

    @property
    def kv_layers(self) -> tuple[KVLayerSpec, ...]:
        """Each layer's keys and values in the KV cache."""
        return tuple(layer.kv for layer in self.layers)

    @property
    def named_linears(self) -> list[tuple[str, LinearSpec]]:
        """Linear layers by their modules' names: of all layers, then the head, if there is one."""
        found = [
            (f"{layer_module(index)}.{linear.module}", linear)
            for index, layer in enumerate(self.layers)
            for linear in layer.linears
        ]
        return found if self.head is None else [*found, (self.head.module, self.head)]

    @property
    def linears(self) -> list[LinearSpec]:
        """Linear layers of all layers, then the head, where there is one."""
        return [linear for _, linear in self.named_linears]

    @property
    def num_parameters(self) -> int:
        """Weights of all matrices, a tied one once; norms and biases are left out."""
        tables = self.vocab_size * self.hidden_size
        if self.head is not None and self.is_head_tied:
            tables -= self.head.num_weights
        return tables + sum(linear.num_weights for linear in self.linears)


def layer_module(index: int) -> str:
    """The name of a layer's module, such as model.layers.3."""
    return f"{LAYERS}.{index}"


def features(record: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """The features that a record and those in it use, as (class.field, words for a message)."""
    if isinstance(record, RopeSettings) and record.kind != "default":
        yield f"RopeSettings.kind={record.kind}", f"RoPE of the kind {record.kind}"
    if isinstance(record, MoESpec):
        yield "MoESpec", record.name
    names, defaults = record.__struct_fields__, record.__struct_defaults__
    required = (msgspec.NODEFAULT,) * (len(names) - len(defaults))
    for name, default in zip(names, required + defaults, strict=True):
        value = getattr(record, name)
        if default is not msgspec.NODEFAULT and value != default:
            words = _WORDS.get(name, name.replace("_", " "))
            shown = f"{words} {value}" if isinstance(value, float | str) else words
            yield f"{type(record).__name__}.{name}", shown
        # equal records once: layers are many, and experts in each
        for inner in dict.fromkeys(value) if isinstance(value, tuple) else (value,):
            if isinstance(inner, msgspec.Struct):
                yield from features(inner)


def check_features(spec: ModelSpec, computed: Set[str]) -> None:
    """Raise UnsupportedModelError for the first feature that is not among those computed.

    computed: names as `features` gives them, such as "AttentionSpec.window". Also refuses heads
    that no runtime computes.
    """
    for name, words in features(spec):
        if name not in computed:
            raise UnsupportedModelError(words)
    for layer in spec.layers:
        _check_heads(layer.attention)


def _check_heads(attention: AttentionSpec) -> None:
    key_dim, value_dim = attention.key_dim, attention.value_dim
    if value_dim != key_dim:
        raise UnsupportedModelError(f"values of {value_dim} dimensions beside keys of {key_dim}")
    query_norm, key_norm = attention.query_norm, attention.key_norm
    if (query_norm is None) != (key_norm is None):
        raise UnsupportedModelError("a norm of queries alone, or of keys alone")
    if query_norm is not None and key_norm is not None and query_norm.eps != key_norm.eps:
        raise UnsupportedModelError("norms of queries and keys with different eps")
