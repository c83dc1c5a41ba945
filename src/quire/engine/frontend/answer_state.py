"""The state of a request and of its answers while they are generated, and what deltas make of it.

Text, log-probabilities and the join of n answers. output_processor.py tracks all requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache

import msgspec

from quire.core.messages import AddRequest, RequestDelta, TokenLogprobs
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
from quire.engine.frontend.request_metrics import AnswerTimes
from quire.tokenizer.detokenizer import Detokenizer
from quire.tokenizer.tokenizer import Tokenizer


class RequestState(msgspec.Struct, eq=False):
    """A request with all its answers. changed: the outputs of the current step, by answer."""

    prepared: PreparedRequest
    times: RequestTimes
    unfinished: set[str]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    embedding: bytes | None = None
    changed: dict[int, CompletionOutput] = {}
    progress: ProgressReports | None = None

    def take_output(self) -> RequestOutput:
        """The outputs since the last call, joined."""
        changed, self.changed = self.changed, {}
        prepared = self.prepared
        return RequestOutput(
            request_id=prepared.request_id,
            prompt=prepared.prompt,
            prompt_token_ids=prepared.prompt_token_ids,
            outputs=[changed[index] for index in sorted(changed)],
            times=self.times,
            prompt_logprobs=self.prompt_logprobs,
            num_cached_tokens=self.num_cached_tokens,
            embedding=self.embedding,
            finished=not self.unfinished,
            progress=() if self.progress is None else self.progress.take(),
        )


class AnswerState(msgspec.Struct, eq=False):
    """One of a request's n answers while it is being generated.

    is_over: takes the next text and returns whether the answer ends with it. num_deaths_seen:
    engine processes that died while they ran it; num_deaths: those of which it may be the cause.
    """

    request: RequestState
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

    def completion(self, delta: RequestDelta, tokenizer: Tokenizer) -> CompletionOutput:
        """The output that a delta adds to the answer."""
        sampling, detokenizer = self.request.prepared.sampling, self.detokenizer
        ended = delta.finish_reason is not None
        shown = delta.token_ids
        has_end_token = delta.finish_reason == FinishReason.STOP and not delta.grammar_terminated
        if has_end_token and not sampling.include_stop_str_in_output:
            shown = shown[:-1]  # the end token has no text
        num_before = detokenizer.num_tokens
        text, is_over = self._push(shown)
        if ended and not is_over:
            text += detokenizer.finish()
        token_ids, stop_reason = delta.token_ids, detokenizer.stop_reason
        if is_over or stop_reason is not None:  # drop what follows
            token_ids = token_ids[: detokenizer.num_tokens - num_before]
        part = CompletionOutput(self.index, text, token_ids)
        if sampling.logprobs is not None:
            is_ranked = sampling.logprob_token_ids is None
            shown_scores = delta.logprobs[: len(token_ids)]
            part.logprobs = [
                position_logprobs(x, tokenizer, is_ranked=is_ranked) for x in shown_scores
            ]
        if is_over or stop_reason is not None:
            part.finish_reason, part.stop_reason = FinishReason.STOP.value, stop_reason
        else:
            part.finish_reason, part.stop_reason = delta.finish_reason, delta.stop_token_id
        return part

    def _push(self, token_ids: Sequence[int]) -> tuple[str, bool]:
        """The text of the next tokens, and whether the answer is over.

        Where text may end it, tokens are taken one by one, however many have come together: what
        the caller gets must not depend on that.
        """
        if self.is_over is None:
            return self.detokenizer.push(token_ids), False
        text = ""
        for token_id in token_ids:
            text += (piece := self.detokenizer.push([token_id]))
            if self.is_over(piece):
                return text, True
        return text, False


@cache
def _no_text() -> Tokenizer:
    from quire.tokenizer.tokenless import Tokenless  # most answers have text

    return Tokenless()


def start_answer(
    request: RequestState, index: int, times: AnswerTimes, tokenizer: Tokenizer
) -> AnswerState:
    """The state of a request's answer of this index, before its first token."""
    prepared, sampling = request.prepared, request.prepared.sampling
    detokenizer = Detokenizer(
        tokenizer if sampling.detokenize else _no_text(),
        prepared.prompt_token_ids,
        skip_special_tokens=sampling.skip_special_tokens,
        kept_token_ids=sampling.kept_token_ids,
        stop=sampling.stop,
        include_stop_str_in_output=sampling.include_stop_str_in_output,
        min_tokens=sampling.min_tokens,
    )
    is_over = prepared.stop_when() if prepared.stop_when else None
    return AnswerState(request, index, detokenizer, times, is_over)


def position_logprobs(
    scores: TokenLogprobs, tokenizer: Tokenizer, *, is_ranked: bool = True
) -> PositionLogprobs:
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
            found[token_id] = Logprob(logprob, rank, tokenizer.token_text(token_id))
    return found
