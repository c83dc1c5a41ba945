"""From the engine's deltas to what callers see: text, stop strings, logprobs, n answers joined.

Runs in the front's process; the engine core knows neither text nor callers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from quire.core.messages import AddRequest, ErrorKind, RequestDelta, TokenLogprobs
from quire.core.request import FinishReason
from quire.core.request_output import (
    CompletionOutput,
    Logprob,
    PositionLogprobs,
    RequestOutput,
    RequestTimes,
)
from quire.engine.frontend.input_processor import PreparedRequest
from quire.engine.frontend.request_metrics import AnswerTimes, RequestMetrics
from quire.errors import EngineError, InvalidRequestError, QueueTimeoutError, QuireError
from quire.tokenizer.detokenizer import Detokenizer
from quire.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_DEATHS = 2  # of engine processes, while they ran one request
FATAL = (
    "the engine died twice while it ran this request, so it is not tried again; send it again only "
    "if you know why"
)


class _Answer(msgspec.Struct, eq=False):
    """One of a request's n answers while it is being produced.

    is_over: takes more text, and tells whether the answer ends with it. num_deaths: of engine
    processes that were running it.
    """

    caller: _Caller
    index: int
    detokenizer: Detokenizer
    times: AnswerTimes
    is_over: Callable[[str], bool] | None = None
    token_ids: list[int] = []
    num_deaths: int = 0

    def continuation(self) -> AddRequest:
        """The message with which another engine goes on."""
        scores = self.caller.prompt_logprobs
        return msgspec.structs.replace(
            self.caller.prepared.messages[self.index],
            output_token_ids=self.token_ids,
            num_prompt_logprobs=len(scores) - 1 if scores and self.index == 0 else 0,
        )


class _Caller(msgspec.Struct, eq=False):
    """A request as its caller sees it. changed: what the current step brought so far."""

    prepared: PreparedRequest
    times: RequestTimes
    unfinished: set[str]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    embedding: bytes | None = None
    changed: dict[int, CompletionOutput] = {}


class Processed(msgspec.Struct):
    """What a step means for the callers.

    outputs: new parts by request id. failures: requests that ended with an error. aborts: engine
    request ids that the engine still runs but nobody wants any more.
    """

    outputs: dict[str, RequestOutput] = {}
    failures: dict[str, QuireError] = {}
    aborts: list[str] = []


class OutputProcessor:
    """Follows every unfinished request of one front."""

    def __init__(self, tokenizer: Tokenizer, metrics: RequestMetrics) -> None:
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._answers: dict[str, _Answer] = {}
        self._callers: dict[str, _Caller] = {}

    @property
    def num_unfinished(self) -> int:
        """Requests that still expect something."""
        return len(self._callers)

    def add(self, prepared: PreparedRequest, arrival: float) -> None:
        """Follow a request; arrival in seconds of the monotonic clock."""
        sampling = prepared.sampling
        ids = [message.request_id for message in prepared.messages]
        caller = _Caller(prepared, RequestTimes(arrival), set(ids))
        if sampling.prompt_logprobs is not None:
            caller.prompt_logprobs = [None]  # nothing comes before the first token
        self._callers[prepared.request_id] = caller
        stop_when = prepared.stop_when
        observed = self._metrics.send(arrival, len(prepared.prompt_token_ids), sampling)
        for index, answer_id in enumerate(ids):
            detokenizer = Detokenizer(
                self._tokenizer,
                prepared.prompt_token_ids,
                skip_special_tokens=sampling.skip_special_tokens,
                kept_token_ids=sampling.kept_token_ids,
                stop=sampling.stop,
                include_stop_str_in_output=sampling.include_stop_str_in_output,
                min_tokens=sampling.min_tokens,
            )
            self._answers[answer_id] = _Answer(
                caller, index, detokenizer, observed[index], stop_when() if stop_when else None
            )

    def forget(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> list[str]:
        """Stop following a request, for a reason that is counted.

        Returns the engine's ids that are to be aborted.
        """
        caller = self._callers.pop(request_id, None)
        if caller is None:
            return []
        now = time.monotonic()
        for answer_id in caller.unfinished:
            self._metrics.finish(self._answers.pop(answer_id).times, reason.value, now)
        return sorted(caller.unfinished)

    def follows(self, answer_id: str) -> bool:
        """Whether somebody still waits for an answer, by its engine request id."""
        return answer_id in self._answers

    def unfinished(self) -> list[AddRequest]:
        """What another engine has to be asked to finish everything, oldest first."""
        return [answer.continuation() for answer in self._answers.values()]

    def note_death(self, has_begun: Callable[[Iterable[str]], set[str]]) -> dict[str, EngineError]:
        """An engine process has died; returns the requests that end with it."""
        failures: dict[str, EngineError] = {}
        for answer_id in has_begun(self._answers):
            answer = self._answers[answer_id]
            answer.num_deaths += 1
            if answer.num_deaths >= MAX_DEATHS:
                failures[answer.caller.prepared.request_id] = EngineError(FATAL)
        for request_id in failures:
            self.forget(request_id, FinishReason.ERROR)
        return failures

    def process(self, deltas: list[RequestDelta]) -> Processed:
        """Turn one step's deltas into what callers get."""
        processed, now = Processed(), time.monotonic()
        changed: dict[str, _Caller] = {}
        for delta in deltas:
            answer = self._answers.get(delta.request_id)
            if answer is None:
                continue  # nobody waits for it any more
            request_id = answer.caller.prepared.request_id
            try:
                if delta.error is not None:
                    raise _told(delta.error, delta.error_kind)
                self._extend(answer, delta, now, processed)
                changed[request_id] = answer.caller
            except Exception as failure:  # one answer's text must not cost the others theirs
                processed.failures[request_id] = _as_quire_error(failure)
                processed.aborts += self.forget(request_id, FinishReason.ERROR)
                changed.pop(request_id, None)
        for request_id, caller in changed.items():
            processed.outputs[request_id] = self._take_output(caller)
            if not caller.unfinished:
                del self._callers[request_id]
        return processed

    def _extend(
        self, answer: _Answer, delta: RequestDelta, now: float, processed: Processed
    ) -> None:
        caller = answer.caller
        if delta.timing is not None:
            answer.times.timing = delta.timing
        if delta.token_ids:
            answer.token_ids += delta.token_ids
            caller.times.first_token = caller.times.first_token or now
            caller.times.last_token = now
            self._count_tokens(answer.times, delta, now)
        if answer.index == 0:  # the others find what the first has computed
            caller.num_cached_tokens = delta.num_cached_tokens
            caller.embedding = delta.embedding
        if caller.prompt_logprobs is not None:
            caller.prompt_logprobs += [self._position(scores) for scores in delta.prompt_logprobs]
        part = self._completion(answer, delta)
        if part.finish_reason is not None:
            caller.unfinished.discard(delta.request_id)
            del self._answers[delta.request_id]
            self._metrics.finish(answer.times, part.finish_reason, now)
            if delta.finish_reason is None:  # it ends by its text: the engine does not know yet
                processed.aborts.append(delta.request_id)
        if answer.index in caller.changed:
            caller.changed[answer.index].append(part)
        else:
            caller.changed[answer.index] = part

    def _count_tokens(self, times: AnswerTimes, delta: RequestDelta, now: float) -> None:
        count = len(delta.token_ids)
        if delta.finish_reason is not None and delta.timing is not None and count > 1:
            self._metrics.tokens_at_end(times, count, delta.timing, now)
        else:
            self._metrics.tokens(times, count, now)

    def _completion(self, answer: _Answer, delta: RequestDelta) -> CompletionOutput:
        """The answer's next part."""
        sampling, detokenizer = answer.caller.prepared.sampling, answer.detokenizer
        ended = delta.finish_reason is not None
        shown = delta.token_ids
        has_end_token = delta.finish_reason == FinishReason.STOP and not delta.whole
        if has_end_token and not sampling.include_stop_str_in_output:
            shown = shown[:-1]  # the end token has no text
        num_before = detokenizer.num_tokens
        text = detokenizer.push(shown)
        if ended:
            text += detokenizer.finish()
        kept = delta.token_ids
        if detokenizer.stop_reason is not None:  # what came after the stop string is not wanted
            kept = kept[: detokenizer.num_tokens - num_before]
        part = CompletionOutput(answer.index, text, kept)
        if sampling.logprobs is not None:
            part.logprobs = [self._position(scores) for scores in delta.logprobs[: len(kept)]]
        if detokenizer.stop_reason is not None:
            part.finish_reason = FinishReason.STOP.value
            part.stop_reason = detokenizer.stop_reason
        else:
            part.finish_reason, part.stop_reason = delta.finish_reason, delta.stop_token_id
        if part.finish_reason is None and answer.is_over is not None and answer.is_over(text):
            part.finish_reason = FinishReason.STOP.value
        return part

    def _take_output(self, caller: _Caller) -> RequestOutput:
        changed, caller.changed = caller.changed, {}
        parts = list(changed.values())
        if len(parts) > 1:
            parts = [part for _, part in sorted(changed.items())]
        prepared = caller.prepared
        return RequestOutput(
            request_id=prepared.request_id,
            prompt=prepared.prompt,
            prompt_token_ids=prepared.prompt_token_ids,
            outputs=parts,
            times=caller.times,
            prompt_logprobs=caller.prompt_logprobs,
            num_cached_tokens=caller.num_cached_tokens,
            embedding=caller.embedding,
            finished=not caller.unfinished,
        )

    def _position(self, scores: TokenLogprobs) -> PositionLogprobs:
        """The produced token first, then the most probable ones by rank."""
        found: PositionLogprobs = {}
        for place, (token_id, logprob) in enumerate(
            zip(scores.token_ids, scores.logprobs, strict=True)
        ):
            if token_id not in found:
                rank = scores.rank if place == 0 else place
                found[token_id] = Logprob(logprob, rank, self._tokenizer.token_text(token_id))
        return found


def _told(message: str, kind: ErrorKind) -> QuireError:
    """The failure that the engine told, as its caller sees it."""
    match kind:
        case ErrorKind.REQUEST:
            return InvalidRequestError(message, code="invalid_value")
        case ErrorKind.OVERLOAD:
            return QueueTimeoutError(message)
        case ErrorKind.ENGINE:
            return EngineError(message)


def _as_quire_error(failure: Exception) -> QuireError:
    if isinstance(failure, QuireError):
        return failure
    logger.error("an answer could not be put into words", exc_info=failure)
    return EngineError("the answer could not be put into words; see the log")
