"""The values that a type allows for a field, which msgspec's validation errors do not list."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from msgspec import inspect

_STEP = re.compile(r"\.?([^.\[\]]+)|\[[^\]]*\]")


def allowed_values(kind: Any, path: str) -> list[str]:
    """The values, as text, that a type allows at a path such as ".messages[0].role"."""
    *steps, last = _steps(path) or [None]
    values = [value for outer in _types_at(kind, steps) for value in _values(outer, last)]
    return list(dict.fromkeys(str(v).lower() if isinstance(v, bool) else str(v) for v in values))


type_info: Callable[[Any], inspect.Type] = cache(inspect.type_info)  # it takes milliseconds


def only_bool(kind: Any, path: str) -> str:
    """The one of true and false that a type allows at a path; empty where it allows both."""
    words = {word for found in _types_at(kind, _steps(path)) for word in _fixed_bools(found)}
    return words.pop() if len(words) == 1 else ""


def _steps(path: str) -> list[str | None]:
    """The names of fields on the way to a path; None for an item of a list or map."""
    return [step[1] for step in _STEP.finditer(path)]


def _types_at(kind: Any, steps: Iterable[str | None]) -> list[inspect.Type]:
    found: list[inspect.Type] = [type_info(kind)]
    for step in steps:
        found = [inner for outer in found for inner in _inside(outer, step)]
    return found


def _fixed_bools(outer: inspect.Type) -> Iterator[str]:
    match outer:
        case inspect.Metadata(extra_json_schema={"const": bool(only)}):
            yield str(only).lower()
        case inspect.Metadata(type=inner):
            yield from _fixed_bools(inner)
        case inspect.UnionType(types=types):
            for inner in types:
                yield from _fixed_bools(inner)


def _inside(outer: inspect.Type, step: str | None) -> Iterator[inspect.Type]:
    """The types of a field with this name, or of the items of a list or map for None."""
    for kind in alternatives(outer):
        match kind:
            case inspect.StructType(fields=fields) if step is not None:
                yield from (field.type for field in fields if field.encode_name == step)
            case inspect.ListType(item_type=inner) | inspect.DictType(value_type=inner):
                yield from () if step else (inner,)
            case inspect.TupleType(item_types=items) if step is None:
                yield from items


def _values(outer: inspect.Type, last: str | None) -> Iterator[Any]:
    """The literals of a field, or the tags of a union of structs."""
    for kind in alternatives(outer):
        if isinstance(kind, inspect.StructType) and kind.tag_field == last:
            yield kind.tag
    for inner in _inside(outer, last):
        for kind in alternatives(inner):
            if isinstance(kind, inspect.LiteralType):
                yield from kind.values
            if isinstance(kind, inspect.BoolType):  # beside literals
                yield from (True, False)


def alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The types that a value may have, without bounds and names."""
    match kind:
        case inspect.Metadata(type=inner):
            yield from alternatives(inner)
        case inspect.UnionType(types=types):
            for inner in types:
                yield from alternatives(inner)
        case _:
            yield kind
