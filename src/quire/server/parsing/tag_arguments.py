"""Arguments that a model writes as keys and bare values, converted to JSON as they arrive.

The tool's JSON schema gives the type of a value. Strings are passed on as they come; other values
are held until they are complete, and become strings if they do not match their type, or are not
among the values that it lists where a string is allowed, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from quire.server.parsing.incremental_json import corrected
from quire.server.parsing.text_source import MalformedCall, Marks, TextSource, Wait
from quire.server.parsing.tool_call_reader import Schema, ToolCallReader

MAX_VALUE_CHARS = 64 << 10  # of a value that is not a string
MAX_OPTIONS = 128  # schemas that are looked at for one value: with more, it may be anything

_KEY = re.compile(r"[^<>\n]*")
_MAX_KEY_CHARS = 256
_SPELLINGS = {"True": "true", "False": "false", "None": "null"}
_KINDS: dict[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    str: ("string",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}


def is_readable_key(key: str) -> bool:
    """Whether a parameter with this name can be written as a tag."""
    return len(key) <= _MAX_KEY_CHARS and _KEY.fullmatch(key) is not None


def read_key(source: TextSource) -> Wait[str]:
    """Read a parameter's name, up to the next tag. Raises MalformedCall."""
    key = yield from source.peek_run(_KEY, _MAX_KEY_CHARS)
    source.take_to(source.at + len(key))
    return key


class BareArguments:
    """The arguments of one call, as one JSON object. Its methods raise MalformedCall."""

    def __init__(self, calls: ToolCallReader, name: str) -> None:
        self._calls = calls
        self._schema = calls.tools[name]
        self._seen = set[str]()

    def read(self, key: str, end: Marks, *, drop: str = "") -> Wait[None]:
        """Read a value and the tag `end`. drop: what before the tag is not part of the value."""
        if key in self._seen:
            raise MalformedCall
        opening = ", " if self._seen else "{"
        self._calls.arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        self._seen.add(key)
        value = _Value(_value_options(self._schema, key), self._calls.arguments)
        space = yield from self._calls.source.until(end, value.add)
        if space is None:
            raise MalformedCall
        value.add(space.removesuffix(drop))
        value.end()
        yield from self._calls.source.expect(end.texts[0])

    def end(self) -> None:
        """End the JSON object of arguments."""
        self._calls.arguments("}" if self._seen else "{}")
        self._calls.complete()


class _Value:
    """One value being converted to JSON. options: schemas of which it matches one."""

    def __init__(self, options: list[Any], emit: Callable[[str], None]) -> None:
        self._options = options
        self._emit = emit
        self._held: list[str] | None = []
        self._num_held = 0
        types = _types_of(options)
        if types is not None and types <= {"string"}:
            self._become_string()

    def add(self, text: str) -> None:
        """Add text to the value."""
        if self._held is None:
            self._emit(_escaped(text))
            return
        self._held.append(text)
        self._num_held += len(text)
        if self._num_held > MAX_VALUE_CHARS:
            self._become_string()

    def end(self) -> None:
        """End the value and emit what is still held back of it."""
        if self._held is not None:
            text = _as_json("".join(self._held), self._options)
            if text is not None:
                self._emit(text)
                return
            self._become_string()
        self._emit('"')

    def _become_string(self) -> None:
        held, self._held = "".join(self._held or ()), None
        self._emit('"' + _escaped(held))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_json(text: str, options: list[Any]) -> str | None:
    """The value as JSON text if it is what the options allow, strings excepted; else None."""
    found, types = corrected(_SPELLINGS.get(text.strip(), text.strip())), _types_of(options)
    if found is None:
        return None
    value = msgspec.json.decode(found)
    if isinstance(value, str) or (types is not None and types.isdisjoint(_KINDS[type(value)])):
        return None
    may_be_text = types is not None and "string" in types
    return None if may_be_text and not any(_fits(value, each) for each in options) else found


def _fits(value: Any, option: Any) -> bool:
    """Whether a value has the type that a schema names, and is among those that it lists."""
    types, listed = _types_of([option]), _listed(option)
    if types is not None and types.isdisjoint(_KINDS[type(value)]):
        return False
    is_bool = isinstance(value, bool)  # JSON's true does not equal 1
    return not listed or any(value == own and isinstance(own, bool) == is_bool for own in listed)


def _value_options(schema: Schema, key: str) -> list[Any]:
    """The schemas of which a parameter matches one; a string if the schema does not have it."""
    properties = schema.get("properties")
    described = properties.get(key) if isinstance(properties, Mapping) else None
    return [{"type": "string"}] if described is None else list(options_of(described, schema))


def types_of(schema: Any, root: Schema) -> frozenset[str] | None:
    """The JSON types that a value's schema allows; None if it does not say. root: for `$ref`."""
    return _types_of(options_of(schema, root))


def _types_of(options: Iterable[Any]) -> frozenset[str] | None:
    found = set[str]()
    for option in options:
        named = _named_types(option)
        if named is None:
            return None
        found |= named
    return frozenset(found) or None


def options_of(schema: Any, root: Schema) -> Iterator[Any]:
    """The schemas of which a value matches one: what `anyOf`, `oneOf` and `$ref` lead to."""
    rest, seen = [schema], set[str]()
    for _ in range(MAX_OPTIONS):
        if not rest:
            return
        match rest.pop(0):
            case {"type": _} | {"enum": _} | {"const": _} as option:
                yield option
            case {"anyOf": [*several]} | {"oneOf": [*several]}:
                rest += several
            case {"$ref": str() as name}:
                if name not in seen:
                    seen.add(name)
                    rest.append(_definition(name, root))
            case option:
                yield option
    if rest:
        yield None


def texts_of(option: Any) -> list[str]:
    """The texts of which a value is one; none where it may be something else."""
    listed = _listed(option)
    return listed if all(isinstance(value, str) for value in listed) else []


def _definition(name: str, root: Schema) -> Any:
    """One of the schema's definitions, by a `$ref` to it; None for any other."""
    match name.split("/"):
        case ["#", ("$defs" | "definitions") as key, definition]:
            definitions = root.get(key)
            return definitions.get(definition) if isinstance(definitions, Mapping) else None
    return None


def _listed(schema: Any) -> list[Any]:
    """The values that a schema lists; none if it lists none."""
    match schema:
        case {"const": value}:
            return [value]
        case {"enum": [*values]}:
            return values
    return []


def _named_types(schema: Any) -> set[str] | None:
    match schema:
        case {"type": str() as name}:
            return {name}
        case {"type": [*names]}:
            return {name for name in names if isinstance(name, str)}
    return {_KINDS[type(value)][0] for value in _listed(schema)} or None
