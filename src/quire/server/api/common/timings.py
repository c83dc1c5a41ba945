"""The fields `timings` and `prompt_progress` of llama.cpp's API, for requests that ask for them.

A reply or chunk of any API that may have them inherits them; a TimedFormatter sets them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.request_output import CompletionOutput, PromptProgress, RequestOutput, RequestTimes
from quire.server.api.common.generation_job import Job, ReplyFormatter
from quire.server.api.common.usage import Usage


class Timings(msgspec.Struct, kw_only=True):
    """Durations of prompt and answer. cache_n: cached tokens of the prompt; prompt_n: others."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float

    @classmethod
    def of(cls, item: RequestOutput, num_predicted: int) -> Timings:
        """The timings of a request so far, or at its end. num_predicted: tokens of its answers."""
        cached, (prompt, answer) = item.num_cached_tokens, durations(item.times)
        num_prompt = len(item.prompt_token_ids) - cached
        return cls._of(cached, num_prompt, prompt * 1e3, num_predicted, answer * 1e3)

    @classmethod
    def of_prompt(cls, progress: PromptProgress) -> Timings:
        """The timings of a request while its prompt is computed."""
        num_prompt = progress.num_computed - progress.num_cached
        return cls._of(progress.num_cached, num_prompt, progress.seconds * 1e3, 0, 0.0)

    @classmethod
    def _of(
        cls,
        num_cached: int,
        num_prompt: int,
        prompt_ms: float,
        num_predicted: int,
        predicted_ms: float,
    ) -> Timings:
        num_later = max(0, num_predicted - 1)
        return cls(
            cache_n=num_cached,
            prompt_n=num_prompt,
            prompt_ms=prompt_ms,
            prompt_per_token_ms=_ratio(prompt_ms, num_prompt),
            prompt_per_second=_ratio(1e3 * num_prompt, prompt_ms),
            predicted_n=num_predicted,
            predicted_ms=predicted_ms,
            predicted_per_token_ms=_ratio(predicted_ms, num_later),
            predicted_per_second=_ratio(1e3 * num_later, predicted_ms),
        )


def durations(times: RequestTimes) -> tuple[float, float]:
    """Seconds from a request's arrival to its first token, and from there to its last so far."""
    first = times.arrival if times.first_token is None else times.first_token
    last = first if times.last_token is None else times.last_token
    return first - times.arrival, last - first


def _ratio(number: float, by: float) -> float:
    return number / by if by > 0 else 0.0


class ProgressReply(msgspec.Struct, kw_only=True):
    """Number of a prompt's processed tokens, of `total`; `cache`: those that were cached."""

    total: int
    cache: int
    processed: int
    time_ms: float

    @classmethod
    def of(cls, progress: PromptProgress, total: int) -> ProgressReply:
        """The reply for the progress of a prompt of `total` tokens."""
        return cls(
            total=total,
            cache=progress.num_cached,
            processed=progress.num_computed,
            time_ms=progress.seconds * 1e3,
        )


class WithTimings(msgspec.Struct, kw_only=True):
    """The base of replies. timings: of a request with `timings_per_token`."""

    timings: Timings | UnsetType = UNSET


class WithProgress(WithTimings, kw_only=True):
    """The base of chunks. prompt_progress: of a request with `return_progress`."""

    prompt_progress: ProgressReply | UnsetType = UNSET


class TimedFormatter:
    """A ReplyFormatter of streams with the timings and the progress that its request asks for.

    A report on the prompt makes a chunk of its own.
    """

    def __init__(self, formatter: ReplyFormatter) -> None:
        self.job = formatter.job
        self.reply = formatter.reply
        self.failure = formatter.failure
        self.end_marker = formatter.end_marker
        self._formatter = formatter
        self._num_tokens = Counter[int]()  # of the answers so far, by prompt
        self._latest = Timings.of_prompt(PromptProgress(0, 0, 0.0))

    def chunks(self, index: int, output: RequestOutput) -> Iterator[msgspec.Struct]:
        """A stream's next chunks: those of reports on the prompt, then those of the answers."""
        for report in output.progress:
            part = msgspec.structs.replace(output, outputs=[CompletionOutput(0)], finished=False)
            timings, total = Timings.of_prompt(report), len(output.prompt_token_ids)
            yield from self._timed(self._formatter.chunks(index, part), timings, report, total)
        output.progress = ()  # which has its chunks by now
        if any(part.token_ids or part.finish_reason is not None for part in output.outputs):
            self._num_tokens[index] += sum(len(part.token_ids) for part in output.outputs)
            self._latest = Timings.of(output, self._num_tokens[index])
            yield from self._timed(self._formatter.chunks(index, output), self._latest)

    def ending(self, usage: Usage) -> Iterator[msgspec.Struct]:
        """The last chunks of a complete stream."""
        yield from self._timed(self._formatter.ending(usage), self._latest)

    def _timed(
        self,
        chunks: Iterable[msgspec.Struct],
        timings: Timings,
        report: PromptProgress | None = None,
        total: int = 0,
    ) -> list[msgspec.Struct]:
        made = list(chunks)
        for chunk in made if self.job.has_timings else ():
            if isinstance(chunk, WithTimings) and chunk.timings is UNSET:
                chunk.timings = timings
        if report is not None and made and isinstance(last := made[-1], WithProgress):
            last.prompt_progress = ProgressReply.of(report, total)
        return made


def set_timings(reply: object, job: Job, results: Sequence[RequestOutput]) -> None:
    """Add the timings of the last prompt to a complete answer, if its request asks for them."""
    if job.has_timings and isinstance(reply, WithTimings):
        last = results[-1]
        reply.timings = Timings.of(last, sum(len(part.token_ids) for part in last.outputs))


def timed(formatter: ReplyFormatter) -> ReplyFormatter:
    """The formatter of a stream, with timings and progress if its request asks for them."""
    job = formatter.job
    return TimedFormatter(formatter) if job.has_timings or job.reports_progress else formatter
