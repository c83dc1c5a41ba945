"""The engine's loop: plan step n+1 while step n runs, and answer step n-1.

Owns the order of things, nothing else: who runs is the scheduler's business, how is the
executor's. One message in per request, one out per step (core/messages).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from concurrent.futures import Future

from quire.core.messages import (
    AbortRequests,
    AddRequest,
    EngineMessage,
    EngineStats,
    EngineView,
    ErrorKind,
    RequestDelta,
    ResetPrefixCache,
    StepOutput,
    Watch,
)
from quire.core.request import FinishReason, Request, RequestLimits
from quire.core.step import ModelRunnerOutput, SchedulerOutput
from quire.engine.executor import Executor
from quire.engine.queue_deadlines import QueueDeadlines
from quire.engine.step_log import StepLog
from quire.errors import InvalidRequestError
from quire.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)


class EngineCore:
    """Scheduler and executor, joined by a queue of steps in flight."""

    def __init__(self, scheduler: Scheduler, executor: Executor, limits: RequestLimits) -> None:
        self.limits = limits
        self._scheduler = scheduler
        self._executor = executor
        self._in_flight: deque[tuple[float, SchedulerOutput, Future[ModelRunnerOutput]]] = deque()
        self._deltas: list[RequestDelta] = []
        self._log = StepLog()
        self._num_arrivals = 0
        self._deadlines = QueueDeadlines()
        self._is_watched = False
        self._last_end = 0.0  # of a step, in seconds of the monotonic clock

    @property
    def has_work(self) -> bool:
        """Whether another step would do or tell anything."""
        return bool(
            self._in_flight or self._deltas or self._is_watched or self._scheduler.has_unfinished
        )

    @property
    def stats(self) -> EngineStats:
        """Gauges and counters as of now."""
        return self._log.stamp(self._scheduler.stats())

    def handle(self, message: EngineMessage) -> None:
        """Take a message. Whatever it answers is told by the next step."""
        match message:
            case AddRequest():
                self._add(message)
            case AbortRequests():
                self._deltas += self._scheduler.abort(message.request_ids)
            case ResetPrefixCache():
                self._scheduler.reset_prefix_cache()
            case Watch():
                self._is_watched = True

    def step(self) -> StepOutput:
        """Plan and start a step if there is one; answer the oldest when enough are in flight."""
        begin = time.monotonic()
        self._deltas += self._scheduler.expire(self._deadlines.take_expired())
        plan = self._scheduler.schedule()
        if plan is not None:
            self._log.plan(plan)
            self._in_flight.append((begin, plan, self._executor.execute(plan)))
        if self._in_flight and (
            plan is None or len(self._in_flight) >= self._executor.max_in_flight
        ):
            self._deltas += self._answer(*self._in_flight.popleft())
        deltas, self._deltas = self._deltas, []
        self._log.finish(deltas)
        return StepOutput(deltas=deltas, stats=self.stats, view=self._take_view())

    def _take_view(self) -> EngineView | None:
        if not self._is_watched:
            return None
        self._is_watched = False
        return EngineView(
            time=time.monotonic(),
            block_states=self._scheduler.block_states(),
            steps=self._log.recent,
        )

    def _answer(
        self, begin: float, plan: SchedulerOutput, future: Future[ModelRunnerOutput]
    ) -> list[RequestDelta]:
        try:
            output = future.result()
        except Exception:  # whatever broke the step ends its requests, not the engine
            logger.exception("step %d failed with %d requests", plan.step_id, len(plan.scheduled))
            deltas = self._scheduler.fail(
                plan, "the step that ran this request failed; send it again"
            )
        else:
            end = time.monotonic()  # with several steps in flight, one begins when another ends
            self._scheduler.observe(plan, end - max(begin, self._last_end))
            self._last_end = end
            deltas = self._scheduler.update(plan, output)
        self._log.end(plan, deltas)
        return deltas

    def _add(self, message: AddRequest) -> None:
        try:
            self.limits.check(message.prompt_token_ids, message.sampling)
            if message.output_token_ids:
                self.limits.check_continuation(message)
            self._num_arrivals += 1
            self._scheduler.add(
                Request(
                    message, arrival=self._num_arrivals, max_model_len=self.limits.max_model_len
                )
            )
            self._deadlines.add(message.request_id, message.queue_timeout)
            self._log.queue(message.request_id)
        except InvalidRequestError as refusal:
            self._refuse(message, str(refusal), ErrorKind.REQUEST)
        except Exception:  # a message that no check foresaw ends itself, not the engine
            logger.exception("a request could not be added")
            self._refuse(message, "the engine could not take this request", ErrorKind.ENGINE)

    def _refuse(self, message: AddRequest, error: str, kind: ErrorKind) -> None:
        self._deltas.append(
            RequestDelta(
                request_id=message.request_id,
                finish_reason=FinishReason.ERROR.value,
                error=error,
                error_kind=kind,
            )
        )
