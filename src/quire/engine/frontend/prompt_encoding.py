"""Prompt encoding: the one place where a text or a conversation becomes token ids.

Used by the input processor, `LLM.chat` and the routes that need token ids. Where limits are given,
a text that may be too long is counted in pieces first: time and memory of a refusal are at most
those of the longest text that fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from quire.core.request_limits import RequestLimits
from quire.errors import ContextLengthError, invalid_value

USUAL_CHARS_PER_TOKEN = 4
# Cutting a text may add this many tokens to its first part.
CUT_TOKENS = 64
# What routes that only count tokens take: more than fits, but not any text. Measured, a token
# takes 300 bytes while a text is encoded.
COUNTED_CONTEXTS = 4
COUNTED_TOKENS = 1 << 18


class PromptTokenizer(Protocol):
    """The part of a tokenizer that encodes prompts."""

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Text to token ids; parse_special: also names of control tokens."""

    def encode_prompt(self, prompt: str, *, add_special_tokens: bool = False) -> list[int]:
        """The token ids of what the tokenizer's chat_prompt has made."""


def encode_text(
    tokenizer: PromptTokenizer,
    text: str,
    limits: RequestLimits | None,
    *,
    add_special_tokens: bool = True,
) -> list[int]:
    """Token ids of a complete prompt. It may write out a chat template, control tokens included.

    Raises InvalidRequestError, or ContextLengthError for text that is far too long.
    """
    encode = partial(tokenizer.encode, parse_special=True, add_special_tokens=add_special_tokens)
    return encode(text) if limits is None else encode_prompt(limits, encode, text)


def encode_conversation(
    tokenizer: PromptTokenizer,
    rendered: str,
    limits: RequestLimits | None,
    *,
    add_special_tokens: bool = False,
) -> list[int]:
    """Token ids of a conversation, from the text that the tokenizer's chat_prompt has made.

    Raises ContextLengthError for text that is far too long.
    """
    encode = partial(tokenizer.encode_prompt, add_special_tokens=add_special_tokens)
    if limits is None:
        return encode(rendered)
    return encode_prompt(limits, encode, rendered, param="messages")


def encode_prompt(
    limits: RequestLimits,
    encode: Callable[[str], list[int]],
    text: str,
    *,
    param: str = "prompt",
) -> list[int]:
    """Token ids of a text. Raises ContextLengthError for text that is far too long.

    Slightly too many ids may be returned: `RequestLimits.check` decides. param: the caller's field.
    """
    limits.check_chars(len(text), param)
    if len(text) > USUAL_CHARS_PER_TOKEN * limits.max_model_len:
        _check_pieces(encode, text, limits.max_model_len, param)
    return encode(text)


def counting(limits: RequestLimits) -> RequestLimits:
    """The limits for texts whose tokens are only counted: up to four contexts."""
    longest = limits.max_model_len
    most = max(longest, min(COUNTED_CONTEXTS * longest, COUNTED_TOKENS))
    return replace(limits, max_model_len=most)


def _check_pieces(encode: Callable[[str], list[int]], text: str, most: int, param: str) -> None:
    """Raises ContextLengthError as soon as pieces of the text have more than `most` tokens."""
    size, num_tokens = USUAL_CHARS_PER_TOKEN * most, 0
    for start in range(0, len(text), size):
        num_tokens += len(encode(text[start : start + size])) - CUT_TOKENS
        if num_tokens > most:
            seen = min(start + size, len(text))
            raise ContextLengthError(
                f"{param}: its first {seen} of {len(text)} characters are about {num_tokens} "
                f"tokens already, but the limit here is {most}; shorten it",
                param=param,
            )


def encode_end(
    limits: RequestLimits,
    encode: Callable[[str], list[int]],
    prompt: str | list[int],
    most: int,
    reserved: int,
) -> list[int]:
    """The last `most` token ids of a prompt; -1: as many as fit beside `reserved` others.

    Of a text no more is encoded than can be kept. Raises InvalidRequestError.
    """
    if most > limits.max_model_len:
        problem = f"{most} is more than the limit here, {limits.max_model_len}; lower it"
        raise invalid_value("truncate_prompt_tokens", problem)
    if most < 0:
        most = max(1, limits.max_model_len - reserved)
    if isinstance(prompt, str):
        prompt = _encode_end(encode, prompt, most + CUT_TOKENS)
    return prompt[-most:]


def _encode_end(encode: Callable[[str], list[int]], text: str, num_tokens: int) -> list[int]:
    """The ids of as much of the end of a text as has so many tokens."""
    size = USUAL_CHARS_PER_TOKEN * num_tokens
    ids = encode(text[-size:])
    while len(ids) < num_tokens and size < len(text):
        size *= 2
        ids = encode(text[-size:])
    return ids
