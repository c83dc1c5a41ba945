"""The way to a loaded model that needs no PyTorch: compiled code over prepared weights.

Owns when that can be; torch_start.py does the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from quire.config import EngineConfig
from quire.engine.startup.backend import Task, task_of
from quire.engine.startup.compiled_model import CompiledModel
from quire.engine.startup.footprint import ITEM_BYTES, dtype_of, is_on_gpu
from quire.engine.startup.host_backend import HostBackend
from quire.engine.startup.startup_phases import Phases
from quire.engine.startup.step_tuning import is_tiny
from quire.engine.startup.thread_candidates import thread_candidates
from quire.kernels.cpu import native
from quire.kernels.cpu.native import set_num_threads
from quire.kvcache.host_kv_cache import HostCache
from quire.kvcache.kv_sizes import kv_name
from quire.models.prepared.prepared_files import prepared_file
from quire.models.prepared.prepared_reader import open_prepared
from quire.models.runtimes.compiled_decoder import CompiledDecoder
from quire.models.runtimes.compiled_weights import Arrays, UnsupportedModelError

logger = logging.getLogger(__name__)


def load_prepared(config: EngineConfig, phases: Phases) -> HostBackend | None:
    """The model of these settings; None where PyTorch has to make it.

    Raises ConfigError or CheckpointError for what no way could start on a CPU.
    """
    if _may_be_on_gpu(config) or config.device.batch_invariant or native.library() is None:
        return None
    with phases.timed("device"):
        task = task_of(config, "cpu")
        if task.config.model.dtype == "auto" and task.model_config.dtype not in ITEM_BYTES:
            return None  # the loader tells
        dtype = dtype_of(task.config, task.model_config)
        set_num_threads(thread_candidates(task.config, task.model_config)[0])
    with phases.timed("weights"):
        file = prepared_file(task.config.model, task.model_config, task.path, dtype)
        found = None if file is None else open_prepared(file)
        if found is None:
            return None
        try:
            decoder = decoder_of(task, found.arrays())
        except UnsupportedModelError as error:
            logger.info("prepared weights are left to PyTorch: %s", error)
            return None
    logger.info("weights mapped from %s", file)
    return host_backend(task, decoder, dtype, phases)


def decoder_of(task: Task, arrays: Arrays) -> CompiledDecoder:
    """Raises UnsupportedModelError."""
    return CompiledDecoder(task.model_config, arrays, task.config.cache.block_size)


def host_backend(
    task: Task,
    decoder: CompiledDecoder,
    dtype: str,
    phases: Phases,
    end_start: Callable[[], object] | None = None,
) -> HostBackend:
    """The decoder, with as many threads as pay. end_start: called behind the start."""
    kv_type = kv_name(task.config.cache.kv_cache_dtype, dtype)
    with_cache = partial(_with_cache, task, decoder, kv_type)
    backend = HostBackend(task, with_cache, dtype, kv_type, end_start)
    if not is_tiny(task.model_config):
        with phases.timed("tuning"):
            backend.tune(thread_candidates(task.config, task.model_config))
    return backend


def _with_cache(
    task: Task, decoder: CompiledDecoder, kv_type: str, num_layers: int, num_blocks: int
) -> CompiledModel:
    model_config, block_size = task.model_config, task.config.cache.block_size
    sizes = num_layers, num_blocks, block_size, model_config.num_kv_heads, model_config.head_dim
    return CompiledModel(decoder, HostCache.allocate(*sizes, kv_type))


def _may_be_on_gpu(config: EngineConfig) -> bool:
    """Also where a GPU is one of another system's, as far as files tell without PyTorch."""
    on_wsl = config.device.device == "auto" and Path("/dev/dxg").exists()
    return is_on_gpu(config) or on_wsl
