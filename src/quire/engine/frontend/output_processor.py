"""The output processor: turns the engine's deltas into request outputs.

Detokenization, stop strings, log-probabilities, joining n answers. Runs in the frontend's process;
the engine core knows token ids only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import msgspec

from quire.core.messages import (
    CALLER_LIMIT_SECONDS,
    AddRequest,
    ErrorKind,
    RequestDelta,
    TokenLogprobs,
)
from quire.core.request import FinishReason
from quire.core.request_output import (
    CompletionOutput,
    Logprob,
    PositionLogprobs,
    RequestOutput,
    RequestTimes,
)
from quire.engine.frontend.input_processor import PreparedRequest
from quire.engine.frontend.progress_reports import ProgressReports
from quire.engine.frontend.request_metrics import AnswerTimes, RequestMetrics
from quire.errors import (
    CallerLimitError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    QueueTimeoutError,
    QuireError,
)
from quire.tokenizer.detokenizer import Detokenizer
from quire.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_DEATHS = 2  # of engine processes while they ran one request, which may have caused them
MAX_DEATHS_SEEN = 8  # whatever their cause: one may have been taken for another
FATAL = (
    "the engine died twice while it ran this request, so it is not tried again; send it again only "
    "if you know why"
)


@cache
def _no_text() -> Tokenizer:
    from quire.tokenizer.tokenless import Tokenless  # most answers have text

    return Tokenless()


class _AnswerState(msgspec.Struct, eq=False):
    """One of a request's n answers while it is being generated.

    is_over: takes the next text and returns whether the answer ends with it. num_deaths_seen:
    engine processes that died while they ran it; num_deaths: those of which it may be the cause.
    """

    request: _RequestState
    index: int
    detokenizer: Detokenizer
    times: AnswerTimes
    is_over: Callable[[str], bool] | None = None
    token_ids: list[int] = []
    num_deaths: int = 0
    num_deaths_seen: int = 0

    def continuation(self) -> AddRequest:
        """The message with which another engine process continues the answer."""
        scores = self.request.prompt_logprobs
        message = self.request.prepared.messages[self.index]
        timeout = None if self.num_deaths_seen else message.queue_timeout  # it ran already
        if timeout is not None:
            timeout = max(0.0, timeout - (time.monotonic() - self.times.arrival))
        return msgspec.structs.replace(
            message,
            queue_timeout=timeout,
            output_token_ids=self.token_ids,
            num_prompt_logprobs=len(scores) - 1 if scores and self.index == 0 else 0,
        )


class _RequestState(msgspec.Struct, eq=False):
    """A request with all its answers. changed: the outputs of the current step, by answer."""

    prepared: PreparedRequest
    times: RequestTimes
    unfinished: set[str]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    embedding: bytes | None = None
    changed: dict[int, CompletionOutput] = {}
    progress: ProgressReports | None = None


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
        self._answers: dict[str, _AnswerState] = {}
        self._requests: dict[str, _RequestState] = {}

    @property
    def num_unfinished(self) -> int:
        """The number of unfinished requests."""
        return len(self._requests)

    def add(self, prepared: PreparedRequest, arrival: float) -> None:
        """Start to track a request. arrival: monotonic seconds."""
        sampling = prepared.sampling
        ids = [message.request_id for message in prepared.messages]
        request = _RequestState(prepared, RequestTimes(arrival), set(ids))
        if sampling.prompt_logprobs is not None:
            request.prompt_logprobs = [None]  # the first token has no score
        if prepared.messages[0].report_progress:
            request.progress = ProgressReports(len(prepared.prompt_token_ids), arrival)
        stop_when = prepared.stop_when
        times = self._metrics.record_request(arrival, len(prepared.prompt_token_ids), sampling)
        try:
            for index, answer_id in enumerate(ids):
                detokenizer = Detokenizer(
                    self._tokenizer if sampling.detokenize else _no_text(),
                    prepared.prompt_token_ids,
                    skip_special_tokens=sampling.skip_special_tokens,
                    kept_token_ids=sampling.kept_token_ids,
                    stop=sampling.stop,
                    include_stop_str_in_output=sampling.include_stop_str_in_output,
                    min_tokens=sampling.min_tokens,
                )
                self._answers[answer_id] = _AnswerState(
                    request, index, detokenizer, times[index], stop_when() if stop_when else None
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
        changed: dict[str, _RequestState] = {}
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
            processed.outputs[request_id] = self._take_output(request)
            if not request.unfinished:
                del self._requests[request_id]
        return processed

    def _extend(
        self, answer: _AnswerState, delta: RequestDelta, now: float, processed: Processed
    ) -> None:
        request, times, timing = answer.request, answer.times, delta.timing
        if timing is not None:
            times.timing, times.num_cached_tokens = timing, delta.num_cached_tokens
        if count := len(delta.token_ids):
            answer.token_ids += delta.token_ids
            of_request = request.times
            if of_request.first_token is None:  # tokens may come together, later than the first
                came = None if count == 1 or timing is None else timing.first_token
                of_request.first_token = now if came is None else came
            of_request.last_token = now
            if count > 1 and delta.finish_reason is not None and timing is not None:
                self._metrics.tokens_at_end(times, count, timing, now)
            else:
                self._metrics.tokens(times, count, now)
        if answer.index == 0:  # the others find what the first has computed
            request.num_cached_tokens = delta.num_cached_tokens
            request.embedding = delta.embedding
            if request.progress is not None:
                request.progress.add(delta, now)
        if request.prompt_logprobs is not None:
            request.prompt_logprobs += [self._position(scores) for scores in delta.prompt_logprobs]
        part = self._completion(answer, delta)
        if part.finish_reason is not None:
            request.unfinished.discard(delta.request_id)
            del self._answers[delta.request_id]
            self._metrics.finish(times, part.finish_reason, now)
            if delta.finish_reason is None:  # the frontend ended it by its text
                processed.aborts.append(delta.request_id)
        if answer.index in request.changed:
            request.changed[answer.index].append(part)
        else:
            request.changed[answer.index] = part

    def _completion(self, answer: _AnswerState, delta: RequestDelta) -> CompletionOutput:
        """The output that a delta adds to the answer."""
        sampling, detokenizer = answer.request.prepared.sampling, answer.detokenizer
        ended = delta.finish_reason is not None
        shown = delta.token_ids
        has_end_token = delta.finish_reason == FinishReason.STOP and not delta.grammar_terminated
        if has_end_token and not sampling.include_stop_str_in_output:
            shown = shown[:-1]  # the end token has no text
        num_before = detokenizer.num_tokens
        text, is_over = _pushed(answer, shown)
        if ended and not is_over:
            text += detokenizer.finish()
        token_ids, stop_reason = delta.token_ids, detokenizer.stop_reason
        if is_over or stop_reason is not None:  # drop what follows
            token_ids = token_ids[: detokenizer.num_tokens - num_before]
        part = CompletionOutput(answer.index, text, token_ids)
        if sampling.logprobs is not None:
            is_ranked = sampling.logprob_token_ids is None
            shown_scores = delta.logprobs[: len(token_ids)]
            part.logprobs = [self._position(x, is_ranked=is_ranked) for x in shown_scores]
        if is_over or stop_reason is not None:
            part.finish_reason, part.stop_reason = FinishReason.STOP.value, stop_reason
        else:
            part.finish_reason, part.stop_reason = delta.finish_reason, delta.stop_token_id
        return part

    def _take_output(self, request: _RequestState) -> RequestOutput:
        changed, request.changed = request.changed, {}
        prepared = request.prepared
        return RequestOutput(
            request_id=prepared.request_id,
            prompt=prepared.prompt,
            prompt_token_ids=prepared.prompt_token_ids,
            outputs=[changed[index] for index in sorted(changed)],
            times=request.times,
            prompt_logprobs=request.prompt_logprobs,
            num_cached_tokens=request.num_cached_tokens,
            embedding=request.embedding,
            finished=not request.unfinished,
            progress=() if request.progress is None else request.progress.take(),
        )

    def _position(self, scores: TokenLogprobs, *, is_ranked: bool = True) -> PositionLogprobs:
        """Log-probabilities at one position: its token first, then the others.

        is_ranked: whether those are the most probable ones by rank.
        """
        found: PositionLogprobs = {}
        for index, (token_id, logprob) in enumerate(
            zip(scores.token_ids, scores.logprobs, strict=True)
        ):
            if token_id not in found:
                others = index if is_ranked else None
                rank = scores.rank if index == 0 else others
                found[token_id] = Logprob(logprob, rank, self._tokenizer.token_text(token_id))
        return found


def _pushed(answer: _AnswerState, token_ids: Sequence[int]) -> tuple[str, bool]:
    """The text of an answer's next tokens, and whether it is over.

    Where text may end it, tokens are taken one by one, however many have come together: what the
    caller gets must not depend on that.
    """
    if answer.is_over is None:
        return answer.detokenizer.push(token_ids), False
    text = ""
    for token_id in token_ids:
        text += (piece := answer.detokenizer.push([token_id]))
        if answer.is_over(piece):
            return text, True
    return text, False


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
