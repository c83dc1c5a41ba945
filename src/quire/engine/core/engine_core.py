"""The engine's loop: plan step n+1 while step n runs, and answer step n-1.

Owns the order of things, nothing else: who runs is the scheduler's business, how is the
executor's. One message in per request, one out per step (core/messages).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

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
from quire.core.request import FinishReason, Request
from quire.core.request_limits import RequestLimits
from quire.core.scheduler_output import SchedulerOutput
from quire.engine.core.device_errors import is_device_lost
from quire.engine.core.executor import Executor, Outcome
from quire.engine.core.grammar_matchers import Grammars
from quire.engine.core.queue_deadlines import QueueDeadlines
from quire.engine.core.step_log import StepLog
from quire.engine.startup.out_of_memory import describe_step
from quire.errors import InvalidRequestError
from quire.scheduler.request_outputs import WAITED_TOO_LONG
from quire.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

# How long a step waits for a matcher when nothing else is to do: then new messages wait, too.
MATCHER_WAIT_SECONDS = 0.005


class EngineCore:
    """Scheduler and executor, joined by a queue of steps in flight."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        limits: RequestLimits,
        grammars: Grammars | None = None,
    ) -> None:
        self.limits = limits
        self._grammars = Grammars(None) if grammars is None else grammars
        self.on_begin: Callable[[list[str]], None] | None = None  # told who enters the batch
        self._scheduler = scheduler
        self._executor = executor
        self._in_flight: deque[tuple[SchedulerOutput, Outcome]] = deque()
        self._deltas: list[RequestDelta] = []
        self._log = StepLog()
        self._num_arrivals = 0
        self._deadlines = QueueDeadlines()
        self._is_watched = False

    @property
    def has_work(self) -> bool:
        """Whether another step would do or tell anything."""
        return self._has_news or self._grammars.num_pending > 0

    @property
    def _has_news(self) -> bool:
        return bool(
            self._in_flight or self._deltas or self._is_watched or self._scheduler.has_unfinished
        )

    @property
    def stats(self) -> EngineStats:
        """Gauges and counters as of now."""
        stats = self._log.stamp(self._scheduler.stats())
        stats.num_waiting += self._grammars.num_pending
        return stats

    def handle(self, message: EngineMessage) -> None:
        """Take a message. Whatever it answers is told by the next step."""
        match message:
            case AddRequest():
                self._add(message)
            case AbortRequests():
                self._tell(self._scheduler.abort(message.request_ids))
                for request_id in self._grammars.withdraw(message.request_ids):
                    aborted = FinishReason.ABORT.value
                    self._tell([RequestDelta(request_id=request_id, finish_reason=aborted)])
            case ResetPrefixCache():
                self._scheduler.reset_prefix_cache()
            case Watch():
                self._is_watched = True

    def step(self) -> StepOutput:
        """Plan and start a step if there is one; answer the oldest when enough are in flight."""
        self._admit()
        started = self._start_next()
        if self._in_flight and (
            not started or len(self._in_flight) >= self._executor.max_in_flight
        ):
            self._tell(self._answer(*self._in_flight.popleft()))
        return self._report()

    def _admit(self) -> None:
        """Let go of who waited too long, and let in whose grammar has been made."""
        expired = self._deadlines.take_expired()
        self._tell(self._scheduler.expire(expired))
        for request_id in self._grammars.withdraw(expired, begun=False):
            self._refuse(request_id, WAITED_TOO_LONG, ErrorKind.OVERLOAD)
        if self._grammars.num_pending:
            self._take_settled()

    def _start_next(self) -> bool:
        """Plan a step and start it; returns whether there was one to start."""
        begin = time.monotonic()
        plan = self._scheduler.schedule(begin)
        if plan is None:
            return False
        self._log.start(plan, begin)
        if plan.new_requests and self.on_begin is not None:
            self.on_begin([request.request_id for request in plan.new_requests])
        self._in_flight.append((plan, self._executor.execute(plan)))
        return True

    def _report(self) -> StepOutput:
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

    def _answer(self, plan: SchedulerOutput, outcome: Outcome) -> list[RequestDelta]:
        before = self._scheduler.num_generation_tokens
        try:
            output = outcome.result()
        except Exception as failure:  # whatever broke the step ends its requests, not the engine
            if is_device_lost(failure):
                raise  # another process can go on with them, this one cannot
            seconds = self._log.end()
            deltas = self._fail(plan, failure)
        else:
            seconds = self._log.end()
            self._scheduler.observe(plan, seconds)
            deltas = self._scheduler.update(plan, output)
        self._log.note(plan, seconds, deltas, self._scheduler.num_generation_tokens - before)
        return deltas

    def _fail(self, plan: SchedulerOutput, failure: Exception) -> list[RequestDelta]:
        text = describe_step(failure)
        log = logger.exception if text is None else logger.error
        what = str(failure).partition("\n")[0]
        log("step %d failed with %d requests: %s", plan.step_id, len(plan.scheduled), what)
        text = text or "the step that ran this request failed; send it again"
        return self._scheduler.fail(plan, text)

    def _tell(self, deltas: list[RequestDelta]) -> None:
        """Keep news for the end of the step."""
        self._deltas += deltas
        if self._grammars:
            for delta in deltas:
                if delta.finish_reason is not None:
                    self._grammars.close(delta.request_id)

    def _take_settled(self) -> None:
        """Let those in whose matchers have been made; waits a little if there is nothing else."""
        patience = 0.0 if self._has_news else MATCHER_WAIT_SECONDS
        for request, failure in self._grammars.take_settled(patience):
            try:
                if failure is not None:
                    raise failure
                self._scheduler.add(request)
                continue
            except InvalidRequestError as refusal:
                self._refuse(request.request_id, str(refusal), ErrorKind.REQUEST)
            except Exception:  # whatever it is, it ends this request alone
                logger.exception("a matcher could not be made")
                problem = "the engine could not prepare the form of this answer"
                self._refuse(request.request_id, problem, ErrorKind.ENGINE)
            self._grammars.close(request.request_id)

    def _add(self, message: AddRequest) -> None:
        try:
            if message.pooling is None:
                self.limits.check(message.prompt_token_ids, message.sampling)
            else:
                self.limits.check_embedding(message.prompt_token_ids, message.pooling)
            if message.output_token_ids:
                self.limits.check_continuation(message)
            self._num_arrivals += 1
            request = Request(
                message,
                arrival=self._num_arrivals,
                max_model_len=self.limits.max_model_len,
                queued=time.monotonic(),
            )
            if request.sampling.structured_outputs is None:
                self._scheduler.add(request)
            else:
                self._grammars.open(request, request.sampling.structured_outputs)
            self._deadlines.add(message.request_id, message.queue_timeout)
            self._log.queue(message.request_id)
        except InvalidRequestError as refusal:
            self._refuse(message.request_id, str(refusal), ErrorKind.REQUEST)
        except Exception:  # a message that no check foresaw ends itself, not the engine
            logger.exception("a request could not be added")
            problem = "the engine could not take this request"
            self._refuse(message.request_id, problem, ErrorKind.ENGINE)

    def _refuse(self, request_id: str, error: str, kind: ErrorKind) -> None:
        self._deltas.append(
            RequestDelta(
                request_id=request_id,
                finish_reason=FinishReason.ERROR.value,
                error=error,
                error_kind=kind,
            )
        )
