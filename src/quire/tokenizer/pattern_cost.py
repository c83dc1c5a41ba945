"""An upper bound for the attempts to match a regular expression in a text.

The library's expressions backtrack: where the rest of a match fails, each other choice is tried.
At one place of a text `a*b` takes as many attempts as there are a's, `a*a*b` their square,
`(a*)*b` two to their number. Only a repetition with nothing behind it that may fail takes one.

Over the complete text, `a*b|a+` takes a few for each a: what the first alternative has tried in
vain, the next one matches, so that no other place tries it again. Usual tokenizers are like that.

The bound is loose, and anything that is not understood counts as unbounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from quire.tokenizer.pattern_parser import Piece, UnknownPatternError, parse

_FEW, _MANY = 64, 4096  # characters: what takes more attempts with more of them grows
_MOST_FOLLOWING = 16  # alternatives that are looked at after one; usual expressions have fewer
_MAX_SCANS = 4  # of a run of characters whose search is covered: twice from the places before it


def num_attempts(expressions: Iterable[str], num_chars: int) -> float:
    """Attempts for one character, on average in any text of so many; inf: unknown."""
    try:
        return sum(_mean_attempts(parse(expression), num_chars) for expression in expressions)
    except UnknownPatternError:
        return inf


def _mean_attempts(alternatives: list[list[Piece]], num_chars: int) -> float:
    total = 0.0
    for number, pieces in enumerate(alternatives):
        attempts = _sequence_attempts(pieces, num_chars, may_fail=False)
        following = alternatives[number + 1 : number + 1 + _MOST_FOLLOWING]
        is_covered = attempts < inf and _is_covered(pieces, following)
        total += attempts * _MAX_SCANS / num_chars if is_covered else attempts
    return total


def _is_covered(pieces: list[Piece], following: list[list[Piece]]) -> bool:
    """Whether a following alternative matches the run of characters that one has tried in vain.

    `a*b` fails after it has tried all a's of a run. Where `a+` follows, the match takes the run.
    Between them may be `a+(?!c)`: the a's that it gives back are not what it matches next.
    """
    run = _tried_run(pieces)
    if run is None:
        return False
    for other in following:
        before, same, after = _split(other, run.text)
        if same is None or same.is_lazy or same.least > 1 or not _is_short(before, optional=True):
            return False
        if all(piece.least == 0 and not piece.looks for piece in after):
            return True
        if not (len(after) == 1 and _looks_at_one(after[0])):
            return False
    return False


def _tried_run(pieces: list[Piece]) -> Piece | None:
    """The only repetition without a limit that an alternative may try in vain; None: not so."""
    may_fail = False
    found: list[int] = []
    for number in reversed(range(len(pieces))):
        piece = pieces[number]
        if piece.inner is None:
            if piece.most == inf and may_fail:
                found.append(number)
        elif _grows(piece.inner):
            return None
        may_fail = may_fail or piece.least > 0
    if len(found) != 1 or not _is_short(pieces[: found[0]], optional=False):
        return None
    return pieces[found[0]]


def _grows(alternatives: list[list[Piece]]) -> bool:
    few = _attempts(alternatives, _FEW, may_fail=True)
    return _attempts(alternatives, _MANY, may_fail=True) > few


def _split(pieces: list[Piece], text: str) -> tuple[list[Piece], Piece | None, list[Piece]]:
    """The pieces before the first unlimited repetition of this source, itself, and the rest."""
    for number, piece in enumerate(pieces):
        if piece.inner is None and piece.most == inf and piece.text == text:
            return pieces[:number], piece, pieces[number + 1 :]
    return pieces, None, []


def _is_short(pieces: list[Piece], *, optional: bool) -> bool:
    """At most one character, which may have to be there unless optional is given."""
    return sum(piece.most for piece in pieces) <= 1 and all(
        piece.inner is None and not (optional and piece.least) for piece in pieces
    )


def _looks_at_one(piece: Piece) -> bool:
    """Whether it is a lookaround at one character."""
    if not piece.looks or piece.inner is None or (piece.least, piece.most) != (1, 1):
        return False
    only = piece.inner[0]
    return len(piece.inner) == len(only) == 1 and only[0].inner is None and only[0].most == 1


def _attempts(alternatives: list[list[Piece]], num_chars: int, *, may_fail: bool) -> float:
    return sum(_sequence_attempts(pieces, num_chars, may_fail=may_fail) for pieces in alternatives)


def _sequence_attempts(pieces: list[Piece], num_chars: int, *, may_fail: bool) -> float:
    before_end, at_end = 1.0, 0.0
    for piece in reversed(pieces):
        own = _piece_attempts(piece, num_chars, may_fail=may_fail)
        if piece.least or may_fail:
            before_end *= own
        else:  # it is tried once, whatever came before
            at_end += own
        may_fail = may_fail or piece.least > 0
    return before_end + at_end


def _piece_attempts(piece: Piece, num_chars: int, *, may_fail: bool) -> float:
    """The number of attempts to match one piece. may_fail: whether something behind it may fail."""
    if piece.inner is None:
        few, many = min(piece.least, num_chars), min(piece.most, num_chars)
        return many - few + 1 if may_fail else 1
    if piece.most > 1:
        return inf
    own = _attempts(piece.inner, num_chars, may_fail=may_fail or piece.looks)
    return own + (piece.least == 0 and may_fail)
