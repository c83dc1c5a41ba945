"""Log-probabilities in OpenAI's two formats, and prompt log-probabilities in vLLM's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from quire.core.output import Logprob, PositionLogprobs
from quire.server.engine_protocol import TokenizerProtocol

LOWEST = -9999.0  # stands for minus infinity, which JSON cannot say


class CompletionLogprobs(msgspec.Struct):
    """Of /v1/completions. text_offset: where each token begins in the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TopLogprob(msgspec.Struct):
    """One candidate at one position. bytes: its UTF-8, which may be half a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """One token of the answer, with the candidates it was drawn from."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Of /v1/chat/completions."""

    content: list[ChatLogprob]


class PromptLogprob(msgspec.Struct):
    """One candidate at one position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


def completion_logprobs(
    positions: Sequence[PositionLogprobs | None],
    token_ids: Sequence[int],
    count: int,
    offset: int,
    tokenizer: TokenizerProtocol,
) -> CompletionLogprobs:
    """Format positions for /v1/completions; the token itself is listed besides the top `count`.

    positions: None where there is none, as for a prompt's first token. offset: where the first
    token begins in the text.
    """
    shown = CompletionLogprobs([], [], [], [])
    for token_id, position in zip(token_ids, positions, strict=True):
        if position is None:
            text, logprob, top = tokenizer.token_text(token_id), None, None
        else:
            own = position[token_id]
            text, logprob = own.decoded_token, finite(own.logprob)
            top = {text: logprob}
            for candidate in _top(position, count).values():
                top.setdefault(candidate.decoded_token, finite(candidate.logprob))
        shown.tokens.append(text)
        shown.token_logprobs.append(logprob)
        shown.top_logprobs.append(top)
        shown.text_offset.append(offset)
        offset += len(text)
    return shown


def chat_logprobs(
    positions: Sequence[PositionLogprobs],
    token_ids: Sequence[int],
    count: int,
    tokenizer: TokenizerProtocol,
) -> ChatLogprobs:
    """Format positions for /v1/chat/completions, with the top `count` candidates of each."""
    content = []
    for token_id, position in zip(token_ids, positions, strict=True):
        own = position[token_id]
        content.append(
            ChatLogprob(
                token=own.decoded_token,
                logprob=finite(own.logprob),
                bytes=list(tokenizer.token_bytes(token_id)),
                top_logprobs=[
                    TopLogprob(
                        candidate.decoded_token,
                        finite(candidate.logprob),
                        list(tokenizer.token_bytes(candidate_id)),
                    )
                    for candidate_id, candidate in _top(position, count).items()
                ],
            )
        )
    return ChatLogprobs(content)


def prompt_logprobs(
    positions: Sequence[PositionLogprobs | None], token_ids: Sequence[int], count: int
) -> list[dict[str, PromptLogprob] | None]:
    """One map from token id to candidate per prompt token, None for the first."""
    shown: list[dict[str, PromptLogprob] | None] = []
    for token_id, position in zip(token_ids, positions, strict=True):
        if position is None:
            shown.append(None)
            continue
        wanted = {token_id: position[token_id]} | _top(position, count)
        shown.append(
            {
                str(candidate_id): PromptLogprob(finite(c.logprob), c.rank, c.decoded_token)
                for candidate_id, c in wanted.items()
            }
        )
    return shown


def finite(logprob: float) -> float:
    """A number that JSON can say."""
    return LOWEST if math.isnan(logprob) else max(logprob, LOWEST)


def _top(position: PositionLogprobs, count: int) -> dict[int, Logprob]:
    """The `count` most probable candidates, best first."""
    ranked = sorted(position.items(), key=lambda item: item[1].rank)
    return {token_id: logprob for token_id, logprob in ranked[:count] if logprob.rank <= count}
