"""The way to a loaded model by PyTorch: on a GPU, or where no weights are prepared yet."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial

import torch

from quire.config import EngineConfig
from quire.engine.gpu.device_backend import DeviceBackend, name_of
from quire.engine.startup.backend import Backend, Task, task_of
from quire.engine.startup.compiled_start import decoder_of, host_backend
from quire.engine.startup.device_policy import (
    asked_kernels,
    choose_device,
    choose_dtype,
    choose_kv_type,
)
from quire.engine.startup.host_backend import HostBackend
from quire.engine.startup.library_pages import give_back_code
from quire.engine.startup.out_of_memory import fitting_weights
from quire.engine.startup.prefetch import wait_for_triton
from quire.engine.startup.startup_phases import Phases
from quire.engine.startup.step_tuning import is_tiny
from quire.engine.startup.thread_candidates import thread_candidates
from quire.engine.startup.torch_model import with_cache
from quire.kernels.cpu import native
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.cpu.torch_matmul import is_emulated
from quire.kernels.dispatch import describe
from quire.models.families.llama import LlamaForCausalLM
from quire.models.loading.loader import load_unsaved
from quire.models.prepared.prepared_weights import arrays_of, kept_tensors
from quire.models.runtimes.compiled_weights import UnsupportedModelError

logger = logging.getLogger(__name__)

_UNCOMPILED = (
    "there are no compiled kernels for this processor, and steps take several times as long; "
    "install again with a C++ compiler, if there was none"
)


def load_with_torch(config: EngineConfig, phases: Phases) -> Backend:
    """Find the device and the model's files, check what can be, and read the weights.

    Raises CheckpointError or ConfigError, which say what to change.
    """
    with phases.timed("device"):
        device = choose_device(config)
        if device.type == "cuda":
            phases.wait = torch.cuda.synchronize
        task = task_of(config, device.type)
    model_config, config = task.model_config, task.config
    dtype = choose_dtype(config, model_config, device)
    kv_dtype = choose_kv_type(config, dtype, device)
    set_num_threads(thread_candidates(config, model_config)[0])
    kernels = asked_kernels(config, device)
    with phases.timed("weights"), fitting_weights(model_config, name_of(dtype)):
        model, unsaved = load_unsaved(config.model, model_config, task.path, device, dtype, kernels)

    def end_start() -> None:
        give_back_code()
        if unsaved is not None:
            unsaved.save_beside(model)

    if device.type == "cpu":
        return _on_host(task, model, dtype, kv_dtype, phases, end_start)
    wait_for_triton()
    return DeviceBackend(task, model, device, dtype, kv_dtype)


def _on_host(
    task: Task,
    model: LlamaForCausalLM,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    phases: Phases,
    end_start: Callable[[], None],
) -> HostBackend:
    """Compiled code takes over from here where it can."""
    if native.library() is None and native.VARIABLE not in os.environ:
        logger.warning("%s", _UNCOMPILED)
    tensors = kept_tensors(model)
    opaque = any(tensor.is_mkldnn for tensor in tensors.values())
    if native.library() is not None and not task.config.device.batch_invariant and not opaque:
        try:
            decoder = decoder_of(task, arrays_of(tensors))
        except UnsupportedModelError as error:
            logger.info("PyTorch's modules run the model: %s", error)
        else:
            return host_backend(task, decoder, name_of(dtype), phases, end_start)
    backend = HostBackend(
        task,
        partial(with_cache, model, task.model_config, task.config.cache.block_size, kv_dtype),
        name_of(dtype),
        name_of(kv_dtype),
        end_start,
    )
    if not is_tiny(task.model_config):
        capability = torch.backends.cpu.get_cpu_capability()
        with phases.timed("tuning"):
            backend.tune(
                thread_candidates(task.config, task.model_config),
                (torch.__version__, describe("cpu"), capability, is_emulated(dtype)),
            )
    return backend
