"""Refusals of what a device does not run, from settings and a model's config alone. No torch."""

from __future__ import annotations

from quire.config import EngineConfig
from quire.core.layer_spec import MoESpec, UnsupportedModelError, check_features
from quire.engine.startup.device_policy import DeviceType, torch_reason
from quire.engine.startup.footprint import has_half_bytes
from quire.errors import ConfigError
from quire.kernels.cpu import native
from quire.models.config.model_config import ModelConfig
from quire.models.runtimes.compiled_weights import COMPUTED

MOST_OFFSETS = 2**31 - 1  # in a tensor
# Requests times key heads of decode attention, NUM_COUNTERS of the kernels, which import Triton.
MOST_ROWS = 2**18


def check_device(
    config: EngineConfig, model_config: ModelConfig, device: DeviceType, *, has_budget: bool
) -> None:
    """Raise ConfigError for what the device does not run, or not as the settings ask.

    has_budget: whether the token budget of a step was given.
    """
    if device == "cuda":
        _refuse_experts(model_config)
        is_chosen = has_budget or config.scheduler.enable_chunked_prefill
        _refuse_large_steps(config, model_config, is_chosen)
    elif config.device.batch_invariant:
        _check_invariance(config, model_config)


def _check_invariance(config: EngineConfig, model_config: ModelConfig) -> None:
    """Raise ConfigError where a row's results depend on the batch on this CPU."""
    reason = torch_reason(config)
    if reason is None:
        try:
            check_features(model_config.spec, COMPUTED)
        except UnsupportedModelError as error:
            reason = str(error)
    if reason is not None:
        raise varies_by_batch(reason)
    if native.instruction_set() == "amx" and has_half_bytes(config, model_config):
        raise ConfigError(
            "batch_invariant: with AMX few and many rows of weights in four bits have different "
            "kernels; use quantization='int8', or leave batch_invariant out"
        )


def varies_by_batch(reason: str) -> ConfigError:
    """The error for batch_invariant where PyTorch runs a model on a CPU. reason: why it does."""
    return ConfigError(
        f"batch_invariant needs the compiled kernels on a CPU, but PyTorch runs this model "
        f"({reason}); leave batch_invariant out"
    )


def _refuse_experts(model_config: ModelConfig) -> None:
    """Raise ConfigError for what no CUDA graph holds: sizes that depend on what tokens are."""
    for layer in model_config.spec.layers:
        if isinstance(layer.mlp, MoESpec):
            raise ConfigError(
                f"the model has a {layer.mlp.name}, which runs on CPUs only; use device='cpu', or "
                "take a dense model"
            )


def _refuse_large_steps(config: EngineConfig, model_config: ModelConfig, is_chosen: bool) -> None:
    """Raise ConfigError for steps with a tensor in which kernels' offsets, of 32 bits, overflow.

    And for more requests than attention has counters for. is_chosen: whether the token budget is
    not what whole prompts need.
    """
    widths = [model_config.hidden_size]
    key_heads = max(layer.attention.num_kv_heads for layer in model_config.spec.layers)
    for layer in model_config.spec.layers:
        attention = layer.attention
        widths.append((attention.num_heads + 2 * attention.num_kv_heads) * attention.key_dim)
        widths.append(2 * layer.mlp.intermediate_size)  # gate and up
    scheduler, rows = config.scheduler, model_config.vocab_size if model_config.has_head else 1
    for name, count, most in (
        ("max_num_batched_tokens", scheduler.max_num_batched_tokens, MOST_OFFSETS // max(widths)),
        ("max_num_seqs", scheduler.max_num_seqs, MOST_OFFSETS // rows),  # of logits
        ("max_num_seqs", scheduler.max_num_seqs, MOST_ROWS // key_heads),
    ):
        if count > most:
            fix = "lower it"
            if name == "max_num_batched_tokens" and not is_chosen:
                fix = "lower max_model_len, as prompts are computed whole, or set "
                fix += "enable_chunked_prefill"
            raise ConfigError(
                f"{name} is {count:,}, but on a GPU it is at most {most:,} for this model; {fix}"
            )
