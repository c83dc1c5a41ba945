"""The settings of an engine: frozen dataclasses, composed to EngineConfig.

The command line and `LLM(...)` are both generated from these fields (options.py), so a setting has
one name, one default, one range and one description everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from quire.compat.own_options import OPTION_SCOPES, names_as_given, own_options
from quire.errors import ConfigError, warn_no_effect
from quire.options import (
    COUNT,
    MOST,
    MOST_BYTES,
    Option,
    check_ranges,
    nearest_name,
    options_of,
    require,
    setting,
)

__path__: list[str] = []  # `from quire.config import X` then asks ForeignModules what X is

BUNDLED_MODEL = "quire-tiny"
_MILLISECONDS = (0.001, 3_600_000)

SchemeName = Literal[
    "none", "fp8", "fp8_w8a16", "int8", "w8a16", "int4", "nf4", "mxfp4", "dequantized"
]
# what other engines' users say of a checkpoint that is quantized: its own method
StoredMethod = Literal[
    "awq", "gptq", "auto-round", "bitsandbytes", "compressed-tensors", "modelopt", "gguf"
]
STORED_METHODS = get_args(StoredMethod)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """The model, and how its weights are read."""

    model: str = setting(BUNDLED_MODEL, "folder, GGUF file, hub name, or the bundled model's name")
    tokenizer: str | None = setting(None, "folder or hub name of another tokenizer")
    skip_tokenizer_init: bool = setting(
        False, "load no tokenizer: prompts and answers are token ids"
    )
    chat_template: str | None = setting(
        None, "chat template to use instead of the model's: a file, or the template itself"
    )
    generation_config: str = setting(
        "auto",
        "sampling params for requests that give none; auto: those of the model's "
        "generation_config.json; none: Quire's own; or a folder with such a file",
    )
    override_generation_config: str | None = setting(
        None,
        'default sampling params as a JSON object, such as {"temperature": 0.5}, which '
        "override those of generation_config",
    )
    revision: str | None = setting(None, "branch, tag or commit of the model on the hub")
    served_model_name: str | None = setting(
        None,
        "name of the model in requests and replies; of several, separated by commas, "
        "replies use the first",
        is_list=True,
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto",
        "data type of weights and KV cache, unless quantization or kv_cache_dtype sets "
        "another; auto: the checkpoint's, or float32 for a small model on a CPU without "
        "16-bit instructions",
    )
    quantization: Literal[SchemeName, StoredMethod] = setting(
        "none",
        "weight format to convert weights to while loading; fp8, int8: 8 bits with a "
        "scale for each output, also in the head; fp8_w8a16, w8a16: the same with 16-bit "
        "activations; int4: 4 bits with a scale for each 32 weights, the head in int8; "
        "nf4: 4-bit quantiles with a scale for each 64; mxfp4: 4-bit floats with an "
        "exponent for each 32; dequantized: the weights of a quantized checkpoint "
        "converted to dtype; awq, gptq and other formats of checkpoints: no conversion, and "
        "refused if the checkpoint has another",
    )
    quantization_overrides: str | None = setting(
        None,
        "formats for some linear layers, by patterns of their names: "
        "*.down_proj=int8,lm_head=none; the first match decides, other layers follow "
        "quantization",
        is_list=True,
    )
    quality_gate: str = setting(
        "report",
        "which quantized weights to refuse; report: those whose quire_quality.json says "
        "that they failed; require: also those without a report; off: none; or limits for "
        "the figures of reports, such as perplexity=0.01,cosine=0.99,same_top_1=0.98",
    )
    max_model_len: int | None = setting(
        None, "most tokens of prompt and answer together; default: the model's limit", within=COUNT
    )
    load_format: Literal["auto", "bitsandbytes", "dummy", "null"] = setting(
        "auto",
        "auto: the checkpoint's weights; bitsandbytes: the same, with quantization bitsandbytes "
        "unless another is set; dummy: random weights in the same shapes; null: no model, "
        "arbitrary tokens; the last two are for speed measurements",
    )
    prepared_weights: str = setting(
        "auto",
        "folder for prepared weights of a CPU (packed for its kernels), which later "
        "starts map, and for measured step costs; auto: quire/prepared in the user's "
        "cache folder; none: nothing is stored",
    )
    pooling: Literal["auto", "mean", "last"] = setting(
        "auto",
        "how hidden states become an embedding; auto: as the checkpoint's files say, or "
        "the last token's state",
    )
    max_logprobs: int = setting(
        20,
        "most log-probabilities per token that a request may ask for; -1: the whole vocabulary",
        within=(-1, MOST),
    )
    seed: int = setting(
        0,
        "seed for dummy weights and for requests without a seed; -1: a new one at each start",
        within=(-(2**63), 2**63 - 1),
    )

    @property
    def public_name(self) -> str:
        """The model's name in requests and replies."""
        return self._names[0]

    @property
    def aliases(self) -> list[str]:
        """Further names that requests may use for it."""
        return self._names[1:]

    @property
    def scheme(self) -> SchemeName:
        """The scheme that weights are converted to; "none" where they stay as they are stored."""
        is_stored = self.quantization in STORED_METHODS
        return "none" if is_stored else cast(SchemeName, self.quantization)

    @property
    def _names(self) -> list[str]:
        given = self.served_model_name
        return [self.model] if given is None else [name.strip() for name in given.split(",")]

    def __post_init__(self) -> None:
        check_ranges(self)
        require(
            bool(self.model), "model must not be empty; name a folder, a GGUF file or a hub name"
        )
        require(
            bool(self.prepared_weights.strip()),
            "prepared_weights must not be empty; name a folder, or none",
        )
        require(
            all(self._names),
            "served_model_name must not be empty; set a name, or leave it out",
        )
        require(
            len(set(self._names)) == len(self._names),
            f"served_model_name is {self.served_model_name!r}, which has a name twice; remove one",
        )
        if self.load_format == "bitsandbytes":  # not a way to load, but what quantization is about
            object.__setattr__(self, "load_format", "auto")
            if self.quantization == "none":
                object.__setattr__(self, "quantization", "bitsandbytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """Settings of the KV cache: block size, number of blocks, dtype, prefix caching."""

    block_size: int = setting(16, "tokens per KV block", within=COUNT)
    num_blocks: int | None = setting(
        None, "number of KV blocks; default: as many as fit in memory", within=COUNT
    )
    kv_cache_memory_bytes: int | None = setting(
        None, "bytes for the KV cache of all layers", within=(1, MOST_BYTES)
    )
    gpu_memory_utilization: float = setting(
        0.9, "share of a GPU's memory to use; no effect on CPUs", within=(0.001, 1.0)
    )
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "int8"] = setting(
        "auto",
        "data type of the KV cache; auto: the checkpoint's if its KV cache is quantized, "
        "otherwise the model's; fp8 (or fp8_e4m3): 8 bits, which fits twice as many "
        "tokens, with the checkpoint's scales, if any; int8: 8 bits with a scale for each "
        "token and head",
    )
    kv_cache_dtype_skip_layers: str | None = setting(
        None,
        "numbers of layers whose KV cache stays in the model's data type, separated by "
        "commas; sliding_window: all layers with a window",
        is_list=True,
    )
    enable_prefix_caching: bool = setting(True, "share the KV blocks of equal prefixes")

    def __post_init__(self) -> None:
        check_ranges(self)
        require(
            self.block_size & (self.block_size - 1) == 0,
            f"block_size must be a power of two, not {self.block_size}",
        )
        require(
            self.num_blocks is None or self.kv_cache_memory_bytes is None,
            "num_blocks and kv_cache_memory_bytes both set the KV cache's size; set one of them",
        )


# Prompt tokens of a step, beyond which a step hardly computes more of them a second
# (docs/decisions/scheduling.md).
FULL_STEP = {"cpu": 512, "cuda": 2048}


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """Settings of the scheduler: tokens and requests per step, chunked prefill, priorities."""

    max_num_seqs: int = setting(256, "most requests that run at once", within=COUNT)
    max_num_batched_tokens: int = setting(
        0,
        "token budget of a step; 0: max_num_seqs plus 512 (2048 on a GPU, 256 on a slow CPU); "
        "without chunked prefill, at least max_num_seqs plus max_model_len",
        within=(0, MOST),
    )
    scheduling_policy: Literal["fcfs", "priority"] = setting(
        "fcfs",
        "order of waiting requests; fcfs: first come, first served, but short prompts may "
        "pass longer ones; priority: lowest number first",
    )
    enable_chunked_prefill: bool = setting(True, "compute long prompts over several steps")
    long_prefill_token_threshold: int = setting(
        0,
        "most prompt tokens of one request in a step while others run or wait; 0: no limit",
        within=(0, MOST),
    )
    itl_target_ms: float | None = setting(
        None,
        "target for the time between two tokens of a request, in milliseconds, while "
        "prompts of others are computed; default: none",
        within=_MILLISECONDS,
    )
    ttft_target_ms: float | None = setting(
        None,
        "target for the time from arrival to first token, in milliseconds, by which "
        "prompts are ordered; default: none",
        within=_MILLISECONDS,
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        require(
            self.max_num_batched_tokens == 0 or self.max_num_batched_tokens >= self.max_num_seqs,
            f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs "
            f"({self.max_num_seqs}), so not every running request could advance; raise "
            "max_num_batched_tokens or lower max_num_seqs",
        )
        require(
            self.itl_target_ms is None or self.enable_chunked_prefill,
            "itl_target_ms needs prompts that are cut into chunks; set enable_chunked_prefill, or "
            "leave the target out",
        )

    def check_longest_prompt(self, max_model_len: int) -> None:
        """Raise ConfigError if the longest prompts can never be scheduled."""
        budget = self.max_num_batched_tokens
        require(
            self.enable_chunked_prefill or budget >= max_model_len,
            f"max_num_batched_tokens ({budget}) is below max_model_len ({max_model_len}), so the "
            "longest prompts could never run whole; set enable_chunked_prefill, raise "
            "max_num_batched_tokens or lower max_model_len",
        )

    def resolved(self, device_type: str, max_model_len: int) -> SchedulerConfig:
        """A copy with the default token budget of a device, if none was given.

        max_model_len: of the model; whole prompts fit in a step as long as that.
        """
        prompts = FULL_STEP[device_type]
        if not self.enable_chunked_prefill:
            prompts = max(4 * prompts, max_model_len)
        budget = self.max_num_batched_tokens or prompts + self.max_num_seqs
        return dataclasses.replace(self, max_num_batched_tokens=budget)

    @property
    def full_step(self) -> int:
        """The most prompt tokens of a step: what is left of the budget beside all decodes."""
        budget = self.max_num_batched_tokens
        return max(budget - self.max_num_seqs, -(-budget // 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceConfig:
    """Settings of the device: CPU or GPU, threads, CUDA graphs, batch invariance."""

    device: Literal["auto", "cpu", "cuda"] = setting("auto", "auto: a CUDA GPU if there is one")
    threads: int | None = setting(
        None,
        "CPU threads for tensor work; default: one for each available core, or fewer if "
        "the start measures that to be faster; one for a tiny model",
        within=COUNT,
    )
    enforce_eager: bool = setting(
        False, "on a GPU, launch kernels one by one instead of replaying CUDA graphs"
    )
    batch_invariant: bool = setting(
        False,
        "results do not depend on the batch, so that a request gets the same tokens alone and in "
        "any batch; on a GPU by slower kernels; on a CPU compiled kernels are so in any case, and "
        "what they do not run is refused",
    )

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """All settings of an engine."""

    model: ModelSettings = field(default_factory=ModelSettings)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)

    @property
    def shares_prefixes(self) -> bool:
        """Whether kernels may read what requests have in common once for all of them."""
        return self.cache.enable_prefix_caching and not self.device.batch_invariant

    def resolved(self, device_type: str, max_model_len: int) -> EngineConfig:
        """A copy with defaults resolved that depend on the device and on the model's length.

        device_type: "cpu" or "cuda".
        """
        device = dataclasses.replace(self.device, device="cuda" if device_type == "cuda" else "cpu")
        scheduler = self.scheduler.resolved(device_type, max_model_len)
        model = dataclasses.replace(self.model, quantization=self.model.scheme)
        return dataclasses.replace(self, model=model, device=device, scheduler=scheduler)

    @classmethod
    def from_options(cls, **options: Any) -> EngineConfig:
        """Build the tree from flat names, such as `block_size=16`.

        Names and values of other engines are translated (quire.compat); those without effect are a
        NoEffectWarning. Raises ConfigError for a name that is refused or unknown (with the nearest
        known one), or a wrong type.
        """
        known = {option.name: (section, option) for section, option in iter_options()}
        groups: dict[str, dict[str, Any]] = {}
        own, notices = own_options(options, known, OPTION_SCOPES)
        warn_no_effect(notices)
        with names_as_given(options, OPTION_SCOPES):
            for name, value in own.items():
                if name not in known:
                    raise ConfigError(unknown_setting(name, known))
                section, option = known[name]
                groups.setdefault(section, {})[name] = option.checked(value)
            return cls(**{s: _SECTIONS[s](**groups.get(s, {})) for s in _SECTIONS})


def unknown_setting(name: str, known: Collection[str]) -> str:
    """The error message for an unknown name of a setting."""
    from quire.compat.name_homes import python_home  # usually not needed

    near = nearest_name(name, known)
    hint = f"did you mean {near!r}?" if near else "leave it out; `quire serve --help` lists all"
    return python_home(name) or f"unknown setting {name!r}; {hint}"


_SECTIONS: dict[str, Any] = {
    "model": ModelSettings,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "device": DeviceConfig,
}


def iter_options() -> list[tuple[str, Option]]:
    """Every setting of the tree as (section, Option), in order of declaration."""
    return [(section, option) for section, cls in _SECTIONS.items() for option in options_of(cls)]
