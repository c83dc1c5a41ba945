"""Counting a request's tokens as they pass, in OpenAI's words."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.request_output import RequestOutput


class PromptTokensDetails(msgspec.Struct):
    """cached_tokens: prompt tokens that the prefix cache gave."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """reasoning_tokens: tokens of the answers' thoughts, their marks included."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    """Token counts of one HTTP request. completion_tokens_details: of conversations alone."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class UsageCounter:
    """Counts tokens as they pass. A prompt counts once, however many answers it has.

    first_token: when it came, in seconds of the monotonic clock.
    """

    __slots__ = (
        *("_cached", "cached_tokens", "completion_tokens", "finish_reasons", "first_token"),
        "prompt_tokens",
    )

    def __init__(self) -> None:
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        self.finish_reasons: list[str] = []
        self.first_token: float | None = None
        self._cached: dict[int, int] = {}  # by prompt

    def add(self, place: int, item: RequestOutput) -> None:
        """Take what is new of the prompt with index `place`."""
        before = self._cached.get(place)
        if before is None:
            self.prompt_tokens += len(item.prompt_token_ids)
            before = 0
        self._cached[place] = cached = max(before, item.num_cached_tokens)
        self.cached_tokens += cached - before
        for output in item.outputs:
            self.completion_tokens += len(output.token_ids)
            if output.finish_reason is not None:
                self.finish_reasons.append(output.finish_reason)
        if self.first_token is None:
            self.first_token = item.times.first_token

    def total(self) -> Usage:
        """The counts so far."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=self.prompt_tokens + self.completion_tokens,
            prompt_tokens_details=PromptTokensDetails(self.cached_tokens),
        )
