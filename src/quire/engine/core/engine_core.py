"""The engine's loop: schedule step n+1 while step n runs, then process the result of step n-1.

Owns the order of these calls. The scheduler decides which requests run, the executor how. Takes
one message per request and returns one output per step (core/messages.py).
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
    GetEngineView,
    RequestDelta,
    ResetPrefixCache,
    StepOutput,
)
from quire.core.request import FinishReason, Request
from quire.core.request_limits import RequestLimits
from quire.core.scheduler_output import SchedulerOutput
from quire.engine.core.device_errors import is_device_lost, out_of_memory_message
from quire.engine.core.executor import Executor, Failed, Outcome
from quire.engine.core.grammar_matchers import GrammarMatchers
from quire.engine.core.plan_window import PlanWindow
from quire.engine.core.queue_deadlines import QueueDeadlines
from quire.engine.core.step_log import StepLog
from quire.engine.core.weight_search import WeightSearch
from quire.errors import InvalidRequestError, OverloadedError
from quire.models.prepared import prepared_reader
from quire.scheduler.request_outputs import QUEUE_TIMEOUT, make_final_delta
from quire.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

# How long an otherwise idle step waits for a grammar to compile, or for the search of weights; new
# messages wait that long too.
THREAD_WAIT_SECONDS = 0.005


class EngineCore:
    """Scheduler, executor, and the queue of steps in flight between them.

    make_scheduler: makes one without requests. on_start: called with the ids of requests that enter
    the batch, before their first step runs. find_unsound: see `WeightSearch`.
    """

    def __init__(
        self,
        make_scheduler: Callable[[], Scheduler],
        executor: Executor,
        limits: RequestLimits,
        grammars: GrammarMatchers | None = None,
        find_unsound: Callable[[], str] | None = None,
    ) -> None:
        self.limits = limits
        self._weights = WeightSearch(find_unsound)
        self._grammars = GrammarMatchers(None) if grammars is None else grammars
        self.on_start: Callable[[list[str]], None] | None = None
        self._make_scheduler = make_scheduler
        self._executor = executor
        self._start_empty()

    def reset(self) -> None:
        """Drop all requests, the prefix cache and statistics; for after an interrupted call.

        Nothing is taken over from before, since any of it may be half done.
        """
        self._executor.reset()
        self._grammars.clear()
        self._weights.clear()
        self._start_empty()

    def _start_empty(self) -> None:
        self._scheduler = self._make_scheduler()
        self._in_flight: deque[tuple[SchedulerOutput, Outcome]] = deque()
        self._has_failed = False
        self._deltas: list[RequestDelta] = []
        self._log = StepLog()
        self._window = PlanWindow()
        self._num_arrivals = 0
        self._deadlines = QueueDeadlines()
        self._view_requested = False

    @property
    def has_work(self) -> bool:
        """Whether another call of `step` has anything to run or to report."""
        return self._can_step or self._grammars.num_pending > 0 or self._weights.holds_any

    @property
    def has_requests(self) -> bool:
        """Whether requests run or wait; a view that somebody asks for is work, but no request."""
        return self._scheduler.has_unfinished or self._grammars.num_pending > 0

    @property
    def _can_step(self) -> bool:
        return bool(
            self._in_flight
            or self._deltas
            or self._view_requested
            or self._scheduler.has_unfinished
        )

    @property
    def plan_delay(self) -> float:
        """Seconds for which `step` need not be called, so that new requests are in its plan."""
        return self._window.left(time.monotonic()) if self._in_flight else 0.0

    @property
    def stats(self) -> EngineStats:
        """The engine's current gauges and counters."""
        stats = self._log.add_step_stats(self._scheduler.stats())
        stats.num_waiting += self._grammars.num_pending
        stats.weight_fault = self._weights.fault or "; ".join([*prepared_reader.faults.values()])
        return stats

    def handle(self, message: EngineMessage) -> None:
        """Process one message; its outcome is part of the next step's output."""
        match message:
            case AddRequest():
                self._add(message)
            case AbortRequests():
                self._add_deltas(self._scheduler.abort(message.request_ids))
                self._add_deltas(self._weights.release(message.request_ids))
                for request in self._grammars.cancel(message.request_ids):
                    self._deltas.append(make_final_delta(request, FinishReason.ABORT))
            case ResetPrefixCache():
                self._scheduler.reset_prefix_cache()
            case GetEngineView():
                self._view_requested = True

    def step(self) -> StepOutput:
        """Schedule and start a step, if any; wait for the oldest when enough are in flight.

        If the step starts prompts whose progress is reported, the reports are sent before any wait.
        """
        self._expire_and_admit()
        if self._weights.holds_any:
            held = self._weights.take(0.0 if self._can_step else THREAD_WAIT_SECONDS)
            self._add_deltas(held)
        most = self._executor.max_in_flight
        started = len(self._in_flight) < most and not self._is_broken and self._start_next()
        if started and self._starts_report():
            return self._take_output()
        if self._in_flight and (not started or len(self._in_flight) >= most):
            self._add_deltas(self._finish_step(*self._in_flight.popleft()))
            if self._has_failed:
                self._restart_batch()
        return self._take_output()

    @property
    def _is_broken(self) -> bool:
        """Whether the latest step could not be launched; then none may follow before a reset.

        The device's block tables may lack its blocks, so the next step would write into others.
        """
        return bool(self._in_flight) and isinstance(self._in_flight[-1][1], Failed)

    def _restart_batch(self) -> None:
        """Let all requests enter the batch anew: what a failed step has left in it is unknown."""
        while self._in_flight:
            self._add_deltas(self._finish_step(*self._in_flight.popleft()))
        self._scheduler.preempt_all()
        self._executor.reset()
        self._has_failed = False

    def _expire_and_admit(self) -> None:
        """End requests whose queue timeout has passed; admit those whose grammar is compiled."""
        if expired := self._deadlines.take_expired():
            self._add_deltas(self._scheduler.expire(expired))
            for request in self._grammars.cancel(expired, include_started=False):
                self._refuse(request.request_id, QUEUE_TIMEOUT, ErrorKind.QUEUE_TIMEOUT)
        if self._grammars.num_pending:
            self._admit_compiled()

    def _start_next(self) -> bool:
        """Schedule a step and start it; returns whether there was one to start."""
        begin = time.monotonic()
        plan = self._scheduler.schedule(begin)
        if plan is None:
            return False
        self._log.record_start(plan, begin)
        if plan.new_requests and self.on_start is not None:
            self.on_start([request.request_id for request in plan.new_requests])
        self._in_flight.append((plan, self._executor.execute(plan)))
        self._window.record_start(time.monotonic() - begin)
        return True

    def _starts_report(self) -> bool:
        """Whether the latest step starts prompts whose progress is reported; adds the reports."""
        plan, _ = self._in_flight[-1]
        reports = self._scheduler.progress_at_start(plan) if plan.new_requests else []
        self._deltas += reports
        return bool(reports)

    def _take_output(self) -> StepOutput:
        deltas, self._deltas = self._deltas, []
        if self._log.add_timings(deltas) and self._in_flight:
            self._window.open()
        return StepOutput(deltas=deltas, stats=self.stats, view=self._take_view())

    def _take_view(self) -> EngineView | None:
        if not self._view_requested:
            return None
        self._view_requested = False
        return EngineView(
            time=time.monotonic(),
            block_states=self._scheduler.block_states(),
            steps=self._log.recent,
        )

    def _finish_step(self, plan: SchedulerOutput, outcome: Outcome) -> list[RequestDelta]:
        before = self._scheduler.num_generation_tokens
        try:
            output = outcome()
        except Exception as failure:  # a failed step ends its requests, not the engine
            if is_device_lost(failure):
                raise  # the requests can continue in another process, but not in this one
            seconds = self._log.end()
            deltas = self._fail(plan, failure)
        else:
            seconds = self._log.end()
            self._scheduler.observe(plan, seconds)
            deltas = self._weights.filter(self._scheduler.update(plan, output))
        num_sampled = self._scheduler.num_generation_tokens - before
        summary = self._log.record_step(plan, seconds, deltas, num_sampled)
        self._window.record_step(summary)
        return deltas

    def _fail(self, plan: SchedulerOutput, failure: Exception) -> list[RequestDelta]:
        self._has_failed = True
        text = out_of_memory_message(failure)
        log = logger.exception if text is None else logger.error
        reason = str(failure).partition("\n")[0]
        log("step %d with %d requests failed: %s", plan.step_id, len(plan.scheduled), reason)
        text = text or "the step that ran this request failed; send it again"
        return self._scheduler.fail(plan, text)

    def _add_deltas(self, deltas: list[RequestDelta]) -> None:
        """Add deltas to the next output; drops the grammars of requests that end with them."""
        self._deltas += deltas
        if self._grammars.ready:
            for delta in deltas:
                if delta.finish_reason is not None:
                    self._grammars.remove(delta.request_id)

    def _admit_compiled(self) -> None:
        """Hand requests whose grammar is compiled to the scheduler; waits briefly if idle."""
        timeout = 0.0 if self._can_step else THREAD_WAIT_SECONDS
        for request, failure in self._grammars.take_compiled(timeout):
            try:
                if failure is not None:
                    raise failure
                self._scheduler.add(request)
            except Exception as error:  # any failure ends this request alone
                task = "prepare this request's structured output"
                self._refuse_for(error, request.request_id, task)

    def _add(self, message: AddRequest) -> None:
        if message.request_id in self._log.unfinished:  # a refusal would end the other one
            logger.error("a request with the id of an unfinished one was dropped")
            return
        try:
            self._num_arrivals += 1
            request = Request(
                message,
                arrival_number=self._num_arrivals,
                max_model_len=self.limits.max_model_len,
                queued=time.monotonic(),
            )
            if request.sampling.structured_outputs is None:
                self._scheduler.add(request)
            else:
                self._grammars.start_compiling(request, request.sampling.structured_outputs)
            self._log.record_arrival(message.request_id, request.num_prompt_tokens)
            self._deadlines.add(message.request_id, message.queue_timeout, self._log.unfinished)
        except Exception as error:  # a message that no check foresaw fails alone
            self._refuse_for(error, message.request_id, "take this request")

    def _refuse_for(self, error: Exception, request_id: str, task: str) -> None:
        """Refuse a request that raised an error, wherever it has come to until then.

        Only the texts of refusals are for clients.
        """
        self._scheduler.abort([request_id])
        self._grammars.cancel([request_id])
        self._grammars.remove(request_id)
        if isinstance(error, InvalidRequestError):
            self._refuse(request_id, str(error), ErrorKind.REQUEST, error.param)
        elif isinstance(error, OverloadedError):
            self._refuse(request_id, str(error), ErrorKind.OVERLOAD)
        else:
            logger.error("the engine could not %s", task, exc_info=error)
            self._refuse(request_id, f"the engine could not {task}", ErrorKind.ENGINE)

    def _refuse(
        self, request_id: str, error: str, kind: ErrorKind, param: str | None = None
    ) -> None:
        self._deltas.append(
            RequestDelta(
                request_id=request_id,
                finish_reason=FinishReason.ERROR.value,
                error=error,
                error_kind=kind,
                error_param=param,
            )
        )
