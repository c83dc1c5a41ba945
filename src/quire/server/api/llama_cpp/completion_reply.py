"""The structs that llama.cpp's /completion sends."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.request_output import RequestOutput

StopType = Literal["none", "eos", "limit", "word"]


class Timings(msgspec.Struct, kw_only=True):
    """How long prompt and answer took. cache_n: cached tokens of the prompt; prompt_n: others."""

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
        """The timings of a request whose answer has ended."""
        times, cached = item.times, item.num_cached_tokens
        first = times.arrival if times.first_token is None else times.first_token
        last = first if times.last_token is None else times.last_token
        prompt_ms, predicted_ms = (first - times.arrival) * 1e3, (last - first) * 1e3
        num_prompt, num_later = len(item.prompt_token_ids) - cached, max(0, num_predicted - 1)
        return cls(
            cache_n=cached,
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


class TokenProbability(msgspec.Struct, kw_only=True):
    """One candidate at one position."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class TokenProbabilities(TokenProbability, kw_only=True):
    """One token of the answer, with the candidates that it was drawn from."""

    top_logprobs: list[TokenProbability]


class NativePart(msgspec.Struct, kw_only=True):
    """The next part of an answer."""

    index: int
    content: str
    tokens: list[int]
    stop: bool = False
    id_slot: int = -1
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[TokenProbabilities] | UnsetType = UNSET


class NativeReply(NativePart, kw_only=True):
    """A whole answer; at the end of a stream, without its text."""

    stop: bool = True
    model: str
    prompt: str
    generation_settings: dict[str, Any]
    has_new_line: bool
    truncated: bool
    stop_type: StopType
    stopping_word: str
    tokens_cached: int
    timings: Timings
