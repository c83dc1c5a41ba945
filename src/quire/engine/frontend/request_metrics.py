"""Request metrics of one frontend: TTFT, ITL, tokens and more, cheap enough for every token.

They count engine requests, as vLLM does: a prompt with n answers counts n times. Each ends with
exactly one finish reason, so sent == unfinished + the sum over all reasons.

Most histograms are of whole requests: these are observed together, by BATCH or when they are read.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

import msgspec

from quire.core.histogram import (
    COUNT_BOUNDS,
    ITL_BOUNDS,
    REQUEST_BOUNDS,
    TOKEN_BOUNDS,
    TTFT_BOUNDS,
    Histogram,
    HistogramData,
)
from quire.core.messages import RequestTiming
from quire.core.sampling_params import SamplingParams

BATCH = 64  # requests that are observed together


class RequestFigures(msgspec.Struct, kw_only=True):
    """RequestMetrics as a message. histograms: by name. finished: by reason."""

    num_sent: int = 0
    longest: int = 0
    num_cached_tokens: int = 0
    finished: dict[str, int] = {}
    histograms: dict[str, HistogramData] = {}


class RequestCount(msgspec.Struct, eq=False):
    """The answers of one request: how many are unfinished, and the tokens of the longest."""

    num_unfinished: int
    longest: int = 0


class AnswerTimes(msgspec.Struct, eq=False):
    """One answer's times, in seconds of the monotonic clock; 0.0 until it happened.

    num_cached_tokens: of the prompt, found in the prefix cache. timing: the latest of the engine.
    """

    arrival: float
    num_prompt_tokens: int
    request: RequestCount
    num_cached_tokens: int = 0
    num_tokens: int = 0
    first_token: float = 0.0
    last_token: float = 0.0
    end: float = 0.0
    timing: RequestTiming | None = None


class RequestMetrics:
    """Counters and histograms (TTFT, ITL) of one frontend's requests to one engine.

    Tokens that arrive together share the time since the previous ones equally; so do all tokens of
    a request that is sent only at its end. What ended requests were is read from `figures` or
    `histograms`, which bring it up to date.
    """

    def __init__(self) -> None:
        self.num_sent = 0
        self.longest = 0  # tokens of an ended request, its prompt included
        self.num_cached_tokens = 0  # prompt tokens of ended requests, found in the prefix cache
        self.finished: Counter[str] = Counter()
        self.time_to_first_token = Histogram(TTFT_BOUNDS)
        self.inter_token_latency = Histogram(ITL_BOUNDS)
        self.time_per_output_token = Histogram(ITL_BOUNDS)  # one per request: the mean
        self.e2e_latency = Histogram(REQUEST_BOUNDS)
        self.queue_time = Histogram(REQUEST_BOUNDS)
        self.prefill_time = Histogram(REQUEST_BOUNDS)
        self.decode_time = Histogram(REQUEST_BOUNDS)
        self.inference_time = Histogram(REQUEST_BOUNDS)
        self.num_prompt_tokens = Histogram(TOKEN_BOUNDS)
        self.num_computed_prompt_tokens = Histogram(TOKEN_BOUNDS)  # of those that started to run
        self.num_generation_tokens = Histogram(TOKEN_BOUNDS)
        self.max_num_generation_tokens = Histogram(TOKEN_BOUNDS)  # of a request's n answers
        self.num_preemptions = Histogram(COUNT_BOUNDS)
        self.params_n = Histogram(COUNT_BOUNDS)
        self.params_max_tokens = Histogram(TOKEN_BOUNDS)
        self._sent: list[SamplingParams] = []  # of requests that are not observed yet
        self._ended: list[AnswerTimes] = []  # answers that are not observed yet
        self._gap = math.nan  # seconds between two tokens, as last observed
        self._bucket = 0  # where it belongs

    def record_request(
        self, arrival: float, num_prompt_tokens: int, sampling: SamplingParams
    ) -> list[AnswerTimes]:
        """Record a request; returns one AnswerTimes for each of its n answers."""
        self.num_sent += sampling.n
        self._sent.append(sampling)
        if len(self._sent) == BATCH:
            self._observe_sent()
        request = RequestCount(sampling.n)
        return [AnswerTimes(arrival, num_prompt_tokens, request) for _ in range(sampling.n)]

    def tokens(self, times: AnswerTimes, count: int, now: float) -> None:
        """Record new tokens of an answer. Runs for each request in each step."""
        times.num_tokens += count
        last, times.last_token = times.last_token, now
        if not last:
            self._first_tokens(times, count, now)
            return
        gap = (now - last) / count
        if gap != self._gap:  # most requests of a step had their last tokens in the same step
            self._gap, self._bucket = gap, bisect_left(ITL_BOUNDS, gap)
        itl = self.inter_token_latency
        itl.counts[self._bucket] += count
        itl.sum += now - last

    def _first_tokens(self, times: AnswerTimes, count: int, now: float) -> None:
        """Observe the TTFT, and the tokens that arrived with the first."""
        times.first_token = now
        self.time_to_first_token.observe(now - times.arrival)
        if count > 1:  # the others came with the first
            self.inter_token_latency.counts[0] += count - 1

    def tokens_at_end(
        self, times: AnswerTimes, count: int, timing: RequestTiming, now: float
    ) -> None:
        """Record all tokens of an answer at once, by the times that the engine measured."""
        if times.first_token or timing.first_token is None or timing.last_token is None:
            self.tokens(times, count, now)
            return
        self.tokens(times, 1, timing.first_token)
        if count > 1:
            self.tokens(times, count - 1, timing.last_token)

    def finish(self, times: AnswerTimes, reason: str, now: float) -> None:
        """Record that an answer has ended."""
        self.finished[reason] += 1
        times.end = now
        self._ended.append(times)
        if len(self._ended) == BATCH:
            self._observe_ended()

    def figures(self) -> RequestFigures:
        """A copy of all counters and histograms as a message."""
        histograms = {name: histogram.data() for name, histogram in self.histograms()}
        return RequestFigures(
            num_sent=self.num_sent,
            longest=self.longest,
            num_cached_tokens=self.num_cached_tokens,
            finished=dict(self.finished),
            histograms=histograms,
        )

    def add(self, figures: RequestFigures) -> None:
        """Add the counters and histograms of another process."""
        self.num_sent += figures.num_sent
        self.longest = max(self.longest, figures.longest)
        self.num_cached_tokens += figures.num_cached_tokens
        self.finished.update(figures.finished)
        for name, histogram in self.histograms():
            histogram.add(figures.histograms.get(name, HistogramData()))

    def histograms(self) -> Iterator[tuple[str, Histogram]]:
        """All histograms by metric name."""
        self._observe_sent()
        self._observe_ended()
        for name, value in vars(self).items():
            if isinstance(value, Histogram):
                yield name, value

    def _observe_sent(self) -> None:
        sent, self._sent = self._sent, []
        self.params_n.observe_all([sampling.n for sampling in sent])
        limits = [sampling.max_tokens for sampling in sent if sampling.max_tokens is not None]
        self.params_max_tokens.observe_all(limits)

    def _observe_ended(self) -> None:
        ended, self._ended = self._ended, []
        self.e2e_latency.observe_all([times.end - times.arrival for times in ended])
        self.num_prompt_tokens.observe_all([times.num_prompt_tokens for times in ended])
        self.num_generation_tokens.observe_all([times.num_tokens for times in ended])
        totals = [times.num_prompt_tokens + times.num_tokens for times in ended]
        self.longest = max([self.longest, *totals])
        self.time_per_output_token.observe_all(
            [
                (times.last_token - times.first_token) / (times.num_tokens - 1)
                for times in ended
                if times.num_tokens > 1
            ]
        )
        self._observe_longest_answers(ended)
        self._observe_timings(ended)

    def _observe_longest_answers(self, ended: list[AnswerTimes]) -> None:
        """Observe the longest answers of the requests that end with these answers."""
        complete = []
        for times in ended:
            request = times.request
            request.num_unfinished -= 1
            if times.num_tokens > request.longest:
                request.longest = times.num_tokens
            if not request.num_unfinished:
                complete.append(request.longest)
        self.max_num_generation_tokens.observe_all(complete)

    def _observe_timings(self, ended: list[AnswerTimes]) -> None:
        """Observe the engine's times, and what it computed, of those that it is known to have run.

        The last token may have arrived here later than it says.
        """
        queue, preemptions, prefill, decode, inference, computed = [], [], [], [], [], []
        for times in ended:
            timing = times.timing
            if timing is None or timing.started is None:
                continue
            queue.append(timing.started - timing.queued)
            preemptions.append(timing.num_preemptions)
            computed.append(times.num_prompt_tokens - times.num_cached_tokens)
            self.num_cached_tokens += times.num_cached_tokens
            if timing.first_token is None or timing.last_token is None:
                continue
            last = max(timing.last_token, times.last_token)
            prefill.append(timing.first_token - timing.started)
            decode.append(last - timing.first_token)
            inference.append(last - timing.started)
        self.queue_time.observe_all(queue)
        self.num_preemptions.observe_all(preemptions)
        self.num_computed_prompt_tokens.observe_all(computed)
        self.prefill_time.observe_all(prefill)
        self.decode_time.observe_all(decode)
        self.inference_time.observe_all(inference)
