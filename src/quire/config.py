"""The settings tree: frozen, keyword-only, composed. Nobody writes back into it.

Each field carries its own help text; the command line and `LLM(...)` are both generated from
these fields, so a setting has one name, one default and one description everywhere.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from quire.errors import ConfigError

BUNDLED_MODEL = "quire-tiny"
MOST = 2**31 - 1  # of whatever is counted: kernels count in 32 bits


def _setting(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _require_count(name: str, value: int | None, least: int = 1) -> None:
    _require(value is None or value >= least, f"{name} is {value}; give at least {least}")
    _require(value is None or value <= MOST, f"{name} is {value}; give at most {MOST}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Which model, and how its weights are read."""

    model: str = _setting(BUNDLED_MODEL, "folder, hub name, or the bundled model's name")
    tokenizer: str | None = _setting(None, "folder or hub name of the tokenizer, if elsewhere")
    revision: str | None = _setting(None, "branch, tag or commit of the model on the hub")
    served_model_name: str | None = _setting(None, "name that requests use for the model")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = _setting(
        "auto",
        "data type of weights and KV cache, unless they have one of their own; auto takes the "
        "checkpoint's, or float32 for a small model on a CPU without 16-bit products",
    )
    quantization: Literal["none", "fp8", "int8", "int4"] = _setting(
        "none",
        "form that weights are brought into while they are loaded; fp8 and int8: 8 bits, with a "
        "scale for each output, the head's too; int4: 4 bits, with a scale for each 32 numbers, "
        "and the head in int8; int8 and int4 run on CPUs",
    )
    max_model_len: int | None = _setting(
        None, "longest prompt + answer in tokens; default: the model's own limit"
    )
    load_format: Literal["auto", "dummy", "null"] = _setting(
        "auto",
        "dummy: random weights in the real shapes; null: no model, arbitrary tokens at once; both "
        "are for speed measurements",
    )
    prepared_weights: str = _setting(
        "auto",
        "folder that keeps a CPU's weights in their run-time form, which the next start maps, "
        "and what steps cost; auto: quire/prepared in the user's cache folder; none: keep none",
    )
    pooling: Literal["auto", "mean", "last"] = _setting(
        "auto",
        "how hidden states become an embedding; auto: as the checkpoint's files say, or the last "
        "token's",
    )
    seed: int = _setting(0, "seed of dummy weights and of requests that bring none")

    @property
    def public_name(self) -> str:
        """What requests call the model."""
        return self.served_model_name or self.model

    def __post_init__(self) -> None:
        _require(
            self.served_model_name is None or self.served_model_name.strip() != "",
            "served_model_name is empty; give a name, or leave it out",
        )
        _require_count("max_model_len", self.max_model_len)
        _require(
            -(2**63) <= self.seed < 2**63,
            f"seed is {self.seed}; give a number of 64 bits, from {-(2**63)} to {2**63 - 1}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """How the KV cache is cut and shared."""

    block_size: int = _setting(16, "tokens per KV block")
    num_blocks: int | None = _setting(None, "number of KV blocks; default: from the memory given")
    kv_cache_memory_bytes: int | None = _setting(None, "bytes for the KV cache, all layers")
    gpu_memory_utilization: float = _setting(
        0.9, "share of a GPU's memory to plan for; a CPU has none"
    )
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3", "int8"] = _setting(
        "auto",
        "data type of keys and values in the KV cache; auto: the model's; fp8 (or fp8_e4m3): 8 "
        "bits, so that twice as many tokens fit; int8: 8 bits and a scale for each head, on a CPU",
    )
    enable_prefix_caching: bool = _setting(True, "share the KV blocks of equal prefixes")

    def __post_init__(self) -> None:
        _require(
            self.block_size > 0 and self.block_size & (self.block_size - 1) == 0,
            f"block_size is {self.block_size}; give a power of two, such as 16",
        )
        _require_count("block_size", self.block_size)
        _require_count("num_blocks", self.num_blocks)
        _require(
            self.kv_cache_memory_bytes is None or 0 < self.kv_cache_memory_bytes < 2**63,
            f"kv_cache_memory_bytes is {self.kv_cache_memory_bytes}; give a positive number of 64 "
            "bits",
        )
        _require(
            self.num_blocks is None or self.kv_cache_memory_bytes is None,
            "num_blocks and kv_cache_memory_bytes both set the size of the KV cache; give one",
        )
        _require(
            0.0 < self.gpu_memory_utilization <= 1.0,
            f"gpu_memory_utilization is {self.gpu_memory_utilization}; give a share in (0, 1]",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """Who runs next, with how many tokens."""

    max_num_seqs: int = _setting(256, "most requests running at once")
    max_num_batched_tokens: int = _setting(
        0,
        "token budget of one step; 0: 2048, on a GPU 8192, on a slow CPU as many as it is measured "
        "to compute in 2 seconds; or max_num_seqs if that is more",
    )
    scheduling_policy: Literal["fcfs", "priority"] = _setting(
        "fcfs", "order of waiting requests: first come, or lowest priority number first"
    )
    enable_chunked_prefill: bool = _setting(True, "let a prompt be computed over several steps")
    long_prefill_token_threshold: int = _setting(
        0,
        "most prompt tokens one request gets in a step while others run or wait; 0: half the "
        "budget while others decode",
    )
    itl_target_ms: float | None = _setting(
        None,
        "longest time between two tokens of a request, in milliseconds, that prompts of others may "
        "cause; default: none",
    )

    ttft_target_ms: float | None = _setting(
        None,
        "time from a request's arrival to its first token, in milliseconds, by which prompts take "
        "turns; default: none",
    )

    def __post_init__(self) -> None:
        _require_count("max_num_seqs", self.max_num_seqs)
        _require_count("max_num_batched_tokens", self.max_num_batched_tokens, 0)
        _require_count("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        _require(
            self.max_num_batched_tokens == 0 or self.max_num_batched_tokens >= self.max_num_seqs,
            f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs "
            f"({self.max_num_seqs}), so not every running request could advance; raise the former "
            "or lower the latter",
        )
        for name in ("itl_target_ms", "ttft_target_ms"):
            target = getattr(self, name)
            _require(
                target is None or 0.0 < target < math.inf,
                f"{name} is {target}; give a positive number of milliseconds",
            )
        _require(
            self.itl_target_ms is None or self.enable_chunked_prefill,
            "itl_target_ms needs prompts that are cut into chunks; set enable_chunked_prefill, or "
            "leave the target out",
        )

    def check_longest_prompt(self, max_model_len: int) -> None:
        """Raises ConfigError when a prompt could never be scheduled whole though it must."""
        budget = self.max_num_batched_tokens
        _require(
            self.enable_chunked_prefill or budget >= max_model_len,
            f"max_num_batched_tokens ({budget}) is below max_model_len ({max_model_len}), so the "
            "longest prompts could never run whole; raise the former, lower the latter, or set "
            "enable_chunked_prefill",
        )

    def settled(self, device_type: str) -> SchedulerConfig:
        """With the budget that a device of this type gets where none was given."""
        default = 8192 if device_type == "cuda" else 2048
        budget = self.max_num_batched_tokens or max(default, self.max_num_seqs)
        return dataclasses.replace(self, max_num_batched_tokens=budget)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceConfig:
    """Where tensors live."""

    device: Literal["auto", "cpu", "cuda"] = _setting("auto", "auto: CUDA if there is one")
    threads: int | None = _setting(
        None,
        "CPU threads for tensor work; default: as many as the cores it may use, or fewer "
        "where the start measures that to be faster; one for a tiny model",
    )
    enforce_eager: bool = _setting(
        False, "on a GPU, launch kernels one by one instead of replaying CUDA graphs"
    )
    batch_invariant: bool = _setting(
        False,
        "on a GPU, use kernels by which a request gets the same tokens alone and in any batch; "
        "slower, and for weights in 16 or 32 bits or FP8",
    )

    def __post_init__(self) -> None:
        _require_count("threads", self.threads)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """The whole tree."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)

    def __post_init__(self) -> None:
        _require(
            not self.device.batch_invariant or self.model.quantization in ("none", "fp8"),
            f"batch_invariant has no kernels for quantization {self.model.quantization!r}; "
            "leave one of the two out",
        )

    @property
    def shares_prefixes(self) -> bool:
        """Whether kernels may read what requests have in common once for all of them."""
        return self.cache.enable_prefix_caching and not self.device.batch_invariant

    def settled(self, device_type: str) -> EngineConfig:
        """With what depends on the device filled in; device_type: "cpu" or "cuda".

        Raises ConfigError for what that device has not.
        """
        _require(
            not self.device.batch_invariant or device_type == "cuda",
            f"batch_invariant is for GPUs, but device is {device_type!r}; leave it out",
        )
        _require(
            self.cache.kv_cache_dtype != "int8" or device_type == "cpu",
            "kv_cache_dtype is 'int8', which only a CPU's kernels read; give 'fp8', or "
            "device='cpu'",
        )
        device = dataclasses.replace(self.device, device="cuda" if device_type == "cuda" else "cpu")
        scheduler = self.scheduler.settled(device_type)
        return dataclasses.replace(self, device=device, scheduler=scheduler)

    @classmethod
    def from_options(cls, **options: Any) -> EngineConfig:
        """Build the tree from flat names, such as `block_size=16`.

        Raises ConfigError for an unknown name (with the nearest known one) or a wrong type.
        """
        owners = {option.name: section for section, option in iter_options()}
        groups: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            if name not in owners:
                near = difflib.get_close_matches(name, owners, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(owners)}"
                raise ConfigError(f"unknown setting {name!r}; {hint}")
            groups.setdefault(owners[name], {})[name] = _checked(owners[name], name, value)
        return cls(**{s: _SECTIONS[s](**groups.get(s, {})) for s in _SECTIONS})


_SECTIONS: dict[str, Any] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "device": DeviceConfig,
}


@dataclass(frozen=True, slots=True)
class Option:
    """One setting as the command line sees it."""

    name: str
    kind: type  # bool, int, float or str
    default: Any
    choices: tuple[str, ...] | None
    help: str
    is_list: bool = False  # text with commas between; an option that may be given several times


def iter_options() -> list[tuple[str, Option]]:
    """Every setting of the tree as (section, Option), in order of declaration."""
    return [(section, option) for section, cls in _SECTIONS.items() for option in options_of(cls)]


def options_of(cls: Any) -> list[Option]:
    """The fields of one settings class, in order of declaration."""
    hints = get_type_hints(cls)
    found = []
    for f in dataclasses.fields(cls):
        kind, choices = _plain_type(hints[f.name])
        found.append(Option(f.name, kind, f.default, choices, **f.metadata))
    return found


def _plain_type(hint: Any) -> tuple[type, tuple[str, ...] | None]:
    """`int | None` → int; `Literal["a", "b"]` → str with choices."""
    if get_origin(hint) is Literal:
        return str, get_args(hint)
    inner = [t for t in get_args(hint) if t is not type(None)]
    return (inner[0], None) if inner else (hint, None)


def _checked(section: str, name: str, value: Any) -> Any:
    option = next(o for s, o in iter_options() if s == section and o.name == name)
    if value is None and option.default is None:
        return None
    if option.kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if option.choices is not None and value not in option.choices:
        raise ConfigError(f"{name} is {value!r}; give one of {', '.join(option.choices)}")
    accepted: tuple[type, ...] = (int, float) if option.kind is float else (option.kind,)
    if not isinstance(value, accepted) or (option.kind is not bool and isinstance(value, bool)):
        raise ConfigError(f"{name} is {value!r}; give a value of type {option.kind.__name__}")
    return value
