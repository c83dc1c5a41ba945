"""Qwen3-Coder's calls: tags around bare values, which become the JSON that clients expect.

    <tool_call><function=NAME><parameter=KEY>
    value
    </parameter></function></tool_call>

The tool's JSON schema says what a value is. Strings are handed on as they come; other values are
held until they are whole, and are strings after all if they do not fit their type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from quire.server.parsing.calls import Calls
from quire.server.parsing.source import NAME, Broken, Marks, Source, Wait

MAX_VALUE_CHARS = 64 << 10  # of a value that is no string

_KEY = re.compile(r"[^<>\n]*")
_MAX_KEY_CHARS = 256
_END = Marks("</parameter>")
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
    """Whether a parameter of this name can be written as a tag."""
    return len(key) <= _MAX_KEY_CHARS and _KEY.fullmatch(key) is not None


def read_xml_call(calls: Calls) -> Wait[None]:
    """Read one call. Raises Broken."""
    source = calls.source
    yield from source.accept("<tool_call>")
    yield from source.skip_space()
    yield from source.expect("<function=")
    name = yield from source.word(NAME)
    yield from source.expect(">")
    calls.name(name)
    calls.arguments("{")
    yield from _read_parameters(calls, calls.tools[name])
    calls.arguments("}")
    calls.complete()
    yield from source.skip_space()
    yield from source.accept("</tool_call>")


def _read_parameters(calls: Calls, schema: Mapping[str, Any]) -> Wait[None]:
    source, seen = calls.source, set[str]()
    yield from source.skip_space()
    while not (yield from source.accept("</function>")):
        yield from source.expect("<parameter=")
        key = yield from source.peek_run(_KEY, _MAX_KEY_CHARS)
        source.take_to(source.at + len(key))
        yield from source.expect(">")
        if key in seen:
            raise Broken
        calls.arguments((", " if seen else "") + json.dumps(key, ensure_ascii=False) + ": ")
        seen.add(key)
        yield from source.accept("\n")
        yield from _read_value(source, _types(schema, key), calls.arguments)
        yield from source.expect("</parameter>")
        yield from source.skip_space()


def _read_value(
    source: Source, types: frozenset[str] | None, emit: Callable[[str], None]
) -> Wait[None]:
    """Read up to the end tag, without the line end before it."""
    value = _Value(types, emit)
    space = yield from source.until(_END, value.add)
    if space is None:
        raise Broken
    value.add(space.removesuffix("\n"))
    value.end()


class _Value:
    """One value on its way into JSON. types: what it may be; None: anything."""

    def __init__(self, types: frozenset[str] | None, emit: Callable[[str], None]) -> None:
        self._types = types
        self._emit = emit
        self._held: list[str] | None = []
        self._num_held = 0
        if types is not None and types <= {"string"}:
            self._become_string()

    def add(self, text: str) -> None:
        """More of it."""
        if self._held is None:
            self._emit(_escaped(text))
            return
        self._held.append(text)
        self._num_held += len(text)
        if self._num_held > MAX_VALUE_CHARS:
            self._become_string()

    def end(self) -> None:
        """No more comes."""
        if self._held is not None:
            text = _as_json("".join(self._held), self._types)
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


def _as_json(text: str, types: frozenset[str] | None) -> str | None:
    """The value as JSON text if it is of one of the types, strings apart; else None."""
    text = _SPELLINGS.get(text.strip(), text.strip())
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):  # also integers that are too long for Python
        return None
    if isinstance(value, str) or (types is not None and types.isdisjoint(_KINDS[type(value)])):
        return None
    return text


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _types(schema: Mapping[str, Any], key: str) -> frozenset[str] | None:
    """The types of a parameter; a string if the schema does not have it."""
    properties = schema.get("properties")
    described = properties.get(key) if isinstance(properties, Mapping) else None
    return frozenset({"string"}) if described is None else types_of(described)


def types_of(schema: Any) -> frozenset[str] | None:
    """The JSON types that a value's schema names; None if it leaves that open."""
    named = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str))
    return None
