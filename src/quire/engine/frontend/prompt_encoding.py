"""Prompt encoding: the one place where a text or a conversation becomes token ids.

Used by the input processor, `LLM` and the routes that need token ids. A text that may be too long
is counted in pieces first: time and memory of a refusal are at most those of the longest text that
fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from quire.core.request_limits import RequestLimits
from quire.errors import invalid_value
from quire.tokenizer.tokenizer import Tokenizer

USUAL_CHARS_PER_TOKEN = 4
# Cutting a text may add this many tokens to its first part.
CUT_TOKENS = 64
# What routes that only count tokens take: more than fits, but not any text. Measured, a token
# takes 300 bytes while a text is encoded.
COUNTED_CONTEXTS = 4
COUNTED_TOKENS = 1 << 18

Prompt = str | list[int]  # text, or token ids


class Encoding(msgspec.Struct, frozen=True):
    """A caller's options for the encoding of a prompt.

    keep: the number of tokens to keep; -1: as many as fit beside the answer; None: all.
    special: whether to add the tokenizer's special tokens, such as a BOS; None: to a text, but not
    to a rendered conversation, where the chat template writes them. keeps_first: keep the first
    tokens, not the last ones.
    """

    keep: int | None = None
    special: bool | None = None
    keeps_first: bool = False


USUAL_ENCODING = Encoding()


def token_ids_of(
    prompt: Prompt,
    tokenizer: Tokenizer,
    limits: RequestLimits,
    encoding: Encoding = USUAL_ENCODING,
    *,
    is_rendered: bool = False,
    reserved: int = 0,
) -> list[int]:
    """Token ids of a complete prompt: of a text, or token ids as they are.

    is_rendered: the prompt is a conversation, rendered by the tokenizer's chat_prompt; other texts
    may write out a chat template, control tokens included. reserved: number of tokens to leave for
    the answer where the encoding keeps as many as fit. Slightly too many ids may be returned:
    `RequestLimits.check` decides. Raises InvalidRequestError, or ContextLengthError for text that
    is far too long.
    """
    if encoding.keep is None and not isinstance(prompt, str):
        return prompt
    if is_rendered:
        special = encoding.special is True
        encode = partial(tokenizer.encode_prompt, add_special_tokens=special)
    else:
        special = encoding.special is not False
        encode = partial(tokenizer.encode, parse_special=True, add_special_tokens=special)
    if encoding.keep is not None:
        most = _most_tokens(limits, encoding.keep, reserved)
        return _cut(encode, prompt, most, keeps_first=encoding.keeps_first)
    assert isinstance(prompt, str)
    param = "messages" if is_rendered else "prompt"
    limits.check_chars(len(prompt), param)
    return _encode_all(encode, prompt, limits, param)


def ids_of_parts(
    parts: Sequence[int | str],
    tokenizer: Tokenizer,
    limits: RequestLimits,
    special: bool | None = None,
) -> list[int]:
    """Token ids of a prompt whose parts are texts and token ids; only its start may get a BOS.

    special: whether it gets one; None: yes. Raises ContextLengthError for texts that are far too
    long.
    """
    limits.check_chars(sum(len(part) for part in parts if isinstance(part, str)))
    ids: list[int] = []
    for index, part in enumerate(parts):
        if not isinstance(part, str):
            ids.append(part)
            continue
        begins = index == 0 and special is not False
        encode = partial(tokenizer.encode, parse_special=True, add_special_tokens=begins)
        ids += _encode_all(encode, part, limits, "prompt")
    return ids


def counting(limits: RequestLimits) -> RequestLimits:
    """The limits for texts whose tokens are only counted: up to four contexts."""
    longest = limits.max_model_len
    most = max(longest, min(COUNTED_CONTEXTS * longest, COUNTED_TOKENS))
    return msgspec.structs.replace(limits, max_model_len=most, only_counts=True)


def _encode_all(
    encode: Callable[[str], list[int]], text: str, limits: RequestLimits, param: str
) -> list[int]:
    """The ids of a text whose length was checked; one that may be too long goes in pieces first."""
    if len(text) > USUAL_CHARS_PER_TOKEN * limits.max_model_len:
        _check_pieces(encode, text, limits, param)
    return encode(text)


def _check_pieces(
    encode: Callable[[str], list[int]], text: str, limits: RequestLimits, param: str
) -> None:
    """Raises ContextLengthError as soon as pieces of the text have more tokens than fit."""
    most, num_tokens = limits.max_model_len, 0
    size = USUAL_CHARS_PER_TOKEN * most
    for start in range(0, len(text), size):
        num_tokens += len(encode(text[start : start + size])) - CUT_TOKENS
        if num_tokens > most:
            seen = min(start + size, len(text))
            found = (
                f"its first {seen} of {len(text)} characters are about {num_tokens} tokens already"
            )
            raise limits.beyond_length(f"{param}: too large: {found}", num_tokens, param=param)


def _most_tokens(limits: RequestLimits, keep: int, reserved: int) -> int:
    """The number of tokens to keep; for -1, as many as fit beside `reserved` others.

    Raises InvalidRequestError.
    """
    if keep > limits.max_model_len:
        problem = (
            f"{keep} is more than {limits.length_name} of {limits.max_model_len} tokens. Please "
            "request a smaller truncation size."
        )
        raise invalid_value("truncate_prompt_tokens", problem)
    if reserved >= limits.max_model_len:  # no prompt would be left beside such an answer
        reserved = 1
    return keep if keep >= 0 else max(1, limits.max_model_len - reserved)


def _cut(
    encode: Callable[[str], list[int]], prompt: Prompt, most: int, *, keeps_first: bool
) -> list[int]:
    """The first or the last `most` token ids of a prompt; of a text little more is encoded."""

    def part(size: int) -> slice:
        return slice(size) if keeps_first else slice(-size, None)

    if isinstance(prompt, str):
        text, size = prompt, USUAL_CHARS_PER_TOKEN * (most + CUT_TOKENS)
        prompt = encode(text[part(size)])
        while len(prompt) < most + CUT_TOKENS and size < len(text):
            size *= 2
            prompt = encode(text[part(size)])
    return prompt[part(most)]
