"""From settings to a running engine core: find the files, load the model, plan the memory.

Owns the order of start-up and its timing. What is loaded how is the models' room's business.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from quire.config import EngineConfig
from quire.core.limits import RequestLimits
from quire.core.pooling_params import PoolingParams
from quire.engine.choices import (
    asked_kernels,
    choose_device,
    choose_dtype,
    choose_kv_type,
    thread_candidates,
)
from quire.engine.core import EngineCore
from quire.engine.executor import Executor
from quire.engine.grammars import Grammars
from quire.engine.head_start import wait_for_triton
from quire.engine.info import EngineInfo
from quire.engine.kv_size import choose_max_model_len, choose_num_blocks
from quire.engine.library_pages import give_back_code
from quire.engine.model_runner import CausalLM
from quire.engine.null import start_null_engine
from quire.engine.out_of_memory import fitting_kv, fitting_step, fitting_weights
from quire.engine.runners import make_executor
from quire.engine.settling import length_limit, request_limits, settle
from quire.engine.tuning import StepTable, is_tiny, measure_steps, with_token_budget
from quire.engine.tuning_file import steps_of
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.vocabulary import Vocabulary
from quire.hub import resolve_model, tokenizer_folder
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.dispatch import compiling_ahead
from quire.kvcache.manager import KVCacheManager
from quire.kvcache.storage import allocate_kv, block_bytes
from quire.layers.context import Beat, unwatched
from quire.models.architecture import ModelArchitecture
from quire.models.loader import load_model
from quire.models.pooling_file import read_pooling
from quire.scheduler.scheduler import Scheduler
from quire.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Loaded:
    """A model on its device. config: settled for it; table: what a CPU's steps take."""

    config: EngineConfig
    shape: ModelArchitecture
    model: CausalLM
    device: torch.device
    dtype: torch.dtype
    kv_type: torch.dtype
    pooling: PoolingParams
    length_limit: int
    table: StepTable | None


def start_engine(
    config: EngineConfig, beat: Beat = unwatched, begin: float | None = None
) -> tuple[EngineCore, EngineInfo]:
    """Load a model and make it ready to run requests. beat: called while a step goes on.

    begin: when the process began to import what this takes, in seconds of the monotonic clock.
    Raises CheckpointError or ConfigError, which say what to change.
    """
    if config.model.load_format == "null":
        return start_null_engine(config)
    seconds: dict[str, float] = {}
    if begin is not None:
        _note("imports", time.monotonic() - begin, seconds)
    found = _load(config, seconds)
    config, shape, model, device = found.config, found.shape, found.model, found.device
    kv_shape = (config.cache.block_size, shape.num_kv_heads, shape.head_dim, found.kv_type)
    bytes_each = block_bytes(shape.num_layers, *kv_shape)
    grammars = Grammars(_grammar_compiler(config, shape))
    with _timed("kernels", seconds), fitting_step(config), compiling_ahead(device.type):
        num_blocks = choose_num_blocks(config, shape, model, bytes_each, found.dtype, device)
        num_slots = num_blocks * config.cache.block_size
        max_model_len = choose_max_model_len(config, found.length_limit, num_slots)
        limits = request_limits(config, shape, max_model_len, num_slots)
        with _timed("kv_cache", seconds), fitting_kv(config, num_blocks * bytes_each):
            kv_caches = allocate_kv(shape.num_layers, num_blocks, *kv_shape, device)
        executor = make_executor(config, shape, model, kv_caches, limits, device, grammars, beat)
    with _timed("graphs", seconds), fitting_step(config):
        executor.get_ready()
    if device.type == "cpu":
        give_back_code()
    scheduler = _make_scheduler(config, limits, found.table, executor, device)
    core = EngineCore(scheduler, executor, limits, grammars)
    return core, EngineInfo(
        model_name=config.model.public_name,
        limits=limits,
        eos_token_ids=[i for i in shape.eos_token_ids if i < shape.vocab_size],
        dtype=_name(found.dtype),
        device=str(device),
        num_blocks=num_blocks,
        block_size=config.cache.block_size,
        kv_cache_bytes=num_blocks * bytes_each,
        seconds=seconds,
        quantization=config.model.quantization,
        kv_cache_dtype=_name(found.kv_type),
        pooling=found.pooling,
    )


def _load(config: EngineConfig, seconds: dict[str, float]) -> _Loaded:
    """Find the device and the model's files, check what can be, and read the weights."""
    with _timed("device", seconds):
        device = choose_device(config)
        asked, config = config, settle(config, device.type)
    path = resolve_model(config.model.model, config.model.revision)
    shape = ModelArchitecture.from_folder(path)
    pooling = read_pooling(path, config.model.pooling, shape.hidden_size)
    dtype = choose_dtype(config, shape, device)
    kv_type = choose_kv_type(config, dtype, device)
    threads = thread_candidates(config, shape)
    set_num_threads(threads[0])
    limit = length_limit(config, shape)
    with _timed("weights", seconds), fitting_weights(shape, dtype):
        model = load_model(config.model, shape, path, device, dtype, asked_kernels(config, device))
    if device.type == "cuda":
        wait_for_triton()
    table = None
    if device.type == "cpu" and not is_tiny(shape):
        with _timed("tuning", seconds):
            table = _measured_steps(config, shape, model, dtype, kv_type, threads)
        config = with_token_budget(config, asked, table)
        logger.info("%s; %d tokens a step", table, config.scheduler.max_num_batched_tokens)
    return _Loaded(
        config=config,
        shape=shape,
        model=model,
        device=device,
        dtype=dtype,
        kv_type=kv_type,
        pooling=pooling,
        length_limit=limit,
        table=table,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _measured_steps(
    config: EngineConfig,
    shape: ModelArchitecture,
    model: CausalLM,
    dtype: torch.dtype,
    kv_type: torch.dtype,
    threads: list[int],
) -> StepTable:
    """What a CPU's steps cost, as an earlier start kept it or as it is measured now."""
    block_size = config.cache.block_size
    measure = partial(measure_steps, model, shape, block_size, kv_type, threads)
    return steps_of(config.model, shape, (dtype, kv_type, block_size), threads, measure)


def _make_scheduler(
    config: EngineConfig,
    limits: RequestLimits,
    table: StepTable | None,
    executor: Executor,
    device: torch.device,
) -> Scheduler:
    """table: what a CPU's steps were measured to take."""
    num_blocks = limits.max_kv_tokens // config.cache.block_size
    kv = KVCacheManager(
        num_blocks,
        config.cache.block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching,
    )
    return Scheduler(
        config.scheduler,
        kv,
        limits.max_model_len,
        paces_prompts=device.type == "cuda" or table is not None,
        measured=table.observations if table is not None else (),
        step_sizes=executor.step_sizes,
    )


def _grammar_compiler(config: EngineConfig, shape: ModelArchitecture) -> GrammarCompiler:
    """Reads the tokenizer when the first request asks for a form."""

    def vocabulary() -> Vocabulary:
        tokenizer = Tokenizer.from_folder(tokenizer_folder(config))
        return Vocabulary(tokenizer, shape.vocab_size, list(shape.eos_token_ids))

    return GrammarCompiler(vocabulary)


@contextmanager
def _timed(phase: str, seconds: dict[str, float]) -> Iterator[None]:
    """Note what the phase took, with all that it gave the GPU to do; without phases within it."""
    begin, before = time.monotonic(), sum(seconds.values())
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    within = sum(seconds.values()) - before
    _note(phase, time.monotonic() - begin - within, seconds)


def _note(phase: str, spent: float, seconds: dict[str, float]) -> None:
    seconds[phase] = round(spent, 3)
    logger.info("%s: %.2f s", phase, spent)
