"""Settings and a model's config files, resolved for a device: what an engine is started with.

Owns what follows from them alone, and what is refused there: the same at a start, in a memory plan
and in a profile. No torch, and no look at a weight.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import msgspec

from quire.config import STORED_METHODS, EngineConfig, SchemeName
from quire.core.layer_spec import KVLayerSpec
from quire.core.pooling_params import PoolingParams
from quire.core.request_limits import RequestLimits
from quire.engine.startup.device_policy import DeviceType, choose_dtype, choose_kv_dtype
from quire.engine.startup.footprint import check_weights, weights_by_format
from quire.errors import ConfigError
from quire.hub import config_folder, model_folder
from quire.kvcache.kv_sizes import layers_with_types
from quire.model_folder import GGUF_LINK, unapplied_adapter
from quire.models.checkpoints.open_checkpoint import weight_bytes
from quire.models.config.model_config import ModelConfig
from quire.models.config.pooling_config import read_pooling
from quire.models.config.quality_gate import OFF, Quality, gate_limits, pass_gate
from quire.models.config.quality_report import StaleReportError, read_report
from quire.models.config.sampling_defaults import read_sampling_defaults
from quire.quantization.scheme import scheme_of
from quire.tokenizer.load_tokenizer import check_tokenizer

logger = logging.getLogger(__name__)

_FAILED = (
    "the weights do not pass the quality gate, which is off: %s; quantize them with more bits, "
    "smaller groups or another method"
)
_SKIPS_NOTHING = (
    "kv_cache_dtype_skip_layers has no effect: the whole KV cache is in %s; set kv_cache_dtype to "
    "fp8 or int8, or leave it out"
)
# By the name of a checkpoint format: the method of `quire quantize` that writes such weights, or
# "", and what converts weights to as many bits while they are loaded.
_MADE_BY: dict[str, tuple[str, SchemeName]] = {
    "awq": ("awq", "int4"),
    "gptq": ("gptq", "int4"),
    "auto-round": ("autoround", "int4"),
    "bitsandbytes": ("nf4", "nf4"),
    "compressed-tensors": ("gptq --format compressed-tensors", "int4"),
    "modelopt": ("fp8", "fp8"),
    "gguf": ("", "int4"),
}


class ResolvedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with nothing left open, and the model that they name.

    requested: the settings as given. folder: the model's files. length_limit: tokens that a
    request may have, prompt and answer. dtype, kv_dtype: of activations, of the KV cache, by
    PyTorch's names. kv_layers: what each layer stores, with types of those that differ. quality:
    figures of the weights' quality report, where there is one. sampling_defaults: of requests that
    leave a param out.
    """

    requested: EngineConfig
    config: EngineConfig
    folder: Path
    model_config: ModelConfig
    pooling: PoolingParams
    length_limit: int
    dtype: str
    kv_dtype: str
    kv_layers: tuple[KVLayerSpec, ...]
    quality: Quality | None
    sampling_defaults: dict[str, float]

    @property
    def kinds_of_layers(self) -> list[object]:
        """A record of each layer, equal for those that launch the same kernels."""
        return list(zip(self.model_config.spec.layers, self.kv_layers, strict=True))

    def log_weights(self) -> None:
        """Log a data type that the config lacks, and a setting without effect; warn of quality.

        That is, if they are quantized twice, or served although their check failed, or without an
        adapter that lies beside them.
        """
        model_config = self.model_config
        if adapter := unapplied_adapter(self.folder):
            logger.warning("%s", adapter)
        if self.config.cache.kv_cache_dtype_skip_layers and self.kv_dtype == self.dtype:
            logger.warning(_SKIPS_NOTHING, self.kv_dtype)
        if self.config.model.dtype == "auto" and not model_config.names_dtype:
            logger.info("config.json names no dtype; that of the weights is %s", model_config.dtype)
        if self.quality is not None and self.config.model.quality_gate == OFF:
            failures = (read_report(self.folder) or {}).get("failures")
            if failures:
                logger.warning(_FAILED, "; ".join(failures))
        wanted, stored = self.config.model.scheme, self.model_config.checkpoint_format
        if wanted in ("none", "dequantized") or stored is None:
            return
        logger.warning(
            "the checkpoint is already quantized (%s), and quantization is %r: its weights are "
            "dequantized and rounded a second time, to %s, and lose more; leave quantization out "
            "to serve what the checkpoint stores",
            *(stored.name, wanted, wanted),
        )


def resolve(requested: EngineConfig, device: DeviceType) -> ResolvedConfig:
    """Resolve settings for a device. Reads config files; downloads a model if need be.

    What config files decide is refused before weights are downloaded. Raises ConfigError or
    CheckpointError, which say what to change.
    """
    model = requested.model
    # what is wrong whatever the model is gets refused before one is downloaded
    scheme_of(model.scheme, device, model.quantization_overrides)
    gate_limits(model.quality_gate)
    folder = config_folder(requested)
    model_config = ModelConfig.from_folder(folder)
    _check_stored(requested, folder, model_config)
    length_limit = _length_limit(requested, model_config)
    config = _as_stored(requested.resolved(device, length_limit), model_config)
    if device == "cuda" or config.device.batch_invariant:
        from quire.engine.startup.device_checks import check_device  # most starts on CPUs need none

        is_given = requested.scheduler.max_num_batched_tokens > 0
        check_device(config, model_config, device, has_budget=is_given)
    dtype = choose_dtype(config, model_config)
    skipped = config.cache.kv_cache_dtype_skip_layers
    found = ResolvedConfig(
        requested=requested,
        config=config,
        folder=folder,
        model_config=model_config,
        pooling=read_pooling(folder, config.model.pooling, model_config.hidden_size),
        length_limit=length_limit,
        dtype=dtype,
        kv_dtype=choose_kv_dtype(config, model_config),
        kv_layers=layers_with_types(model_config.spec.kv_layers, skipped, dtype),
        quality=None,
        sampling_defaults=read_sampling_defaults(config),
    )
    had_weights = weight_bytes(folder) > 0
    folder = _with_weights(config, model_config, folder, device)
    if not had_weights and ModelConfig.from_folder(folder) != model_config:
        return resolve(requested, device)  # their data type, which the config lacks
    quality = _quality(config, folder, model_config)
    return msgspec.structs.replace(found, folder=folder, quality=quality)


def check_start(config: EngineConfig, device: DeviceType) -> Quality | None:
    """Refuse what a server refuses before it starts an engine, in this order; errors of both below.

    Downloads a model if need be, its weights last. Returns figures of their quality report.
    """
    check_files(config)
    return None if config.model.load_format == "null" else resolve(config, device).quality


def check_files(config: EngineConfig) -> None:
    """Refuse a model by its config, then by its tokenizer, which are read for no more than that.

    Raises CheckpointError or ConfigError.
    """
    ModelConfig.from_folder(config_folder(config))
    check_tokenizer(config)


def _with_weights(
    config: EngineConfig, model_config: ModelConfig, folder: Path, device: DeviceType
) -> Path:
    """The model's folder, with its weights; if they have to be downloaded, they can be served."""
    if config.model.load_format == "auto" and not weight_bytes(folder):
        _quality(config, folder, model_config)
        check = check_weights if device == "cpu" else weights_by_format
        check(config, model_config, None)
    return model_folder(config)


def _as_stored(config: EngineConfig, model_config: ModelConfig) -> EngineConfig:
    """The settings, which leave FP8 to a checkpoint in the format of that name, as vLLM's do."""
    stored = model_config.checkpoint_format
    if config.model.quantization != "fp8" or stored is None or stored.name != "fp8":
        return config
    return replace(config, model=replace(config.model, quantization="none"))


def _check_stored(requested: EngineConfig, folder: Path, model_config: ModelConfig) -> None:
    """Raise ConfigError for a quantization that is the name of a format, if the model's is none."""
    wanted, stored = requested.model.quantization, model_config.checkpoint_format
    if wanted not in STORED_METHODS or (stored is not None and stored.name == wanted):
        return
    given = f"quantization is {wanted!r}"
    if wanted == "bitsandbytes":  # the settings no longer say which of them it was
        given += f", which load_format={wanted!r} means, too"
    if stored is not None:
        raise ConfigError(
            f"{given}, but the checkpoint's weights are in the format of {stored.name}; leave that "
            "out to serve them as they are"
        )
    if (folder / GGUF_LINK).exists():  # with numbers of 16 bits
        if wanted == "gguf":
            return
        raise ConfigError(f"{given}, but the model is a GGUF file; leave that out")
    method, scheme = _MADE_BY[wanted]
    raise ConfigError(
        f"{given}, but the checkpoint is not quantized: its weights are in {model_config.dtype}; "
        f"use quantization={scheme!r} to convert them while they are loaded, "
        + (f"make a checkpoint with `quire quantize --method {method}`, " if method else "")
        + "or leave that out to serve them as they are"
    )


def _quality(config: EngineConfig, folder: Path, model_config: ModelConfig) -> Quality | None:
    """Figures of the weights' quality report. Raises CheckpointError if the gate refuses them."""
    if config.model.load_format != "auto":
        return None
    is_quantized, model = model_config.checkpoint_format is not None, config.model
    try:
        return pass_gate(
            folder, model.quality_gate, is_quantized=is_quantized, setting=model.quantization
        )
    except StaleReportError:
        if weight_bytes(folder):
            from quire.models.loading.loader import check_tensors  # PyTorch

            check_tensors(folder, model_config)  # a damaged file, or a config of another model
        raise


def _length_limit(config: EngineConfig, model_config: ModelConfig) -> int:
    """Raises ConfigError for more positions than the model has."""
    limit = model_config.max_position_embeddings
    wanted = config.model.max_model_len or limit
    if wanted > limit:
        raise ConfigError(
            f"max_model_len is {wanted}, but the model knows positions up to {limit}; lower it"
        )
    return wanted


def request_limits(
    config: EngineConfig, model_config: ModelConfig, max_model_len: int, num_slots: int
) -> RequestLimits:
    """The limits that requests are checked against. num_slots: tokens that the KV cache holds."""
    return RequestLimits(
        max_model_len=max_model_len,
        max_kv_tokens=num_slots,
        vocab_size=model_config.vocab_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        honours_priority=config.scheduler.scheduling_policy == "priority",
        hidden_size=model_config.hidden_size,
        generates=model_config.has_head,
        max_logprobs=config.model.max_logprobs,
    )
