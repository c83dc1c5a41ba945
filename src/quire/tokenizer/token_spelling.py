"""The bytes that a token adds to a text.

The one idea of this package: a text is the UTF-8 reading of its tokens' bytes, one after the other.
Streams, stop strings and log-probabilities all rest on it. This file knows the kinds of decoder
that a tokenizer.json can name; it does not know ids, and it does not join tokens.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers.decoders import Decoder

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BYTE_LEVEL = frozenset({"ByteLevel", "Fuse"})
# steps that add a token's text to what stands before it and never change what stands there
_APPENDING = frozenset({"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece"})


class Pieces(dict[int, bytes]):
    """Token id → the bytes that it adds to a text, found out when it is first asked for."""

    def __init__(self, piece_of: Callable[[int], bytes]) -> None:
        super().__init__()
        self._piece_of = piece_of

    def __missing__(self, token_id: int) -> bytes:
        piece = self[token_id] = self._piece_of(token_id)
        return piece


class Spelling:
    """The bytes of tokens under one decoder.

    decoder: of the tokenizer, or None, where tokens are joined by single spaces. Raises
    CheckpointError for a decoder whose text changes backwards as tokens arrive.
    """

    def __init__(self, decoder: Decoder | None) -> None:
        steps = [] if decoder is None else list(_steps(json.loads(decoder.__getstate__())))
        kinds = {step["type"] for step in steps}
        _check_streamable(steps, kinds)
        self._decoder = decoder
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_tokens = "ByteFallback" in kinds

    def bytes_of(self, token: str, *, first: bool) -> bytes:
        """The bytes that `token` adds to a text; first: as the text's first token.

        They differ where the decoder drops the space that the encoder put before a text.
        """
        if self._is_byte_level:
            return _byte_level_bytes(token)
        if self._has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            value = int(match[1], 16)
            if value >= 0x80:  # part of a character: the library alone would show U+FFFD
                return bytes([value])
        if self._decoder is None:
            return (token if first else f" {token}").encode()
        if first:
            return self._decoder.decode([token]).encode()
        return self._decoder.decode(["a", token])[self._num_before :].encode()

    @cached_property
    def _num_before(self) -> int:
        """Characters of the token before one that is not the first."""
        return 0 if self._decoder is None else len(self._decoder.decode(["a"]))


def _steps(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for step in decoder["decoders"]:
        yield from _steps(step)


def _check_streamable(steps: list[dict[str, Any]], kinds: set[str]) -> None:
    wrong = kinds - (_BYTE_LEVEL if "ByteLevel" in kinds else _APPENDING)
    if any(step["type"] == "Strip" and step["stop"] for step in steps):
        wrong.add("Strip at the end")
    joined = itertools.dropwhile(lambda step: step["type"] != "Fuse", steps)
    wrong |= {f"{step['type']} across tokens" for step in joined if _needs_several_characters(step)}
    if wrong:
        raise CheckpointError(
            f"tokenizer.json: its decoder has the step {', '.join(sorted(wrong))}, which cannot "
            "give text token by token; use a tokenizer whose decoder is ByteLevel, Metaspace or "
            "of SentencePiece's kind"
        )


def _needs_several_characters(step: dict[str, Any]) -> bool:
    """Whether what a step of a decoder changes may begin in one token and end in the next."""
    if step["type"] == "Replace":
        return len(step["pattern"].get("String", "")) != 1
    return bool(step["type"] == "Strip" and step["start"] > 1)


def _byte_level_bytes(token: str) -> bytes:
    """The bytes of a byte-level token; with a character outside the alphabet it is plain text."""
    alphabet = _byte_alphabet()
    values = [alphabet.get(character, -1) for character in token]
    return token.encode() if -1 in values else bytes(values)


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: visible Latin-1 characters are themselves, other bytes start at U+0100."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in visible]
    return {chr(v): v for v in visible} | {chr(0x100 + i): v for i, v in enumerate(hidden)}
