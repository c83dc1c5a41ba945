"""Keywords for strings and numbers in the words that llguidance knows, or enforces wrongly.

Owns pydantic's patterns of decimal numbers, which look ahead; dates that no calendar has; and
ranges of numbers in which llguidance takes an excluded end for a member.
"""

from __future__ import annotations

import math
import re
from typing import Any, TypeGuard

Schema = dict[str, Any]

DECIMAL = r"^(?!^[-+.]*$)[+-]?0*"  # how pydantic's patterns of a Decimal begin, and go on:
_DECIMAL_TAILS = (
    r"\\d\*\\\.\?\\d(?:\*|\{0,(?P<fraction>\d+)\}0\*)\$",
    r"\(\?:\\d\{0,(?P<digits>\d+)\}\|\(\?=\[\\d\.\]\{1,(?P<length>\d+)\}0\*\$\)"
    r"\\d(?:\*|\{0,\d+\})\\\.\\d(?:\*|\{0,(?P<fraction>\d+)\})0\*\$\)",
)
_MAX_DIGITS = 64  # of a decimal number
_ENDS = {"exclusiveMinimum": 1, "exclusiveMaximum": -1}  # and where the range is from there
_BOUNDS = ("minimum", "maximum", *_ENDS)
_LEAST_STEP = 1e-6  # from an excluded end of a range to its first number
_MAX_END = 1 << 31  # whose sum with a step is exact enough
_YEAR = r"(?:\d{3}[1-9]|\d\d[1-9]0|\d[1-9]00|[1-9]000)"
_LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = rf"(?:{_YEAR}-(?:(?:0[13-9]|1[0-2])-\d\d|02-(?:[01]\d|2[0-8]))|{_LEAP_YEAR}-02-29)"
_TIME = r"\d\d:\d\d:[0-5]"
_REAL_DATES = {"date": f"^{_DATE}$", "date-time": f"^{_DATE}[Tt]{_TIME}", "time": f"^{_TIME}"}


def with_real_dates(schema: Schema) -> bool:
    """Leave out February 29 of most years, the year 0 and leap seconds, which few readers take."""
    name, all_of = schema.get("format"), schema.get("allOf", [])
    if not isinstance(name, str) or name not in _REAL_DATES or not isinstance(all_of, list):
        return False
    schema["allOf"] = [*all_of, {"pattern": _REAL_DATES[name]}]
    return True


def bounds_of(schema: Schema) -> set[float]:
    """The bounds of numbers in a schema itself."""
    return {bound for word in _BOUNDS if _is_number(bound := schema.get(word))}


def without_excluded_end(schema: Schema, bounds: set[float]) -> bool:
    """Move an integer end of a range of less than one, which llguidance does not exclude.

    bounds: those that may be joined with it, by `allOf` or `$ref`.
    """
    changed = False
    for word, sign in _ENDS.items():
        end = schema.get(word)
        if not _is_number(end) or end != int(end) or abs(end) > _MAX_END:
            continue
        if any(0 <= sign * (bound - end) < 1 for bound in bounds - {end}):
            schema[word] = end + sign * _LEAST_STEP
            changed = True
    return changed


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and abs(value) < math.inf


def with_plain_decimal(schema: Schema) -> bool:
    """Say without looking ahead which numbers are meant, in plain notation: -12.50, not +012.5."""
    pattern = schema.get("pattern")
    if not isinstance(pattern, str) or not pattern.startswith(DECIMAL):
        return False
    tails = (re.fullmatch(tail, pattern[len(DECIMAL) :]) for tail in _DECIMAL_TAILS)
    if (tail := next(filter(None, tails), None)) is None:
        return False
    found = {name: int(value) for name, value in tail.groupdict().items() if value is not None}
    length = found.pop("length", 0)
    if "digits" in found and "fraction" in found:
        found["fraction"] = min(found["fraction"], length - 1 - found["digits"])
    if max(found.values(), default=0) > _MAX_DIGITS or length == 1:
        return False
    schema["pattern"] = rf"^-?(?:{_plain_decimals(**found)})$"
    return True


def _plain_decimals(digits: int | None = None, fraction: int | None = None) -> str:
    """A pattern. digits: at most as many before the point, or in all if fraction is None."""
    if digits is None or fraction is not None:
        before = r"[1-9]\d*" if digits is None else rf"[1-9]\d{{0,{digits - 1}}}"
        before = "0" if digits == 0 else f"0|{before}"
        after = r"(?:\.\d+)?" if fraction is None else rf"(?:\.\d{{1,{fraction}}})?"
        return before if fraction == 0 else f"(?:{before}){after}"
    parts = [rf"0(?:\.\d{{1,{digits}}})?", rf"[1-9]\d{{0,{digits - 1}}}"]
    parts += [rf"[1-9]\d{{{n - 1}}}\.\d{{1,{digits - n}}}" for n in range(1, digits)]
    return "|".join(parts)
