"""The fields `timings` and `prompt_progress` of llama.cpp's API, for requests that ask for them.

A reply or chunk that may have them inherits them; timed_formatter.py sets them.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.request_output import PromptProgress, RequestOutput


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
        times, cached = item.times, item.num_cached_tokens
        first = times.arrival if times.first_token is None else times.first_token
        last = first if times.last_token is None else times.last_token
        num_prompt = len(item.prompt_token_ids) - cached
        prompt_ms = (first - times.arrival) * 1e3
        return cls._of(cached, num_prompt, prompt_ms, num_predicted, (last - first) * 1e3)

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
