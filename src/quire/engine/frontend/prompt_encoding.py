"""Prompt encoding with a bound on its cost: text that is far too long is refused half-way.

The one function that encodes prompts, for the input processor and for routes that need the token
ids before. Refusing a text costs at most a few times the encoding of the longest one that fits.
"""

from __future__ import annotations

from collections.abc import Callable

from quire.core.request_limits import RequestLimits
from quire.errors import ContextLengthError

USUAL_CHARS_PER_TOKEN = 4
# Cutting a text may add this many tokens to its first part.
CUT_TOKENS = 64


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
