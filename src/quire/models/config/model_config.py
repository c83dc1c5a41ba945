"""A model's shape, read from its config files and checked. No torch.

Owns what the keys of config.json mean for each family, so that the families' own files need not
look at it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quire.layers.rope_settings import RopeSettings
from quire.models.config.config_file import ConfigFile
from quire.models.config.rope_config import read_rope

# class named in config.json → family
FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Phi3ForCausalLM": "phi3",
    # without a head: they make embeddings, and draw no tokens
    "LlamaModel": "llama",
    "MistralModel": "mistral",
    "Qwen2Model": "qwen2",
    "Qwen3Model": "qwen3",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only model.

    architecture: the class named in config.json; family: llama, mistral, qwen2, qwen3 or phi3.
    sliding_windows: per layer, how many of the last tokens a query sees; None for all.
    dtype: name of the checkpoint's data type, such as "bfloat16".
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
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    dtype: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @property
    def has_head(self) -> bool:
        """Whether its states can become logits, so that it can draw tokens."""
        return self.architecture.endswith("ForCausalLM")

    @property
    def layer_products(self) -> list[tuple[int, int]]:
        """Each weight [out, in] of one layer's products: qkv, o, gate and up, down."""
        heads, hidden = self.num_heads + 2 * self.num_kv_heads, self.hidden_size
        return [
            (heads * self.head_dim, hidden),
            (hidden, self.num_heads * self.head_dim),
            (2 * self.intermediate_size, hidden),
            (hidden, self.intermediate_size),
        ]

    @property
    def num_parameters(self) -> int:
        """Weights of all matrices; norms and biases are left out."""
        layer = sum(n * k for n, k in self.layer_products)
        embeddings = 1 if self.tie_word_embeddings or not self.has_head else 2
        return self.num_layers * layer + embeddings * self.vocab_size * self.hidden_size

    @classmethod
    def from_folder(cls, path: Path) -> ModelConfig:
        """Read config.json and, where there is one, generation_config.json.

        Raises CheckpointError that names the file, the key and the fix.
        """
        config = ConfigFile.read(path / "config.json")
        architecture, family = _family(config)
        _refuse_what_is_not_supported(config)
        hidden_size = config.integer("hidden_size", high=2**20)
        num_layers = config.integer("num_hidden_layers", high=1024)
        num_heads, num_kv_heads, head_dim = _heads(config, hidden_size)
        bias = config.boolean("attention_bias", False)
        return cls(
            architecture=architecture,
            family=family,
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            intermediate_size=config.integer("intermediate_size", high=2**22),
            vocab_size=config.integer("vocab_size", high=2**24),
            max_position_embeddings=config.integer("max_position_embeddings", 2048),
            rms_norm_eps=config.number("rms_norm_eps", 1e-5 if family == "phi3" else 1e-6),
            rope=read_rope(config, head_dim),
            sliding_windows=_sliding_windows(config, family, num_layers),
            tie_word_embeddings=config.boolean("tie_word_embeddings", False),
            qkv_bias=family == "qwen2" or (family in ("llama", "qwen3") and bias),
            output_bias=family in ("llama", "qwen3") and bias,
            mlp_bias=family == "llama" and config.boolean("mlp_bias", False),
            dtype=config.text("dtype", config.text("torch_dtype", "float32")),
            bos_token_id=_bos_token_id(config),
            eos_token_ids=_eos_token_ids(config, path),
        )


def _family(config: ConfigFile) -> tuple[str, str]:
    names = config.get("architectures")
    known = ", ".join(FAMILIES)
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise config.wrong("architectures", f"must be a list with one of {known}")
    if names[0] not in FAMILIES:
        raise config.wrong("architectures", f"names {names[0]}; supported are {known}")
    return names[0], FAMILIES[names[0]]


def _refuse_what_is_not_supported(config: ConfigFile) -> None:
    activation = config.text("hidden_act", "silu")
    if activation != "silu":
        raise config.wrong(
            "hidden_act", f"is {activation!r}, but only 'silu' is supported; take another model"
        )
    if not config.boolean("is_causal", True):
        raise config.wrong(
            "is_causal", "is false, but every layer here looks back only; take another model"
        )
    if config.section("quantization_config") is not None:
        raise config.wrong(
            "quantization_config", "is set; take the 16-bit checkpoint of the model instead"
        )


def _heads(config: ConfigFile, hidden_size: int) -> tuple[int, int, int]:
    num_heads = config.integer("num_attention_heads", high=2**14)
    num_kv_heads = config.integer("num_key_value_heads", num_heads, high=2**14)
    if num_heads % num_kv_heads:
        raise config.wrong(
            "num_key_value_heads",
            f"is {num_kv_heads}, no divisor of num_attention_heads ({num_heads}); correct it",
        )
    if config.get("head_dim") is None and hidden_size % num_heads:
        raise config.wrong(
            "num_attention_heads",
            f"is {num_heads}, which does not divide hidden_size ({hidden_size}); give head_dim",
        )
    head_dim = config.integer("head_dim", hidden_size // num_heads, high=2**14)
    return num_heads, num_kv_heads, head_dim


def _sliding_windows(config: ConfigFile, family: str, num_layers: int) -> tuple[int | None, ...]:
    """The window of each layer."""
    nowhere = (None,) * num_layers
    if family == "llama":
        return nowhere
    if family in ("mistral", "phi3"):
        # a Mistral file without the key means the first Mistral, a null means no window
        if "sliding_window" in config.values or family == "phi3":
            absent = config.get("sliding_window") is None
        else:
            absent = False
        return nowhere if absent else (config.integer("sliding_window", 4096),) * num_layers
    if not config.boolean("use_sliding_window", False):
        return nowhere
    window = config.integer("sliding_window", 4096)
    types = config.get("layer_types")
    if types is None:
        first = config.integer("max_window_layers", 28, low=0)
        return tuple(window if i >= first else None for i in range(num_layers))
    known = {"sliding_attention": window, "full_attention": None}
    listed = isinstance(types, list) and all(isinstance(kind, str) for kind in types)
    if not listed or len(types) != num_layers or not set(types) <= set(known):
        raise config.wrong("layer_types", f"must list {num_layers} times one of {', '.join(known)}")
    return tuple(known[kind] for kind in types)


def _bos_token_id(config: ConfigFile) -> int | None:
    return next(iter(config.token_ids("bos_token_id")), None)


def _eos_token_ids(config: ConfigFile, path: Path) -> tuple[int, ...]:
    """The ids that end an answer: those of generation_config.json, then those of config.json."""
    generation = path / "generation_config.json"
    ids = ConfigFile.read(generation).token_ids("eos_token_id") if generation.exists() else []
    return tuple(dict.fromkeys(ids + config.token_ids("eos_token_id")))
