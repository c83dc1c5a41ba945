"""Finds tokenizers that make very long texts of short ones, as replacements in a row can.

Sixty steps that double each `a` need more memory than there is, for a text of one character.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

    from quire.tokenizer.pattern_parser import Piece

MAX_GROWTH = 256  # characters that come of one; of usual tokenizers one to eighteen
_OF_BYTES = 4  # a character's bytes, each of which becomes one; those again, in a further step
_TOGETHER = (("normalizer", "pre_tokenizer"), ("decoder",))  # parts that change one text
_STEPS = ("normalizers", "pretokenizers", "decoders")  # of a sequence
_ANCHORS = frozenset(("^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z", r"\G"))


def growing_part(backend: tokenizers.Tokenizer) -> str | None:
    """The name of a part that may make more than MAX_GROWTH characters of one; None: no part.

    Of two that do so together, the first one that does anything.
    """
    for names in _TOGETHER:
        parts = {name: part for name in names if (part := getattr(backend, name)) is not None}
        growths = {name: _growth(json.loads(part.__getstate__())) for name, part in parts.items()}
        if prod(growths.values()) > MAX_GROWTH:
            return next(name for name, growth in growths.items() if growth > 1)
    return None


def _growth(step: dict[str, Any]) -> float:
    """Characters that come of one, at most.

    Forms of Unicode count as one, once for all of a text; what a step writes, as they make it.
    """
    match step:
        case {"type": "Sequence"}:
            return prod(_growth(own) for name in _STEPS for own in step.get(name, ()))
        case {"type": "ByteLevel"}:
            return _OF_BYTES
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            return _longest_text(base64.b64decode(table))
        case {"type": "Replace", "pattern": {"String": str(text)}, "content": str(made)} if text:
            return max(1.0, _length(made) / len(text))
        case {"type": "Replace", "pattern": {"Regex": str(text)}, "content": str(made)} if (
            _takes_characters(text)
        ):
            return max(1.0, _length(made))
        case {"type": "Replace", "content": str(made)}:  # also between all characters
            return 1.0 + _length(made)
    return 1.0


def _longest_text(table: bytes) -> int:
    """Characters of the longest text of SentencePiece's table, by which it replaces others.

    Behind the size of an index (uint32) and the index come the texts, each ended by a zero byte.
    """
    texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
    return max(1, *(_length(text.decode(errors="replace")) for text in texts))


def _length(text: str) -> int:
    """Characters of a text in the longest form of Unicode, in which a later step may write it."""
    return len(unicodedata.normalize("NFKD", text))


def _takes_characters(expression: str) -> bool:
    """Whether it is certain that no match is empty."""
    # most tokenizers have no such step
    from quire.tokenizer.pattern_parser import UnknownPatternError, parse

    try:
        return _shortest(parse(expression)) > 0
    except UnknownPatternError:
        return False


def _shortest(alternatives: list[list[Piece]]) -> int:
    return min(sum(map(_shortest_piece, pieces)) for pieces in alternatives)


def _shortest_piece(piece: Piece) -> int:
    if piece.looks or piece.text in _ANCHORS:
        return 0
    return piece.least * (1 if piece.inner is None else _shortest(piece.inner))
