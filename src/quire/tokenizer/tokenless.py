"""Tokenless: the tokenizer of an engine without one, and of answers that are token ids alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import tokenizers

from quire.errors import InvalidRequestError, invalid_value
from quire.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.tokenizer.chat_template import ChatTemplate

_FIX = "this engine has no tokenizer; use token ids, or start it without skip_tokenizer_init"


class Tokenless(Tokenizer):
    """A tokenizer that knows no token: ids have no text, and text is refused."""

    has_text = False

    def __init__(self) -> None:
        super().__init__(tokenizers.Tokenizer(tokenizers.models.BPE()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def shows(self, token_id: int, *, skip_special_tokens: bool) -> bool:  # noqa: ARG002
        """Always false."""
        return False

    def encode(self, text: str, **_: bool) -> list[int]:  # noqa: ARG002
        """Raises InvalidRequestError."""
        raise _refusal("prompt")

    def encode_inside(self, text: str) -> list[int]:  # noqa: ARG002
        """Raises InvalidRequestError."""
        raise _refusal("prompt")

    def bad_words_ids(self, words: Iterable[str]) -> list[list[int]]:  # noqa: ARG002
        """Raises InvalidRequestError."""
        raise _refusal("bad_words")

    def _template_for(self, tools: Any) -> ChatTemplate:  # noqa: ARG002
        raise _refusal("messages")


def _refusal(field: str) -> InvalidRequestError:
    return invalid_value(field, _FIX)
