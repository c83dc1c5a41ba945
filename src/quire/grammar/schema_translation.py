"""JSON schemas in the words that llguidance knows.

Owns what llguidance would refuse although it constrains nothing or can be said otherwise: formats
that JSON Schema does not define, which are notes to readers, names of members that are listed,
match a pattern or have a length (`propertyNames`), different items of a short list (`uniqueItems`).
What strings and numbers may be is in value_translation.py. Other keywords stay as they are;
llguidance refuses them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import permutations
from typing import Any

from quire.grammar.value_translation import (
    DECIMAL,
    bounds_of,
    with_plain_decimal,
    with_real_dates,
    without_excluded_end,
)
from quire.tokenizer.pattern_cost import num_attempts

Schema = dict[str, Any]

_FORMATS = frozenset({  # of JSON Schema 2020-12; llguidance enforces some and refuses the others
    "date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname",
    "ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template",
    "json-pointer", "relative-json-pointer", "regex",
})  # fmt: skip
_SCHEMAS = (  # keywords whose value is a schema or a list of schemas
    "items", "prefixItems", "additionalItems", "additionalProperties", "propertyNames", "contains",
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "unevaluatedItems",
    "unevaluatedProperties",
)  # fmt: skip
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_NOTES = frozenset({"title", "description", "$comment", "default", "examples", "deprecated"})
_A_STRING = ("type", "string")
_MAX_UNIQUE = 5  # values with 120 orders, which compile in 30 ms; 720 of six take 200
_LENGTHS = frozenset({"minLength", "maxLength"})
_MAX_LENGTH = 1000  # of names
_MAX_ATTEMPTS = 1_000_000  # to match listed names; some milliseconds
_TRANSLATED = ("propertyNames", "format", "uniqueItems", "exclusiveM", DECIMAL)
_MAX_REFS = 64  # of one `propertyNames`, which may lead in a circle


def translated(text: str) -> str:
    """A schema's text, translated where that is needed. The text is valid JSON, at most 64 deep."""
    if not any(word in text for word in _TRANSLATED):
        return text
    schema = json.loads(text)
    if not isinstance(schema, dict) or not _translate(schema):
        return text
    return json.dumps(schema, ensure_ascii=text.isascii())


def _translate(root: Schema) -> bool:
    """Translate a schema and all those in it, in place. Whether any has changed."""
    changed, rest, bounds = False, [root], bounds_in(root)
    while rest:
        schema = rest.pop()
        rest += [inner for _, inner in inner_schemas(schema)]
        changed |= _without_note(schema)
        changed |= _with_names(schema, root)
        changed |= _with_orders(schema, root)
        changed |= with_plain_decimal(schema)
        changed |= with_real_dates(schema)
        changed |= without_excluded_end(schema, bounds)
    return changed


def bounds_in(root: Schema) -> set[float]:
    """The bounds of numbers in a schema and all those in it."""
    found, rest = set[float](), [root]
    while rest:
        schema = rest.pop()
        rest += [inner for _, inner in inner_schemas(schema)]
        found |= bounds_of(schema)
    return found


def inner_schemas(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """(path, schema) of those right below one; values of `const`, `enum` and `default` are none."""
    candidates: list[tuple[str, Any]] = []
    for word in _SCHEMAS:
        value = schema.get(word)
        several = enumerate(value if isinstance(value, list) else ())
        candidates += [(word, value), *((f"{word}[{index}]", each) for index, each in several)]
    for word in _NAMED_SCHEMAS:
        named = schema.get(word)
        several_named = named.items() if isinstance(named, dict) else ()
        candidates += [(f"{word}.{name[:40]}", each) for name, each in several_named]
    yield from ((path, found) for path, found in candidates if isinstance(found, dict))


def _without_note(schema: Schema) -> bool:
    """Leave out a format that JSON Schema does not define, such as pydantic's `path`."""
    name = schema.get("format")
    if not isinstance(name, str) or name in _FORMATS:
        return False
    del schema["format"]
    return True


def _with_names(schema: Schema, root: Schema) -> bool:
    """Say with the members of an object which names they may have.

    That they are strings, as all are, is left out.
    """
    names = _resolved(schema.get("propertyNames"), root)
    own, value = schema.get("properties", {}), schema.get("additionalProperties", True)
    if names is None or (names and ("patternProperties" in schema or not isinstance(own, dict))):
        return False
    members: Schema | None = None
    match names:
        case {"pattern": str(pattern)} if len(names) == 1:
            members = _matching(pattern, own, value)
        case {"enum": [*listed]} if len(names) == 1:
            value = _shared(value, root)  # written once, however many names there are
            allowed = {name: value for name in listed if isinstance(name, str)}
            known = {name: each for name, each in own.items() if name in allowed}
            members = {"properties": known | allowed | known}  # these first, with their schemas
        case {"const": str(name)} if len(names) == 1:
            members = {"properties": {name: own.get(name, value)}}
        case _ if names and names.keys() <= _LENGTHS:
            of_length = _of_length(**names)
            members = None if of_length is None else _matching(of_length, own, value)
        case _ if not names:
            members = {}
    if members is None:
        return False
    del schema["propertyNames"]
    schema.update(members, **({"additionalProperties": False} if members else {}))
    return True


def _matching(pattern: str, own: Schema, value: Any) -> Schema | None:
    """Members whose names match a pattern. own: those listed; value: the schema of the others.

    None where that cannot be said: what has a pattern holds for listed members, too.
    """
    if not own:
        return {"patternProperties": {pattern: value}}
    longest, chars = 1 + max(map(len, own)), sum(map(len, own))
    is_quick = num_attempts([pattern], longest) * chars <= _MAX_ATTEMPTS
    if not is_quick or not (isinstance(value, bool) or value == {}):
        return None
    if any(name.endswith("\n") for name in own):  # before which Python's `$` matches
        return None
    try:
        known = {name: each for name, each in own.items() if re.search(pattern, name)}
    except re.error:
        return None
    others = {} if value is False else {"patternProperties": {pattern: value}}
    return {"properties": known, **others}


def _with_orders(schema: Schema, root: Schema) -> bool:
    """List the orders in which an array may have different items, if those are few scalars."""
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]
        return True
    match schema, _resolved(schema.get("items"), root) or {}:
        case {"type": "array", "uniqueItems": True}, {"enum": [*values], **rest}:
            pass
        case _:
            return False
    least, most = schema.get("minItems", 0), schema.get("maxItems", _MAX_UNIQUE)
    scalars = {(type(value), value) for value in values if type(value) in (str, int, bool)}
    is_short = len(scalars) == len(values) <= _MAX_UNIQUE and {type(least), type(most)} == {int}
    if not is_short or not schema.keys().isdisjoint({"anyOf", "prefixItems", "unevaluatedItems"}):
        return False
    least, most = max(0, least), min(len(values), most)
    if least > most:
        return False
    items = [_shared({**rest, "const": value}, root) for value in values]
    for word in ("type", "items", "uniqueItems", "minItems", "maxItems"):
        schema.pop(word, None)
    schema["anyOf"] = [  # each may end early
        {"type": "array", "prefixItems": order, "items": False, "minItems": least}
        for order in permutations(items, most)
    ]
    return True


def _of_length(minLength: Any = 0, maxLength: Any = "") -> str | None:  # noqa: N803 - the schema's
    """A pattern of texts of these lengths; None where they are wrong or too large."""
    for length in (minLength, maxLength):
        if length != "" and not (type(length) is int and 0 <= length <= _MAX_LENGTH):
            return None
    return rf"^[\s\S]{{{minLength},{maxLength}}}$"


def _shared(value: Any, root: Schema) -> Any:
    """A reference to a schema, as a new definition; true and false are themselves."""
    named = root.setdefault("$defs", {})
    if isinstance(value, bool) or not isinstance(named, dict):
        return value
    name = f"value-{len(named)}"
    while name in named:
        name += "-"
    named[name] = value
    return {"$ref": f"#/$defs/{name}"}


def _resolved(names: Any, root: Schema) -> Schema | None:
    """The demands of `propertyNames` on a name, without that it is a string. None: unknown ones."""
    for _ in range(_MAX_REFS):
        if not isinstance(names, dict):
            return {} if names is True else None
        said = {word: value for word, value in names.items() if word not in _NOTES}
        if said.keys() != {"$ref"}:
            return {word: value for word, value in said.items() if (word, value) != _A_STRING}
        names = _definition(root, said["$ref"])
    return None


def _definition(root: Schema, ref: Any) -> Any:
    """The definition that a reference such as #/$defs/Colour names, or None."""
    match ref.split("/") if isinstance(ref, str) else None:
        case ["#", ("$defs" | "definitions") as word, name]:
            named = root.get(word)
            return named.get(name) if isinstance(named, dict) else None
    return None
