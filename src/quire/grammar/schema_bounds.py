"""Limits on the size and depth of a JSON schema, checked before it is compiled.

llguidance bounds its own work well, except for `multipleOf`, whose automaton has a state for each
remainder. What keywords mean is left to llguidance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from quire.grammar.lark_bounds import UnreadableGrammarError, num_written_out
from quire.grammar.regex_bounds import MAX_REPEATED, num_repeated

MAX_PATH_CHARS = 80  # of a path in messages: the last ones
MAX_DEPTH = 64  # nested objects and lists
MAX_NODES = 10_000  # values, those of enums included
MAX_PATTERN_CHARS = 4096  # of one pattern
_TOO_LONG = f"its counts add more than {MAX_REPEATED} characters to it; lower them"
MAX_MULTIPLES = 20_000  # of all multipleOf together, each without its decimal point
MAX_LISTED = 1 << 53  # of numbers in enum and const: llguidance rounds larger ones, or crashes

# written as \u0001, which answers do not have (json_style.py)
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")

_EMBEDDED = re.compile(r"%json\s*(?=\{)")
_Path = tuple[str | int, ...]  # of names and indices from the root to a value


class OverBoundsError(ValueError):
    """A schema exceeds a limit; the message says which and how to fix it."""


def check_schema(text: str) -> None:
    """Check a JSON schema's text. Raises OverBoundsError."""
    try:
        schema = json.loads(text, object_pairs_hook=_Pairs)
        _check(schema)
        if any(name == "x-guidance" for name, _ in schema):  # grammars of tool calls set it
            raise OverBoundsError("x-guidance: it would change what counts as JSON here; remove it")
    except (ValueError, RecursionError) as error:
        raise _as_over_bounds(error) from None


def check_embedded_schemas(grammar: str) -> None:
    """Check each schema that a Lark grammar embeds with %json. Raises OverBoundsError."""
    decoder = json.JSONDecoder(object_pairs_hook=_Pairs)
    for match in _EMBEDDED.finditer(grammar):
        try:
            _check(decoder.raw_decode(grammar, match.end())[0])
        except (ValueError, RecursionError) as error:
            raise _as_over_bounds(error) from None


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as (name, value) pairs, duplicate names included."""


def _as_over_bounds(error: Exception) -> OverBoundsError:
    match error:
        case OverBoundsError():
            return error
        case RecursionError():
            return OverBoundsError(f"nested more than {MAX_DEPTH} deep; flatten it")
        case json.JSONDecodeError():
            return OverBoundsError(f"must be valid JSON ({error})")
    return OverBoundsError("it has a number that is too long; shorten it")


def _check(schema: Any) -> None:
    if not isinstance(schema, _Pairs):
        raise OverBoundsError("must be a JSON schema: an object")
    multiples = num_added = 0
    for index, (path, value) in enumerate(_walk(schema)):
        name = path[-1] if path else ""
        if len(path) > MAX_DEPTH:
            raise OverBoundsError(f"nested more than {MAX_DEPTH} deep; flatten it")
        if index >= MAX_NODES:
            raise OverBoundsError(f"more than {MAX_NODES} values in all; make it smaller")
        if name == "pattern" and isinstance(value, str) and len(value) > MAX_PATTERN_CHARS:
            raise _over(path, f"over {MAX_PATTERN_CHARS} characters; shorten it")
        num_added += sum(map(num_repeated, _patterns_of(name, value)))
        if num_added > MAX_REPEATED:
            raise _over(path, _TOO_LONG)
        if name in ("enum", "const"):
            _check_listed(path, value)
        _check_least(path, value)
        if name == "multipleOf":
            multiples += _without_point(value)
            if multiples > MAX_MULTIPLES:
                raise _over(path, f"above {MAX_MULTIPLES} in all; use smaller numbers")


def _over(path: _Path, problem: str) -> OverBoundsError:
    """The error for the value at a path of the schema."""
    where = "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in path)
    return OverBoundsError(f"{where.removeprefix('.')[-MAX_PATH_CHARS:]}: {problem}")


def check_regex(pattern: str) -> None:
    """Check what a regular expression's counts make of it. Raises OverBoundsError."""
    if num_repeated(pattern) > MAX_REPEATED:
        raise OverBoundsError(_TOO_LONG)


def check_grammar(grammar: str) -> None:
    """Check the terminals and the schemas in a Lark grammar. Raises OverBoundsError."""
    try:
        num_added = num_written_out(grammar)
    except UnreadableGrammarError as error:
        raise OverBoundsError(str(error)) from None
    if num_added > MAX_REPEATED:
        problem = f"counts and names of terminals add more than {MAX_REPEATED} characters to it"
        raise OverBoundsError(f"{problem}; lower the counts")
    check_embedded_schemas(grammar)


def _patterns_of(name: str | int, value: Any) -> Iterator[str]:
    """The patterns in a member of a schema: a value of `pattern`, names in `patternProperties`."""
    if name == "pattern" and isinstance(value, str):
        yield value
    elif name == "patternProperties" and isinstance(value, _Pairs):
        yield from (pattern for pattern, _ in value)


def _check_listed(path: _Path, listed: Any) -> None:
    """Check the values in a member `enum` or `const`, at any depth.

    Also in the schema of a property of that name: a `$ref` may lead to the map of properties.
    """
    for _, found in _walk(listed):
        if isinstance(found, int | float) and abs(found) > MAX_LISTED:
            problem = "a number above 2**53, which would be rounded; write it as a string"
            raise _over(path, problem)
        if isinstance(found, str) and (control := _CONTROL.search(found)):
            problem = f"a text with U+{ord(control[0]):04X}, a control character; leave it out"
            raise _over(path, problem)


def _check_least(path: _Path, schema: Any) -> None:
    """Check that no object has to have two members of free names: both could have the same one."""
    words = dict(schema) if isinstance(schema, _Pairs) else {}
    least, required = words.get("minProperties"), words.get("required")
    is_free = words.get("additionalProperties") is not False or "patternProperties" in words
    if not isinstance(least, int | float) or not is_free:
        return
    most = 1 + len({*map(str, required)} if isinstance(required, list) else ())
    if least > most:
        problem = f"above {most} one name could be used twice; put more names into required"
        raise _over((*path, "minProperties"), f"{problem}, or lower it to {most}")


def _walk(schema: Any) -> Iterator[tuple[_Path, Any]]:
    """Every value with its path."""
    rest: list[tuple[_Path, Any]] = [((), schema)]
    while rest:
        path, value = rest.pop()
        yield path, value
        if isinstance(value, _Pairs):
            rest += [((*path, name), member) for name, member in value]
        elif isinstance(value, list):
            rest += [((*path, index), member) for index, member in enumerate(value)]


def _without_point(value: Any) -> int:
    """The number of remainders of a multipleOf: 2.50 → 25. Non-numbers count 0 (refused later)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    digits = Decimal(str(value))
    if not digits.is_finite() or abs(digits.adjusted()) > 12:
        return MAX_MULTIPLES + 1
    exponent = digits.normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return abs(int(digits.scaleb(max(0, -exponent))))
