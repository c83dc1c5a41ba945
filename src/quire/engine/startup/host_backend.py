"""A model whose steps are run to their end by the host: on a CPU, mostly. No torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from quire.core.request_limits import RequestLimits
from quire.engine.core.executor import Executor, UniprocExecutor
from quire.engine.core.model_runner import ModelRunner
from quire.engine.core.running_requests import RunningRequests
from quire.engine.startup.backend import Task
from quire.engine.startup.footprint import available_bytes, default_kv_bytes
from quire.engine.startup.host_model import HostModel, WithCache
from quire.engine.startup.step_tuning import StepTable, measure_steps, with_token_budget
from quire.engine.startup.step_tuning_file import steps_of
from quire.layers.forward_context import Heartbeat
from quire.sampling.structured_mask import Matcher

logger = logging.getLogger(__name__)


class HostBackend:
    """See `Backend`. end_start: called behind the start."""

    def __init__(
        self,
        task: Task,
        with_cache: WithCache,
        dtype: str,
        kv_type: str,
        end_start: Callable[[], object] | None = None,
    ) -> None:
        self.task, self.config = task, task.config
        self.device, self.dtype, self.kv_type = "cpu", dtype, kv_type
        self.table: StepTable | None = None
        self._with_cache = with_cache
        self._model: HostModel  # once it has its cache
        self._end_start = end_start

    def tune(self, threads: list[int], plainly: tuple[object, ...] = ()) -> None:
        """See what steps cost, as an earlier start kept it or as it is measured now.

        threads: numbers of them that are chosen from. plainly: see `steps_of`.
        """
        block_size, model_config = self.config.cache.block_size, self.task.model_config
        measure = partial(measure_steps, self._with_cache, model_config, block_size, threads)
        numbers = self.dtype, self.kv_type, block_size
        self.table = steps_of(self.config.model, model_config, numbers, threads, measure, plainly)
        self.config = with_token_budget(self.config, self.task.asked, self.table)
        budget = self.config.scheduler.max_num_batched_tokens
        logger.info("%s; %d tokens a step", self.table, budget)

    def compiling(self) -> AbstractContextManager[None]:
        """Nothing is."""
        return nullcontext()

    def kv_budget(self) -> int:
        """A share of the memory that is free."""
        return default_kv_bytes(available_bytes())

    def allocate(self, num_blocks: int) -> None:
        """Give the model its cache."""
        self._model = self._with_cache(self.task.model_config.num_layers, num_blocks)

    def make_executor(
        self, limits: RequestLimits, matchers: Mapping[str, Matcher], heartbeat: Heartbeat
    ) -> Executor:
        """Which runs each step at once."""
        running = RunningRequests(limits, self.config.cache.block_size, matchers, heartbeat)
        return UniprocExecutor(ModelRunner(self._model, running))

    def has_started(self) -> None:
        """Call `end_start`."""
        if self._end_start is not None:
            self._end_start()
