"""Token counts of a request: counted from its outputs, and in OpenAI's format."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.request import FinishReason
from quire.core.request_output import RequestOutput


class PromptTokensDetails(msgspec.Struct):
    """Parts of the prompt's token count. cached_tokens: prompt tokens found in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """Parts of the answers' token count. reasoning_tokens: of reasoning, its marks included."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    """Token counts of one HTTP request. completion_tokens_details: only of chats."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class UsageCounter(msgspec.Struct, eq=False):
    """Counts the tokens of outputs as they come. A prompt counts once, whatever its answers.

    finish_reasons: of answers that were not aborted. first_token: when the first token came, in
    seconds of the monotonic clock.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    finish_reasons: list[str] = []
    first_token: float | None = None
    _cached: dict[int, int] = {}  # by prompt

    def add(self, index: int, item: RequestOutput) -> None:
        """Count what is new of the prompt with this index."""
        before = self._cached.get(index)
        if before is None:
            self.prompt_tokens += len(item.prompt_token_ids)
            before = 0
        self._cached[index] = cached = max(before, item.num_cached_tokens)
        self.cached_tokens += cached - before
        for output in item.outputs:
            self.completion_tokens += len(output.token_ids)
            if output.finish_reason not in (None, FinishReason.ABORT.value):
                self.finish_reasons.append(output.finish_reason)
        if self.first_token is None:
            self.first_token = item.times.first_token

    def total(self) -> Usage:
        """The token counts so far."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=self.prompt_tokens + self.completion_tokens,
            prompt_tokens_details=PromptTokensDetails(self.cached_tokens),
        )
