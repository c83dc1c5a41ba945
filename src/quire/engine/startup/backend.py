"""A loaded model, ready to become an executor: what a start needs of it. No torch.

Owns the interface and the backend of a CPU; gpu_backend.py has a GPU's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol

import msgspec

from quire.core.request_limits import RequestLimits
from quire.engine.core.executor import Executor, UniprocExecutor
from quire.engine.core.model_runner import ModelRunner
from quire.engine.core.running_requests import RunningRequests
from quire.engine.startup.footprint import default_kv_bytes
from quire.engine.startup.machine_limits import available_bytes
from quire.engine.startup.resolved_config import ResolvedConfig
from quire.engine.startup.startup_phases import Phases
from quire.engine.startup.step_tuning import (
    StepTable,
    is_tiny,
    measure_steps,
    thread_candidates,
    with_token_budget,
)
from quire.engine.startup.step_tuning_file import steps_of
from quire.layers.forward_context import Heartbeat
from quire.models.runtimes.host_model import HostModel, WithCache
from quire.sampling.structured_mask import Matcher

logger = logging.getLogger(__name__)


class Backend(Protocol):
    """A loaded model on its device, before the engine runs.

    resolved: with the settings that were measured. device: by PyTorch's name. table: the measured
    times of a CPU's steps; None where nothing was measured. on_started: called once the engine is
    ready; releases what only the start needed.
    """

    resolved: ResolvedConfig
    device: str
    table: StepTable | None
    on_started: Callable[[], object]

    def compiling(self) -> AbstractContextManager[None]:
        """A context around all first launches of kernels, which compiles them."""

    def kv_budget(self) -> int:
        """Bytes that the KV cache may take where the settings leave that open."""

    def allocate(self, num_blocks: int) -> None:
        """Allocate the KV cache. Raises MemoryError."""

    def make_executor(
        self, limits: RequestLimits, matchers: Mapping[str, Matcher], heartbeat: Heartbeat
    ) -> Executor:
        """Return an executor, which has still to `record`. heartbeat: called in long steps."""


class HostBackend:
    """A model whose steps the host runs to their end, as on a CPU; see `Backend`.

    with_cache: gives layers of the model a KV cache.
    """

    def __init__(self, resolved: ResolvedConfig, with_cache: WithCache) -> None:
        self.resolved, self.device = resolved, "cpu"
        self.table: StepTable | None = None
        self.on_started: Callable[[], object] = lambda: None
        self._with_cache = with_cache
        self._model: HostModel  # from `allocate` on

    def tune(self, phases: Phases, runtime: tuple[object, ...] = ()) -> None:
        """Measure steps, or take what an earlier start measured; choose threads and budget by it.

        A tiny model is not measured. runtime: see `steps_of`.
        """
        resolved = self.resolved
        config, model_config = resolved.config, resolved.model_config
        if is_tiny(model_config):
            return
        block_size, threads = config.cache.block_size, thread_candidates(config, model_config)
        measure = partial(measure_steps, self._with_cache, model_config, block_size, threads)
        numbers = resolved.dtype, resolved.kv_dtype, block_size
        with phases.timed("tuning"):
            self.table = steps_of(config.model, model_config, numbers, threads, measure, runtime)
        config = with_token_budget(config, resolved.requested, self.table)
        self.resolved = msgspec.structs.replace(resolved, config=config)
        logger.info("%s; %d tokens a step", self.table, config.scheduler.max_num_batched_tokens)

    def compiling(self) -> AbstractContextManager[None]:
        """A context that does nothing: a CPU's kernels are compiled at install."""
        return nullcontext()

    def kv_budget(self) -> int:
        """Default size of the KV cache in bytes: a share of the free memory."""
        return default_kv_bytes(available_bytes())

    def allocate(self, num_blocks: int) -> None:
        """Allocate the KV cache of all layers."""
        self._model = self._with_cache(self.resolved.model_config.num_layers, num_blocks)

    def make_executor(
        self, limits: RequestLimits, matchers: Mapping[str, Matcher], heartbeat: Heartbeat
    ) -> Executor:
        """Return an executor that runs each step at once."""
        block_size = self.resolved.config.cache.block_size
        running = RunningRequests(limits, block_size, matchers, heartbeat)
        return UniprocExecutor(ModelRunner(self._model, running))
