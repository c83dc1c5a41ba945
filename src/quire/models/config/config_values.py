"""Values of config.json whose reading takes more than a key: checked, by the family's facts.

No torch. Raises CheckpointError that names the file, the key and the fix.
"""

from __future__ import annotations

from pathlib import Path

from quire.compat.own_values import own_value
from quire.config_file import ConfigFile
from quire.core.layer_spec import Activation
from quire.models.families.family import BiasRule, Family
from quire.models.families.registry import ARCHITECTURES

_EMBEDDING_MODEL = "Qwen/Qwen3-Embedding-0.6B"
_CLASSIFIERS = ("Classification", "RewardModel")  # ends of their classes' names
_EXAMPLES = "Qwen/Qwen3-0.6B or meta-llama/Llama-3.2-1B-Instruct"


def read_family(config: ConfigFile) -> tuple[str, Family]:
    """The architecture named in config.json, and its family."""
    names = config.get("architectures")
    known = ", ".join(ARCHITECTURES)
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise config.wrong("architectures", f"must be a list with one of {known}")
    if names[0].endswith(_CLASSIFIERS):
        raise config.wrong(
            "architectures",
            f"names {names[0]!r}, a classifier or reranker, whose scores nothing here computes; "
            "take an embedding model, whose vectors /v1/rerank, /v1/score and LLM.score compare "
            f"({_EMBEDDING_MODEL}), or for labels a chat model, and structured outputs with choice",
        )
    if names[0] not in ARCHITECTURES:
        raise config.wrong(
            "architectures", f"names {names[0]!r}; supported are {known}, such as {_EXAMPLES}"
        )
    return names[0], ARCHITECTURES[names[0]]


def read_activation(config: ConfigFile, family: Family) -> Activation:
    """The MLP's activation, one that the family may have."""
    known = dict(family.activations)
    name = config.text(family.activation_key)
    if name not in known:
        supported = " or ".join(repr(each) for each in known)
        raise config.wrong(
            family.activation_key,
            f"is {name!r}, but only {supported} is supported; take another model",
        )
    return known[name]


def refuse_unsupported(config: ConfigFile) -> None:
    """Raise CheckpointError for features that no family computes."""
    for key, computed in (("is_causal", True), ("use_bidirectional_attention", False)):
        if config.boolean(key, computed) != computed:
            found = str(not computed).lower()
            raise config.wrong(
                key, f"is {found}, but every layer here looks back only; take another model"
            )


def read_dtype(config: ConfigFile) -> str | None:
    """The name of the checkpoint's data type; None where the config has none, or "auto"."""
    keys = ("dtype", "torch_dtype")  # the second is the older one
    named = (config.text(key) for key in keys if config.get(key) not in (None, "auto"))
    name = next(named, None)
    return None if name is None else str(own_value("dtype", name))  # "half", as in transformers


def read_bias(config: ConfigFile, rule: BiasRule) -> bool:
    """Whether linear layers have biases, from config.json."""
    return config.boolean(rule) if isinstance(rule, str) else rule


def read_optional(config: ConfigFile, key: str | None) -> float | None:
    """A number; a null means that there is none. key: None in families that do not have it."""
    if key is None or config.get_nullable(key) is None:
        return None
    return config.number(key)


def read_heads(config: ConfigFile, hidden_size: int) -> tuple[int, int, int]:
    """Heads of queries, heads of keys, and dimensions of a head."""
    num_heads = config.integer("num_attention_heads", high=2**14)
    num_kv_heads = _size(config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        found = "is" if "num_key_value_heads" in config.values else "is missing, which means"
        raise config.wrong(
            "num_key_value_heads",
            f"{found} {num_kv_heads}, which does not divide num_attention_heads ({num_heads}); "
            "correct it",
        )
    if config.get_nullable("head_dim") is None and hidden_size % num_heads:
        raise config.wrong(
            "num_attention_heads",
            f"is {num_heads}, which does not divide hidden_size ({hidden_size}); set head_dim",
        )
    return num_heads, num_kv_heads, _size(config, "head_dim", hidden_size // num_heads)


def _size(config: ConfigFile, key: str, usual: int) -> int:
    """A size of heads; where it is null, what follows from other sizes."""
    return usual if config.get_nullable(key) is None else config.integer(key, high=2**14)


def read_eos_token_ids(config: ConfigFile, path: Path) -> tuple[int, ...]:
    """The ids that end an answer: those of generation_config.json, then those of config.json."""
    generation = path / "generation_config.json"
    ids = ConfigFile.read(generation).token_ids("eos_token_id") if generation.exists() else []
    return tuple(dict.fromkeys(ids + config.token_ids("eos_token_id")))
