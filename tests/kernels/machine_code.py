"""What ptxas has made of a kernel's warpgroup MMAs, read from its machine code (SASS)."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/ +(?:@!?U?P\w+ +)?(\S.*?) *;")
_BACK = re.compile(r"BRA(?:\.U)? .*?0x([0-9a-f]+)")
_MMA = re.compile(r"[HQI]GMMA\.")
_FROM_REGISTERS = re.compile(r"[HQI]GMMA\.\S+ R\d+, R(\d+), gdesc")
_WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d+)")
_WRITE = re.compile(r"(\S+) (?:U?P\w+, )?R(\d+)")
_WIDTHS = {".128": 4, ".64": 2, ".WIDE": 2, ".M88.4": 4, ".M88.2": 2}  # registers; one otherwise


def serializes(text: str) -> bool:
    """Whether a kernel with MMAs waits for each one before the next."""
    count = len(_MMA.findall(text))
    return count > 0 and count == text.count("WARPGROUP.DEPBAR.LE gsb0, 0x0")


def overwritten(text: str) -> list[str]:
    """Instructions that write numbers which an MMA in flight may still read from registers.

    PTX says that they are not to be touched before its wait; ptxas does not see to it if two groups
    of MMAs are in flight.
    """
    found = [(int(at, 16), code) for at, code in _LINE.findall(text)]
    bodies = [body for body in _loops(found) if any(map(_FROM_REGISTERS.match, body))]
    smallest = [a for a in bodies if not any(len(b) < len(a) and set(b) <= set(a) for b in bodies)]
    return [code for body in smallest for code in _overwrites(body + body)]


def _loops(found: list[tuple[int, str]]) -> Iterator[list[str]]:
    """The instructions of each loop, with what is in it."""
    for end, code in found:
        back = _BACK.match(code)
        if back and int(back[1], 16) < end:
            yield [each for at, each in found if int(back[1], 16) <= at <= end]


def _overwrites(codes: list[str]) -> Iterator[str]:
    """Those among instructions in their order."""
    groups: list[set[int]] = [set()]  # registers of those in flight; the last one is not complete
    for code in codes:
        if mma := _FROM_REGISTERS.match(code):
            groups[-1].update(range(int(mma[1]), int(mma[1]) + 4))
        if _MMA.match(code):
            groups += [set()] if "gsb0" in code else []
        elif wait := _WAIT.match(code):
            groups = groups[len(groups) - 1 - min(int(wait[1]), len(groups) - 1) :]
        elif (write := _WRITE.match(code)) and _written(*write.groups()) & set().union(*groups):
            yield code


def _written(operation: str, register: str) -> set[int]:
    width = next((count for part, count in _WIDTHS.items() if part in operation), 1)
    return set(range(int(register), int(register) + width))
