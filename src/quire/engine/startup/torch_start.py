"""The start with PyTorch: on a GPU, or where there are no prepared weights yet."""

from __future__ import annotations

import logging
import os
import platform
from functools import cache, partial

import torch
from msgspec.structs import replace

from quire.config import EngineConfig
from quire.core.layer_spec import UnsupportedModelError
from quire.engine.startup.backend import Backend, HostBackend
from quire.engine.startup.compiled_start import compiled_backend, make_decoder
from quire.engine.startup.device_checks import varies_by_batch
from quire.engine.startup.device_policy import FP8, choose_kv_dtype, device_type
from quire.engine.startup.footprint import check_weights
from quire.engine.startup.gpu_backend import GpuBackend
from quire.engine.startup.out_of_memory import fitting_weights
from quire.engine.startup.prefetch import wait_for_triton
from quire.engine.startup.resolved_config import ResolvedConfig, resolve
from quire.engine.startup.startup_phases import Phases
from quire.engine.startup.step_tuning import thread_candidates
from quire.engine.startup.torch_import import give_back_code
from quire.errors import ConfigError
from quire.kernels.cpu import native
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.cpu.torch_matmul import is_emulated
from quire.kernels.dispatch import Kernels, describe, has_triton, kernels_for
from quire.kernels.torch_dtypes import torch_dtype
from quire.models.families.llama import LlamaForCausalLM
from quire.models.loading.loader import load_unsaved
from quire.models.prepared.prepared_reader import StoredArrays
from quire.models.prepared.prepared_weights import formats_of, stored_arrays
from quire.models.runtimes.torch_model import with_cache
from quire.processes import check_process

logger = logging.getLogger(__name__)

_FP8_WEIGHTS = "FP8 has no kernel for CPUs and is many times slower than 16 bits; use int8"


def load_with_torch(config: EngineConfig, phases: Phases) -> Backend:
    """Find the device and the model's files, check what can be, and read the weights.

    Raises CheckpointError or ConfigError, which say what to change.
    """
    check_process(_first_process(), "PyTorch has run a model")
    with phases.timed("device"):
        device, resolved = resolve_for_torch(config)
        if device.type == "cuda":
            phases.wait = torch.cuda.synchronize
    config, model_config = resolved.config, resolved.model_config
    dtype = torch_dtype(resolved.dtype)
    set_num_threads(thread_candidates(config, model_config)[0])
    kernels = requested_kernels(config, device)
    with phases.timed("weights"), fitting_weights(model_config, resolved.dtype):
        model, unsaved = load_unsaved(
            config.model, model_config, resolved.folder, device, dtype, kernels
        )

    if device.type != "cpu":
        wait_for_triton()
        return GpuBackend(resolved, model, device)
    backend = _host_backend(resolved, model, phases)

    def on_started() -> None:
        give_back_code()
        if unsaved is not None:
            unsaved.save_beside(model)

    backend.on_started = on_started
    return backend


@cache
def _first_process() -> int:
    """The id of the process in which PyTorch first ran a model; forks of it know it, too."""
    return os.getpid()


def resolve_for_torch(config: EngineConfig) -> tuple[torch.device, ResolvedConfig]:
    """The device, and the config resolved for it. Raises ConfigError or CheckpointError."""
    device = torch_device(config)
    resolved = resolve(config, "cuda" if device.type == "cuda" else "cpu")
    if device.type == "cpu":
        check_weights(resolved.config, resolved.model_config, resolved.folder)
    return device, _with_known_kv_dtype(resolved, device)


def torch_device(config: EngineConfig) -> torch.device:
    """The device of `device_type`, unless that is "auto" and PyTorch says otherwise.

    Raises ConfigError for a GPU that PyTorch does not see.
    """
    wanted, expected = config.device.device, device_type(config)
    if wanted == "cpu":
        return torch.device("cpu")
    found = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and found == "cpu":
        raise ConfigError("device is 'cuda', but PyTorch finds no GPU; use device='cpu'")
    if found != expected:
        text = "device is %s and not %s, as the GPU's driver has it: PyTorch sees %s GPU"
        logger.warning(text, found, expected, "no" if found == "cpu" else "a")
    return torch.device(found)


def compiled_weights_of(model: LlamaForCausalLM) -> StoredArrays:
    """A loaded model's weights for the compiled decoder. Raises UnsupportedModelError."""
    if native.library() is None:
        raise UnsupportedModelError("there are no compiled kernels")
    return stored_arrays(model)


def requested_kernels(config: EngineConfig, device: torch.device) -> Kernels | None:
    """The operations that the settings ask for; None for the device's usual ones."""
    if not config.device.batch_invariant or device.type == "cpu":
        return None
    if not has_triton():
        raise ConfigError("batch_invariant needs Triton; pip install triton, or leave it out")
    return kernels_for(device.type, batch_invariant=True)


def _with_known_kv_dtype(resolved: ResolvedConfig, device: torch.device) -> ResolvedConfig:
    """The config with a data type of the KV cache that the device converts.

    Where the checkpoint alone asks for another one, that is the model's. Raises ConfigError if the
    settings do.
    """
    if device.type != "cuda" or resolved.kv_dtype != FP8:
        return resolved
    capability = torch.cuda.get_device_capability(device)
    found = choose_kv_dtype(resolved.config, resolved.model_config, capability)
    if found != resolved.kv_dtype:
        text = "the KV cache is in %s: this GPU does not convert FP8, as the checkpoint has it"
        logger.warning(text, found)
    return replace(resolved, kv_dtype=found)


def _no_kernels() -> str:
    """The reason why there are no compiled kernels here, and the fix if there is one."""
    if (machine := platform.machine()) in ("x86_64", "AMD64"):
        fix = "install again with a C++ compiler, if there was none"
        return f"there are no compiled kernels for this processor ({fix})"
    return f"Quire has no kernels for {machine} processors yet"


def _host_backend(resolved: ResolvedConfig, model: LlamaForCausalLM, phases: Phases) -> HostBackend:
    """The compiled decoder over the loaded weights, or PyTorch's modules where it cannot serve."""
    if native.library() is None and native.VARIABLE not in os.environ:
        logger.warning("%s; steps take several times as long", _no_kernels())
    try:
        decoder = make_decoder(resolved, compiled_weights_of(model))
    except UnsupportedModelError as error:
        if resolved.config.device.batch_invariant:
            raise varies_by_batch(str(error)) from None
        logger.info("PyTorch's modules run the model: %s", error)
        if any(str(weight.get("codes")).startswith("fp8") for weight in formats_of(model).values()):
            logger.warning("%s", _FP8_WEIGHTS)
    else:
        return compiled_backend(resolved, decoder, phases)
    block_size, kv_dtype = resolved.config.cache.block_size, torch_dtype(resolved.kv_dtype)
    ready = partial(with_cache, model, resolved.kv_layers, block_size, kv_dtype)
    backend = HostBackend(resolved, ready)
    capability = torch.backends.cpu.get_cpu_capability()
    matmuls = describe("cpu"), capability, is_emulated(torch_dtype(resolved.dtype))
    backend.tune(phases, (torch.__version__, *matmuls))
    return backend
