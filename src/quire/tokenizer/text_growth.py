"""Finds tokenizers that make very long texts of short ones, as replacements in a row can.

Sixty steps that double each `a` need more memory than there is, for a text of one character.
"""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

    from quire.tokenizer.pattern_parser import Piece

MAX_GROWTH = 256  # characters that come of one; of usual tokenizers one or two
_ANCHORS = frozenset(("^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z", r"\G"))


def growing_part(backend: tokenizers.Tokenizer) -> str | None:
    """The name of a part that may make more than MAX_GROWTH characters of one; None: no part."""
    for name in ("normalizer", "decoder"):
        part = getattr(backend, name)
        if part is not None and _growth(json.loads(part.__getstate__())) > MAX_GROWTH:
            return name
    return None


def _growth(step: dict[str, Any]) -> float:
    """Characters that come of one, at most."""
    match step:
        case {"type": "Sequence", "normalizers": steps} | {"type": "Sequence", "decoders": steps}:
            return prod(map(_growth, steps))
        case {"type": "Replace", "pattern": {"String": str(text)}, "content": str(made)} if text:
            return max(1.0, len(made) / len(text))
        case {"type": "Replace", "pattern": {"Regex": str(text)}, "content": str(made)} if (
            _takes_characters(text)
        ):
            return max(1.0, len(made))
        case {"type": "Replace", "content": str(made)}:  # also between all characters
            return 1.0 + len(made)
    return 1.0


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
