"""Bounds the size of a regular expression whose counted repetitions are written out.

llguidance writes out what is repeated a fixed number of times, and its time grows faster than the
result: a million characters, which nested counts reach in 30 bytes, take it four seconds. What the
syntax means is left to llguidance; here only atoms, groups and least counts are found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_REPEATED = 20_000  # atoms, of all expressions together: 30 ms

_CLASS = r"\[\^?\]?(?:\[:\w+:\]|\\.|[^\]\\])*+\]|"
_PARTS = (
    r"(?P<open>\((?:\?(?:P?<\w+>|[\w-]*[:)=!]|<[=!])?)?)|(?P<close>\))"
    r"|\{\s*+(?P<least>\d{1,9})\s*+(?:,\s*+\d{0,9}\s*+)?\}\??|(?P<skip>[*+?]\??|\|)"
    r"|(?P<atom>\\[pPxuU]\{[^}]{0,64}\}|\\.|"
)
_PART = re.compile(_PARTS + _CLASS + ".)", re.DOTALL)
_VERBOSE = re.compile(r"\(\?[a-zA-Z]{0,8}x")
_PART_WITHOUT_CLASS = re.compile(_PARTS + ".)", re.DOTALL)


def num_repeated(text: str) -> int:
    """Number of characters and classes that counts add to a pattern, in all its alternatives.

    What is wrong in it is not refused here.
    """
    return measure(text)[1]


def measure(text: str) -> tuple[int, int]:
    """(number of its characters and classes, number that its counts add)."""
    if _VERBOSE.search(text):  # blanks are no atoms, and may stand before a count
        text = "".join(text.split())
    sums, last, num_atoms = [0], 0, 0  # of each open group; of what a count would repeat
    for part in _parts(text):
        match part.lastgroup:
            case "open":
                sums.append(0)
                last = 0
            case "close" if len(sums) > 1:
                last = sums.pop()
                sums[-1] += last
            case "least":
                more = last * (max(1, int(part["least"])) - 1)
                sums[-1], last = sums[-1] + more, last + more
            case "atom":
                last = 1
                num_atoms += 1
                sums[-1] += 1
    return num_atoms, sum(sums) - num_atoms


def _parts(text: str) -> Iterator[re.Match[str]]:
    """The parts, in time proportional to the text: after an unclosed class none is looked for."""
    position, pattern = 0, _PART
    while part := pattern.match(text, position):
        if part[0] == "[":
            pattern = _PART_WITHOUT_CLASS
        yield part
        position = part.end()
