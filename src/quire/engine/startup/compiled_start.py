"""The start that needs no PyTorch: the compiled decoder over prepared weights.

Owns when that is possible; torch_start.py does the other starts.
"""

from __future__ import annotations

import logging
from functools import partial

from quire.config import EngineConfig
from quire.core.layer_spec import UnsupportedModelError, check_features
from quire.engine.startup.backend import HostBackend
from quire.engine.startup.device_policy import torch_reason
from quire.engine.startup.resolved_config import ResolvedConfig, resolve
from quire.engine.startup.startup_phases import Phases
from quire.engine.startup.step_tuning import thread_candidates
from quire.kernels.cpu.native import set_num_threads
from quire.kvcache.host_kv_cache import HostCache
from quire.models.prepared.prepared_files import prepared_file
from quire.models.prepared.prepared_reader import StoredArrays, open_prepared
from quire.models.runtimes.compiled_decoder import CompiledDecoder
from quire.models.runtimes.compiled_weights import COMPUTED

logger = logging.getLogger(__name__)


def load_prepared(config: EngineConfig, phases: Phases) -> HostBackend:
    """Load the model of these settings from prepared weights.

    Raises UnsupportedModelError with the reason where PyTorch is needed, and ConfigError or
    CheckpointError for what could not start with it either.
    """
    with phases.timed("device"):
        resolved = resolve_for_compiled(config)
        set_num_threads(thread_candidates(resolved.config, resolved.model_config)[0])
    with phases.timed("weights"):
        decoder = make_decoder(resolved, open_stored(resolved))
    return compiled_backend(resolved, decoder, phases)


def resolve_for_compiled(config: EngineConfig) -> ResolvedConfig:
    """The resolved config of a start without PyTorch; raises as `load_prepared`."""
    if reason := torch_reason(config):
        raise UnsupportedModelError(reason)
    resolved = resolve(config, "cpu")
    check_features(resolved.model_config.spec, COMPUTED)  # before its weights are mapped
    return resolved


def open_stored(resolved: ResolvedConfig) -> StoredArrays:
    """The model's prepared weights. Raises UnsupportedModelError if there are none."""
    model, model_config = resolved.config.model, resolved.model_config
    file = prepared_file(model, model_config, resolved.folder, resolved.dtype)
    found = None if file is None else open_prepared(file)
    if found is None:
        raise UnsupportedModelError("there are no prepared weights of this model")
    logger.info("weights mapped from %s", file)
    return found.stored_arrays()


def make_decoder(resolved: ResolvedConfig, stored: StoredArrays) -> CompiledDecoder:
    """The decoder over these weights. Raises UnsupportedModelError."""
    if {layer.dtype for layer in resolved.kv_layers} - {None, resolved.kv_dtype}:
        raise UnsupportedModelError("layers with keys and values of different data types")
    return CompiledDecoder(resolved.model_config.spec, stored, resolved.config.cache.block_size)


def compiled_backend(
    resolved: ResolvedConfig, decoder: CompiledDecoder, phases: Phases
) -> HostBackend:
    """The decoder's backend, with its steps measured."""
    backend = HostBackend(resolved, partial(with_cache, resolved, decoder))
    backend.tune(phases)
    return backend


def with_cache(
    resolved: ResolvedConfig, decoder: CompiledDecoder, num_layers: int, num_blocks: int
) -> CompiledDecoder:
    """The decoder with a KV cache for its first layers; see `WithCache`."""
    layers, block_size = resolved.kv_layers[:num_layers], resolved.config.cache.block_size
    cache = HostCache.allocate(layers, num_blocks, block_size, resolved.kv_dtype)
    return decoder.with_cache(cache)
