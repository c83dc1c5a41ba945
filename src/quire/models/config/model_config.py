"""A model's configuration, read from its config files and checked. No torch.

Owns what the keys of config.json mean, and the description of each layer that follows from them;
what differs between families is in their tables (models/families).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quire.config_file import ConfigFile
from quire.core.layer_spec import (
    Activation,
    AttentionSpec,
    EmbeddingSpec,
    LayerSpec,
    LinearPart,
    LinearSpec,
    MLPSpec,
    ModelSpec,
    MoESpec,
    NormSpec,
)
from quire.core.rope_settings import RopeSettings
from quire.dtypes import MODEL_DTYPES
from quire.errors import CheckpointError
from quire.models.checkpoint_formats.kv_cache_scheme import read_kv_cache_dtype
from quire.models.checkpoint_formats.quantization_config import (
    quantization_section,
    read_checkpoint_format,
)
from quire.models.checkpoints.checkpoint import stored_dtype
from quire.models.config.config_values import (
    read_activation,
    read_bias,
    read_dtype,
    read_eos_token_ids,
    read_family,
    read_heads,
    read_optional,
    refuse_unsupported,
)
from quire.models.config.rope_config import read_rope
from quire.models.families.family import ExpertSizes
from quire.models.families.registry import FAMILIES

if TYPE_CHECKING:
    from quire.models.checkpoint_formats.checkpoint_format import CheckpointFormat


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a decoder-only model.

    architecture: the class named in config.json; family: a name in `registry.FAMILIES`.
    sliding_windows: per layer, how many of the last tokens a query sees; None for all.
    experts: per layer, the sizes of its mixture of experts; None where its MLP is dense.
    attention_scale: multiplies scores; the soft caps are None where there are none.
    dtype: name of the checkpoint's data type, such as "bfloat16"; names_dtype: whether config.json
    has it, or else its weights; checkpoint_format: how they are quantized, if they are;
    kv_cache_dtype: the setting that its KV cache was made for.
    """

    architecture: str
    family: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeSettings
    sliding_windows: tuple[int | None, ...]
    experts: tuple[ExpertSizes | None, ...]
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    activation: Activation
    attention_scale: float
    attention_soft_cap: float | None
    logit_soft_cap: float | None
    dtype: str
    names_dtype: bool
    checkpoint_format: CheckpointFormat | None
    kv_cache_dtype: str | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @property
    def has_head(self) -> bool:
        """Whether its states can become logits, so that it can draw tokens."""
        return self.architecture.endswith("ForCausalLM")

    @property
    def own_dtype(self) -> str:
        """Its data type. Raises CheckpointError for one that no model runs in."""
        if self.dtype not in MODEL_DTYPES:
            raise CheckpointError(
                f"config.json: dtype is {self.dtype!r}; set dtype to one of "
                f"{', '.join(MODEL_DTYPES)}"
            )
        return self.dtype

    @property
    def spec(self) -> ModelSpec:
        """The description of the model, layer by layer; the same object each time."""
        return _describe(self)

    @property
    def num_parameters(self) -> int:
        """Weights of all matrices; norms and biases are left out."""
        return self.spec.num_parameters

    @classmethod
    def from_folder(cls, path: Path) -> ModelConfig:
        """Read config.json and, where there is one, generation_config.json.

        Raises CheckpointError that names the file, the key and the fix.
        """
        config = ConfigFile.read(path / "config.json")
        architecture, family = read_family(config)
        config = ConfigFile(config.path, config.values, defaults=family.defaults)
        activation = read_activation(config, family)
        refuse_unsupported(config)
        hidden_size = config.integer("hidden_size", high=2**20)
        num_layers = config.integer("num_hidden_layers", high=1024)
        num_heads, num_kv_heads, head_dim = read_heads(config, hidden_size)
        scaled_dim = read_optional(config, family.attention_scale_key) or head_dim
        dtype = read_dtype(config)
        return cls(
            architecture=architecture,
            family=family.name,
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            intermediate_size=config.integer("intermediate_size", high=2**22),
            vocab_size=config.integer("vocab_size", high=2**24),
            max_position_embeddings=config.integer("max_position_embeddings"),
            rms_norm_eps=config.number("rms_norm_eps"),
            rope=read_rope(config, family, head_dim),
            sliding_windows=family.windows(config, num_layers),
            experts=family.experts(config, num_layers),
            tie_word_embeddings=config.boolean("tie_word_embeddings"),
            qkv_bias=read_bias(config, family.qkv_bias),
            output_bias=read_bias(config, family.output_bias),
            mlp_bias=read_bias(config, family.mlp_bias),
            activation=activation,
            attention_scale=scaled_dim**-0.5,
            attention_soft_cap=read_optional(config, family.attention_soft_cap_key),
            logit_soft_cap=read_optional(config, family.logit_soft_cap_key),
            dtype=dtype or stored_dtype(path),
            names_dtype=dtype is not None,
            checkpoint_format=read_checkpoint_format(config),
            kv_cache_dtype=read_kv_cache_dtype(quantization_section(config)),
            bos_token_id=next(iter(config.token_ids("bos_token_id")), None),
            eos_token_ids=read_eos_token_ids(config, path),
        )


@lru_cache
def _describe(config: ModelConfig) -> ModelSpec:
    """The description of a model. Modules have the names of checkpoints."""
    facts = FAMILIES[config.family]
    head = LinearSpec(module="lm_head", n=config.vocab_size, k=config.hidden_size, role="head")
    return ModelSpec(
        embedding=EmbeddingSpec(
            module="model.embed_tokens",
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            scale=config.hidden_size**0.5 if facts.is_embedding_scaled else 1.0,
        ),
        layers=tuple(
            _layer(config, window, experts)
            for window, experts in zip(config.sliding_windows, config.experts, strict=True)
        ),
        final_norm=_norm(config, "model.norm"),
        head=head if config.has_head else None,
        is_head_tied=config.has_head and config.tie_word_embeddings,
        logit_soft_cap=config.logit_soft_cap,
    )


def _layer(config: ModelConfig, window: int | None, experts: ExpertSizes | None) -> LayerSpec:
    names = FAMILIES[config.family].norm_names
    return LayerSpec(
        attention=_attention(config, window),
        mlp=_mlp(config, "mlp", config.intermediate_size)
        if experts is None
        else _moe(config, experts),
        pre_attention_norm=_norm(config, names.pre_attention),
        pre_mlp_norm=_norm(config, names.pre_mlp),
        post_attention_norm=_norm(config, names.post_attention) if names.post_attention else None,
        post_mlp_norm=_norm(config, names.post_mlp) if names.post_mlp else None,
    )


def _attention(config: ModelConfig, window: int | None) -> AttentionSpec:
    facts = FAMILIES[config.family]
    query_size, kv_size = (
        heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads)
    )
    parts = {"q": query_size, "k": kv_size, "v": kv_size}
    head_norms = facts.head_norms
    return AttentionSpec(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        key_dim=config.head_dim,
        value_dim=config.head_dim,
        scale=config.attention_scale,
        rope=config.rope,
        qkv=LinearSpec(
            module="self_attn.qkv_proj",
            n=query_size + 2 * kv_size,
            k=config.hidden_size,
            role="layer",
            bias=config.qkv_bias,
            parts=_parts("self_attn", parts),
            is_fused_on_disk=facts.has_fused_weights,
        ),
        output=LinearSpec(
            module="self_attn.o_proj",
            n=config.hidden_size,
            k=query_size,
            role="layer",
            bias=config.output_bias,
        ),
        window=window,
        soft_cap=config.attention_soft_cap,
        query_norm=_norm(config, "self_attn.q_norm", config.head_dim) if head_norms else None,
        key_norm=_norm(config, "self_attn.k_norm", config.head_dim) if head_norms else None,
    )


def _mlp(config: ModelConfig, module: str, size: int) -> MLPSpec:
    return MLPSpec(
        gate_up=LinearSpec(
            module=f"{module}.gate_up_proj",
            n=2 * size,
            k=config.hidden_size,
            role="layer",
            bias=config.mlp_bias,
            parts=_parts(module, {"gate": size, "up": size}),
            is_fused_on_disk=FAMILIES[config.family].has_fused_weights,
        ),
        down=LinearSpec(
            module=f"{module}.down_proj",
            n=config.hidden_size,
            k=size,
            role="layer",
            bias=config.mlp_bias,
        ),
        activation=config.activation,
    )


def _moe(config: ModelConfig, sizes: ExpertSizes) -> MoESpec:
    return MoESpec(
        router=LinearSpec(
            module="mlp.gate", n=sizes.num_experts, k=config.hidden_size, role="router"
        ),
        experts=tuple(
            _mlp(config, f"mlp.experts.{index}", sizes.intermediate_size)
            for index in range(sizes.num_experts)
        ),
        experts_per_token=sizes.experts_per_token,
        renormalize=sizes.renormalize,
    )


def _parts(module: str, rows: dict[str, int]) -> tuple[LinearPart, ...]:
    return tuple(
        LinearPart(name=name, rows=count, module=f"{module}.{name}_proj")
        for name, count in rows.items()
    )


def _norm(config: ModelConfig, module: str, size: int | None = None) -> NormSpec:
    return NormSpec(
        module=module,
        size=size or config.hidden_size,
        eps=config.rms_norm_eps,
        adds_one=FAMILIES[config.family].norms_add_one,
    )
