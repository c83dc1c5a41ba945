"""Log probabilities in OpenAI's two formats, and those of prompts in vLLM's format.

A `count` of candidates is ALL where a request asks for all, or names the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import msgspec

from quire.core.request_output import Logprob, PositionLogprobs
from quire.core.sampling_params import SamplingParams
from quire.tokenizer.detokenizer import Detokenizer
from quire.tokenizer.tokenizer import Tokenizer

ALL = -1
LOWEST = -9999.0  # stands for minus infinity, which JSON does not have


class CompletionLogprobs(msgspec.Struct):
    """Logprobs of /v1/completions. text_offset: start of each token in the choice's text, if no
    stop string cut it; tokens that share a character start where it does.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TopLogprob(msgspec.Struct, gc=False):
    """One candidate at one position. bytes: its UTF-8, which may be half a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob, gc=False):
    """One token of the answer, with the candidates it was drawn from."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Logprobs of /v1/chat/completions."""

    content: list[ChatLogprob]


class PromptLogprob(msgspec.Struct, gc=False):
    """One candidate at one position of the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


class TextOffsets:
    """Computes where each token of a text starts, in characters, from the tokens' bytes.

    before: the token ids in front of the text. begin: the offset of the first token. prompt: the
    text itself where tokens were made of it: control tokens show as far as they are named there.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        before: Sequence[int],
        *,
        skip_special_tokens: bool,
        begin: int = 0,
        prompt: str | None = None,
    ) -> None:
        skips = skip_special_tokens or prompt is not None
        self._text = Detokenizer(tokenizer, before, skip_special_tokens=skips)
        self._offset = begin
        self._tokenizer, self._prompt = tokenizer, prompt

    def of(self, token_ids: Sequence[int]) -> list[int]:
        """The offsets of the text's next tokens."""
        offsets = []
        for token_id in token_ids:
            offsets.append(self._offset + self._text.breaks_character(token_id))
            self._offset += len(self._text.push([token_id])) or self._named(token_id)
        return offsets

    def _named(self, token_id: int) -> int:
        """The characters of a control token that the prompt names."""
        if self._prompt is None or self._tokenizer.shows(token_id, skip_special_tokens=True):
            return 0
        name = self._tokenizer.token_text(token_id)
        return len(name) if self._prompt.startswith(name, self._offset) else 0


def num_shown(sampling: SamplingParams) -> int | None:
    """The number of candidates to show for each token of the answer; None without logprobs."""
    return sampling.logprobs if sampling.logprob_token_ids is None else ALL


def completion_logprobs(
    positions: Sequence[PositionLogprobs | None],
    token_ids: Sequence[int],
    count: int,
    offsets: list[int],
    tokenizer: Tokenizer,
    *,
    as_ids: bool = False,
) -> CompletionLogprobs:
    """Logprobs for /v1/completions: each token itself, and the top `count` candidates.

    positions: None for a prompt's first token. offsets: where each token starts in the text.
    as_ids: tokens are spelled "token_id:5".
    """
    shown = CompletionLogprobs([], [], [], offsets)
    spelled = _id_text if as_ids else partial(_spelled, tokenizer=tokenizer)
    for token_id, position in zip(token_ids, positions, strict=True):
        text, logprob, top = spelled(token_id), None, None
        if position is not None:
            logprob = finite(position[token_id].logprob)
            top = {text: logprob}
            for candidate_id, candidate in shown_of(position, count).items():
                top.setdefault(spelled(candidate_id), finite(candidate.logprob))
        shown.tokens.append(text)
        shown.token_logprobs.append(logprob)
        shown.top_logprobs.append(top)
    return shown


def chat_logprobs(
    positions: Sequence[PositionLogprobs],
    token_ids: Sequence[int],
    count: int,
    tokenizer: Tokenizer,
    *,
    as_ids: bool = False,
) -> ChatLogprobs:
    """Logprobs for /v1/chat/completions, with the top `count` candidates of each token.

    as_ids: tokens are spelled "token_id:5".
    """
    bytes_of = _ByteLists(tokenizer)
    content = []
    for token_id, position in zip(token_ids, positions, strict=True):
        own = position[token_id]
        content.append(
            ChatLogprob(
                token=_id_text(token_id) if as_ids else own.decoded_token,
                logprob=finite(own.logprob),
                bytes=bytes_of[token_id],
                top_logprobs=[
                    TopLogprob(
                        _id_text(candidate_id) if as_ids else candidate.decoded_token,
                        finite(candidate.logprob),
                        bytes_of[candidate_id],
                    )
                    for candidate_id, candidate in shown_of(position, count).items()
                ],
            )
        )
    return ChatLogprobs(content)


class _ByteLists(dict[int, list[int]]):
    """The bytes of each token, in one list for all places where it is: there may be a million."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> list[int]:
        found = self[token_id] = list(self._tokenizer.token_bytes(token_id))
        return found


def prompt_logprobs(
    positions: Sequence[PositionLogprobs | None], token_ids: Sequence[int], count: int
) -> list[dict[str, PromptLogprob] | None]:
    """For each prompt token a map from token id to candidate; None for the first token."""
    shown: list[dict[str, PromptLogprob] | None] = []
    for token_id, position in zip(token_ids, positions, strict=True):
        if position is None:
            shown.append(None)
            continue
        wanted = {token_id: position[token_id]} | shown_of(position, count)
        shown.append(
            {
                str(candidate_id): PromptLogprob(finite(c.logprob), c.rank, c.decoded_token)
                for candidate_id, c in wanted.items()
            }
        )
    return shown


def finite(logprob: float) -> float:
    """The log probability as a finite number, for JSON."""
    return LOWEST if math.isnan(logprob) else max(logprob, LOWEST)


def _id_text(token_id: int) -> str:
    return f"token_id:{token_id}"


def _spelled(token_id: int, tokenizer: Tokenizer) -> str:
    """A token's text, or OpenAI's `bytes:\\xNN` for a part of a character."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def shown_of(position: PositionLogprobs, count: int) -> dict[int, Logprob]:
    """The `count` most probable candidates, best first; those without a rank are in front."""
    ranked = sorted(position.items(), key=lambda item: item[1].rank or 0)
    if count == ALL:
        return dict(ranked)
    return {id_: logprob for id_, logprob in ranked[:count] if (logprob.rank or 0) <= count}
