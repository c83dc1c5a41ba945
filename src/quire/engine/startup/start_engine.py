"""From settings to a running engine core: find the files, load the model, plan the memory.

No torch here. Owns the order of start-up. There are two ways to a loaded model: compiled_start.py,
which needs no PyTorch, and torch_start.py.
"""

from __future__ import annotations

import logging
import time
from functools import partial

from quire.config import EngineConfig
from quire.core.layer_spec import UnsupportedModelError
from quire.core.request_limits import RequestLimits
from quire.engine.core.engine_core import EngineCore
from quire.engine.core.engine_info import EngineInfo
from quire.engine.core.executor import Executor
from quire.engine.core.grammar_matchers import GrammarMatchers
from quire.engine.startup.backend import Backend
from quire.engine.startup.compiled_start import load_prepared
from quire.engine.startup.kv_cache_size import choose_max_model_len, choose_num_blocks
from quire.engine.startup.out_of_memory import fitting_kv, fitting_step
from quire.engine.startup.resolved_config import ResolvedConfig, request_limits
from quire.engine.startup.startup_phases import Phases
from quire.engine.startup.torch_import import can_run_torch, import_torch
from quire.grammar.grammar_compiler import GrammarCompiler
from quire.grammar.vocabulary import Vocabulary
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.kvcache.kv_sizes import block_bytes
from quire.layers.forward_context import Heartbeat, no_heartbeat
from quire.models.checkpoints.open_checkpoint import weight_bytes
from quire.models.config.model_config import ModelConfig
from quire.processes import forked_error
from quire.scheduler.scheduler import Scheduler
from quire.tokenizer.load_tokenizer import load_tokenizer

logger = logging.getLogger(__name__)


def start_engine(
    config: EngineConfig, heartbeat: Heartbeat = no_heartbeat, begin: float | None = None
) -> tuple[EngineCore, EngineInfo]:
    """Load a model and make it ready to run requests. heartbeat: called while a step goes on.

    begin: when the process began to import what this takes, in seconds of the monotonic clock.
    Raises CheckpointError or ConfigError, which say what to change.
    """
    if config.model.load_format == "null":
        from quire.engine.startup.null_engine import start_null_engine  # most have a model

        return start_null_engine(config)
    phases = Phases()
    if begin is not None:
        phases.note("imports", time.monotonic() - begin)
    backend = _load(config, phases)
    resolved = backend.resolved
    resolved.log_weights()
    config, model_config = resolved.config, resolved.model_config
    block_size = config.cache.block_size
    bytes_each = block_bytes(resolved.kv_layers, block_size, resolved.kv_dtype)
    grammars = GrammarMatchers(_grammar_compiler(config, model_config))
    with phases.timed("kernels"), fitting_step(config), backend.compiling():
        num_blocks = choose_num_blocks(config, model_config, bytes_each, backend.kv_budget)
        num_slots = num_blocks * block_size
        max_model_len = choose_max_model_len(config, resolved.length_limit, num_slots)
        limits = request_limits(config, model_config, max_model_len, num_slots)
        with phases.timed("kv_cache"), fitting_kv(config, num_blocks * bytes_each):
            backend.allocate(num_blocks)
        executor = backend.make_executor(limits, grammars.ready, heartbeat)
    with phases.timed("graphs"), fitting_step(config):
        executor.record()
    backend.on_started()
    core = EngineCore(
        partial(_make_scheduler, backend, limits, executor), executor, limits, grammars,
        partial(_find_unsound, resolved) if config.model.load_format != "dummy" else None,
    )  # fmt: skip
    num_bytes = num_blocks * bytes_each
    return core, _engine_info(backend, limits, num_blocks, num_bytes, phases)


def _engine_info(
    backend: Backend, limits: RequestLimits, num_blocks: int, num_bytes: int, phases: Phases
) -> EngineInfo:
    """The fixed facts of an engine for its clients. num_bytes: of its KV cache."""
    resolved = backend.resolved
    config, model_config = resolved.config, resolved.model_config
    return EngineInfo(
        model_name=config.model.public_name,
        limits=limits,
        eos_token_ids=[i for i in model_config.eos_token_ids if i < model_config.vocab_size],
        dtype=resolved.dtype,
        device=backend.device,
        num_blocks=num_blocks,
        block_size=config.cache.block_size,
        kv_cache_bytes=num_bytes,
        seconds=phases.seconds,
        quantization=_weights_name(config, model_config),
        kv_cache_dtype=resolved.kv_dtype,
        pooling=resolved.pooling,
        sampling_defaults=resolved.sampling_defaults,
        quality=resolved.quality,
        model=str(config.model.model),
        file_bytes=weight_bytes(resolved.folder),
        family=model_config.family,
        num_parameters=model_config.num_parameters,
    )


def _weights_name(config: EngineConfig, model_config: ModelConfig) -> str:
    """The quantization of weights: the setting's, or else the checkpoint's; or "none"."""
    setting, stored = config.model.quantization, model_config.checkpoint_format
    return stored.name if setting == "none" and stored is not None else setting


def _load(config: EngineConfig, phases: Phases) -> Backend:
    """Load the model without PyTorch if that is possible, and say why if it is not."""
    runs_torch = can_run_torch()
    try:
        return load_prepared(config, phases)
    except UnsupportedModelError as reason:
        logger.info("this start needs PyTorch: %s", reason)
    with phases.timed("imports"):
        import_torch()
        from quire.engine.startup.torch_start import load_with_torch
    if not runs_torch:
        raise forked_error("PyTorch has run")

    return load_with_torch(config, phases)


def _make_scheduler(backend: Backend, limits: RequestLimits, executor: Executor) -> Scheduler:
    config, table = backend.resolved.config, backend.table
    kv = KVCacheManager(
        limits.max_kv_tokens // config.cache.block_size,
        config.cache.block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching,
    )
    return Scheduler(
        config.scheduler,
        kv,
        limits.max_model_len,
        measured=table.observations if table is not None else (),
        step_sizes=executor.step_sizes,
    )


def _find_unsound(resolved: ResolvedConfig) -> str:
    # here, as most engines need none of it
    from quire.models.checkpoints.unsound_weights import describe_unsound
    from quire.models.prepared.prepared_files import prepared_file
    from quire.models.prepared.prepared_reader import describe_damage

    if found := describe_unsound(resolved.folder):
        return found
    model = resolved.config.model
    file = prepared_file(model, resolved.model_config, resolved.folder, resolved.dtype)
    return "" if file is None else describe_damage(file)


def _grammar_compiler(config: EngineConfig, model_config: ModelConfig) -> GrammarCompiler:
    """The compiler of grammars; reads the tokenizer at the first request with structured output."""

    def vocabulary() -> Vocabulary:
        tokenizer, vocab_size = load_tokenizer(config), model_config.vocab_size
        end_ids = tokenizer.end_ids(model_config.eos_token_ids, vocab_size)
        return Vocabulary(tokenizer, vocab_size, end_ids)

    return GrammarCompiler(vocabulary)
