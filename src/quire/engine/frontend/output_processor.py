"""The output processor: turns the engine's deltas into request outputs.

It tracks all requests, their errors and the deaths of engines; answer_state.py makes the text of
each. Runs in the frontend's process; the engine core knows token ids only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from quire.core.messages import CALLER_LIMIT_SECONDS, AddRequest, ErrorKind, RequestDelta
from quire.core.request import FinishReason
from quire.core.request_output import RequestOutput, RequestTimes
from quire.engine.frontend.answer_state import (
    AnswerState,
    RequestState,
    position_logprobs,
    start_answer,
)
from quire.engine.frontend.input_processor import PreparedRequest
from quire.engine.frontend.progress_reports import ProgressReports
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.errors import (
    CallerLimitError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    QueueTimeoutError,
    QuireError,
)
from quire.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_DEATHS = 2  # of engine processes while they ran one request, which may have caused them
MAX_DEATHS_SEEN = 8  # whatever their cause: one may have been taken for another
FATAL = (
    "the engine died twice while it ran this request, so it is not tried again; send it again only "
    "if you know why"
)


class Processed(msgspec.Struct):
    """The request outputs that one step's deltas make.

    outputs: by request id. failures: requests that ended with an error. aborts: engine request ids
    of answers that have ended here, but which the engine still runs.
    """

    outputs: dict[str, RequestOutput] = {}
    failures: dict[str, QuireError] = {}
    aborts: list[str] = []


class OutputProcessor:
    """Makes request outputs of the engine's deltas; holds the state of all unfinished requests."""

    def __init__(self, tokenizer: Tokenizer, metrics: RequestMetrics) -> None:
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._answers: dict[str, AnswerState] = {}
        self._requests: dict[str, RequestState] = {}

    @property
    def num_unfinished(self) -> int:
        """The number of unfinished requests."""
        return len(self._requests)

    def add(self, prepared: PreparedRequest, arrival: float) -> None:
        """Start to track a request. arrival: monotonic seconds."""
        sampling = prepared.sampling
        ids = [message.request_id for message in prepared.messages]
        request = RequestState(prepared, RequestTimes(arrival), set(ids))
        if sampling.prompt_logprobs is not None:
            request.prompt_logprobs = [None]  # the first token has no score
        if prepared.messages[0].report_progress:
            request.progress = ProgressReports(len(prepared.prompt_token_ids), arrival)
        times = self._metrics.record_request(arrival, len(prepared.prompt_token_ids), sampling)
        try:
            for index, answer_id in enumerate(ids):
                self._answers[answer_id] = start_answer(
                    request, index, times[index], self._tokenizer
                )
        except BaseException:  # all answers are tracked, or none
            for answer_id, own in zip(ids, times, strict=True):
                self._answers.pop(answer_id, None)
                self._metrics.finish(own, FinishReason.ERROR.value, time.monotonic())
            raise
        self._requests[prepared.request_id] = request

    def forget(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> list[str]:
        """Stop tracking a request; counts its unfinished answers under this finish reason.

        Returns the engine request ids to abort.
        """
        request = self._requests.pop(request_id, None)
        if request is None:
            return []
        now = time.monotonic()
        for answer_id in request.unfinished:
            self._metrics.finish(self._answers.pop(answer_id).times, reason.value, now)
        return sorted(request.unfinished)

    def unfinished_of(self, request_id: str) -> list[str]:
        """Engine request ids of a request's answers that have not ended."""
        request = self._requests.get(request_id)
        return [] if request is None else sorted(request.unfinished)

    def is_tracked(self, answer_id: str) -> bool:
        """Whether an answer, by its engine request id, is unfinished."""
        return answer_id in self._answers

    def unfinished(self) -> list[AddRequest]:
        """Messages with which another engine process continues all answers, oldest first."""
        return [answer.continuation() for answer in self._answers.values()]

    def record_death(
        self, find_started: Callable[[Iterable[str]], set[str]], *, is_blameless: bool = False
    ) -> dict[str, EngineError]:
        """Record that an engine process has died; returns the errors of requests that end now.

        find_started: those of some requests that ran. is_blameless: none can have caused it.
        """
        failures: dict[str, EngineError] = {}
        for answer_id in find_started(self._answers):
            answer = self._answers[answer_id]
            answer.num_deaths += not is_blameless
            answer.num_deaths_seen += 1
            if answer.num_deaths >= MAX_DEATHS or answer.num_deaths_seen >= MAX_DEATHS_SEEN:
                failures[answer.request.prepared.request_id] = EngineError(FATAL)
        for request_id in failures:
            self.forget(request_id, FinishReason.ERROR)
        return failures

    def process(self, deltas: list[RequestDelta]) -> Processed:
        """Apply one step's deltas; returns the request outputs that they make."""
        processed, now = Processed(), time.monotonic()
        changed: dict[str, RequestState] = {}
        for delta in deltas:
            answer = self._answers.get(delta.request_id)
            if answer is None:
                continue  # its caller has left
            request_id = answer.request.prepared.request_id
            try:
                if delta.error is not None:
                    raise _as_error(delta.error, delta)
                self._extend(answer, delta, now, processed)
                changed[request_id] = answer.request
            except Exception as failure:  # an error in one request must not affect the others
                processed.failures[request_id] = _as_quire_error(failure)
                processed.aborts += self.forget(request_id, FinishReason.ERROR)
                changed.pop(request_id, None)
        for request_id, request in changed.items():
            processed.outputs[request_id] = request.take_output()
            if not request.unfinished:
                del self._requests[request_id]
        return processed

    def _extend(
        self, answer: AnswerState, delta: RequestDelta, now: float, processed: Processed
    ) -> None:
        request, tokenizer = answer.request, self._tokenizer
        self._record_tokens(answer, delta, now)
        if answer.index == 0:  # the others find what the first has computed
            request.num_cached_tokens = delta.num_cached_tokens
            request.embedding = delta.embedding
            if request.progress is not None:
                request.progress.add(delta, now)
        if request.prompt_logprobs is not None:
            request.prompt_logprobs += [
                position_logprobs(x, tokenizer) for x in delta.prompt_logprobs
            ]
        part = answer.completion(delta, tokenizer)
        if part.finish_reason is not None:
            request.unfinished.discard(delta.request_id)
            del self._answers[delta.request_id]
            self._metrics.finish(answer.times, part.finish_reason, now)
            if delta.finish_reason is None:  # the frontend ended it by its text
                processed.aborts.append(delta.request_id)
        if answer.index in request.changed:
            request.changed[answer.index].append(part)
        else:
            request.changed[answer.index] = part

    def _record_tokens(self, answer: AnswerState, delta: RequestDelta, now: float) -> None:
        """Add a delta's tokens to the answer, and their times to it and to the metrics."""
        times, of_request, timing = answer.times, answer.request.times, delta.timing
        if timing is not None:
            times.timing, times.num_cached_tokens = timing, delta.num_cached_tokens
        if not (count := len(delta.token_ids)):
            return
        answer.token_ids += delta.token_ids
        if of_request.first_token is None:  # tokens may come together, later than the first
            came = None if count == 1 or timing is None else timing.first_token
            of_request.first_token = now if came is None else came
        of_request.last_token = now
        if count > 1 and delta.finish_reason is not None and timing is not None:
            self._metrics.tokens_at_end(times, count, timing, now)
        else:
            self._metrics.tokens(times, count, now)


def _as_error(message: str, delta: RequestDelta) -> QuireError:
    """The error of a delta, as its caller gets it."""
    match delta.error_kind:
        case ErrorKind.REQUEST:
            return InvalidRequestError(message, param=delta.error_param, code="invalid_value")
        case ErrorKind.OVERLOAD:
            return OverloadedError(message)
        case ErrorKind.CALLER_LIMIT:
            return CallerLimitError(message, retry_after=CALLER_LIMIT_SECONDS)
        case ErrorKind.QUEUE_TIMEOUT:
            return QueueTimeoutError(message)
        case ErrorKind.ENGINE:
            return EngineError(message)


def _as_quire_error(failure: Exception) -> QuireError:
    if isinstance(failure, QuireError):
        return failure
    logger.error("an answer could not be processed", exc_info=failure)
    return EngineError("the answer could not be processed; see the log")
