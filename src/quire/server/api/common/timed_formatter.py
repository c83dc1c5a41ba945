"""TimedFormatter: adds llama.cpp's `timings` and `prompt_progress` to the answers of any API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import UNSET

from quire.core.request_output import CompletionOutput, PromptProgress, RequestOutput
from quire.server.api.common.generation_job import Job
from quire.server.api.common.reply_formatter import ReplyFormatter
from quire.server.api.common.timings import ProgressReply, Timings, WithProgress, WithTimings
from quire.server.api.common.usage import Usage


class TimedFormatter:
    """A ReplyFormatter with the timings and the progress that its request asks for.

    In a stream a report on the prompt makes a chunk of its own.
    """

    def __init__(self, formatter: ReplyFormatter) -> None:
        self.job = formatter.job
        self.failure = formatter.failure
        self.end_marker = formatter.end_marker
        self._formatter = formatter
        self._num_tokens = Counter[int]()  # of the answers so far, by prompt
        self._latest = Timings.of_prompt(PromptProgress(0, 0, 0.0))

    def reply(
        self, results: Sequence[RequestOutput], usage: Usage
    ) -> msgspec.Struct | Sequence[msgspec.Struct]:
        """The complete answer, with the timings of the last prompt."""
        reply = self._formatter.reply(results, usage)
        if isinstance(reply, WithTimings):
            set_timings(reply, self.job, results)
        return reply

    def chunks(self, index: int, output: RequestOutput) -> Iterator[msgspec.Struct]:
        """A stream's next chunks: those of reports on the prompt, then those of the answers."""
        for report in output.progress:
            part = msgspec.structs.replace(output, outputs=[CompletionOutput(0)], finished=False)
            timings, total = Timings.of_prompt(report), len(output.prompt_token_ids)
            yield from self._timed(self._formatter.chunks(index, part), timings, report, total)
        output.progress = ()  # which has its chunks by now
        if any(part.token_ids or part.finish_reason is not None for part in output.outputs):
            timings = self._timings(index, output)
            yield from self._timed(self._formatter.chunks(index, output), timings)

    def ending(self, usage: Usage) -> Iterator[msgspec.Struct]:
        """The last chunks of a complete stream."""
        yield from self._timed(self._formatter.ending(usage), self._latest)

    def _timings(self, index: int, output: RequestOutput) -> Timings:
        self._num_tokens[index] += sum(len(part.token_ids) for part in output.outputs)
        self._latest = Timings.of(output, self._num_tokens[index])
        return self._latest

    def _timed(
        self,
        chunks: Iterable[msgspec.Struct],
        timings: Timings,
        report: PromptProgress | None = None,
        total: int = 0,
    ) -> list[msgspec.Struct]:
        made = list(chunks)
        for chunk in made:
            if isinstance(chunk, WithTimings) and chunk.timings is UNSET:
                self._set(chunk, timings)
        if report is not None and made and isinstance(last := made[-1], WithProgress):
            last.prompt_progress = ProgressReply.of(report, total)
        return made

    def _set(self, reply: WithTimings, timings: Timings) -> None:
        if self.job.has_timings:
            reply.timings = timings


def set_timings(reply: WithTimings, job: Job, results: Sequence[RequestOutput]) -> None:
    """Add the timings of the last prompt to a complete answer, if its request asks for them."""
    if job.has_timings:
        last = results[-1]
        reply.timings = Timings.of(last, sum(len(part.token_ids) for part in last.outputs))


def timed(formatter: ReplyFormatter) -> ReplyFormatter:
    """The formatter, with timings and progress if its request asks for them."""
    job = formatter.job
    return TimedFormatter(formatter) if job.has_timings or job.reports_progress else formatter
