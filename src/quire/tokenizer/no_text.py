"""NoText: decodes tokens to nothing, for answers that are token ids alone."""

from __future__ import annotations

from quire.tokenizer.token_spelling import Pieces


class NoText:
    """The part of a tokenizer that decoding needs, without any text."""

    def __init__(self) -> None:
        self._pieces = Pieces(_no_bytes)

    def shows(self, _: int, *, skip_special_tokens: bool) -> bool:  # noqa: ARG002
        """Always false."""
        return False

    def token_bytes(self, _: int, *, first: bool = False) -> bytes:  # noqa: ARG002
        """Always empty."""
        return b""

    def pieces(self, _: bool, __: frozenset[int] = frozenset()) -> Pieces:
        """Empty for every token."""
        return self._pieces


def _no_bytes(_: int) -> bytes:
    return b""
