"""Prompt encoding: the one place where a text or a conversation becomes token ids.

Used by the input processor, `LLM.chat` and the routes that need token ids. Where limits are given,
text that is far too long is refused half-way: that costs at most a few times the encoding of the
longest one that fits. Without limits, as for token counts, text of any length is encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from quire.core.request_limits import MAX_CHARS_PER_TOKEN, RequestLimits
from quire.errors import ContextLengthError, invalid_value

USUAL_CHARS_PER_TOKEN = 4
# Cutting a text may add this many tokens to its first part.
CUT_TOKENS = 64


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
    size = USUAL_CHARS_PER_TOKEN * limits.max_model_len
    while size < len(text):
        num_tokens = len(encode(text[:size]))
        if num_tokens > limits.max_model_len + CUT_TOKENS:
            raise ContextLengthError(
                f"{param}: its first {size} of {len(text)} characters are {num_tokens} tokens "
                f"already, but the limit here is {limits.max_model_len}; shorten it",
                param=param,
            )
        size *= 2
    return encode(text)


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
        prompt = encode(prompt[-MAX_CHARS_PER_TOKEN * (most + CUT_TOKENS) :])
    return prompt[-most:]
