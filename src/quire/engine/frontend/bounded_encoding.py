"""Encoding a text that may be far too long: it is refused before all of it has been encoded.

A text that cannot fit costs at most a few times what the longest one costs that can.
"""

from __future__ import annotations

from collections.abc import Callable

from quire.core.request_limits import RequestLimits
from quire.errors import ContextLengthError

USUAL_CHARS_PER_TOKEN = 4
# Tokens that a text's beginning may have more than it has in the whole text, where it is cut.
CUT_TOKENS = 64


def encode_within(
    limits: RequestLimits,
    encode: Callable[[str], list[int]],
    text: str,
    *,
    param: str = "prompt",
) -> list[int]:
    """Token ids of a text. Raises ContextLengthError, most often, for more than a context holds.

    A few too many may be returned: whoever asks checks the number. param: the field to tell of.
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
