"""JSON schemas in the words that llguidance knows.

Owns what llguidance would refuse although it constrains nothing or can be said otherwise: formats
that JSON Schema does not define, which are notes to readers, names of members that are listed or
match a pattern (`propertyNames`), and different items of a short list (`uniqueItems`). Other
keywords stay as they are; llguidance refuses them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import permutations
from typing import Any

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
_MAX_UNIQUE = 4  # values, of which all or some have 65 orders; 5 have 326
_MAX_REFS = 64  # of one `propertyNames`, which may lead in a circle


def translated(text: str) -> str:
    """A schema's text, translated where that is needed. The text is valid JSON, at most 64 deep."""
    if not any(word in text for word in ("propertyNames", "format", "uniqueItems")):
        return text
    schema = json.loads(text)
    if not isinstance(schema, dict) or not _translate(schema):
        return text
    return json.dumps(schema, ensure_ascii=text.isascii())


def _translate(root: Schema) -> bool:
    """Translate a schema and all those in it, in place. Whether any has changed."""
    changed, rest = False, [root]
    while rest:
        schema = rest.pop()
        rest += _inner(schema)
        changed |= _without_note(schema)
        changed |= _with_names(schema, root)
        changed |= _with_orders(schema, root)
    return changed


def _inner(schema: Schema) -> Iterator[Schema]:
    """The schemas right below one; values of `const`, `enum` and `default` are none."""
    candidates: list[Any] = []
    for word in _SCHEMAS:
        value = schema.get(word)
        candidates += value if isinstance(value, list) else [value]
    for word in _NAMED_SCHEMAS:
        named = schema.get(word)
        candidates += named.values() if isinstance(named, dict) else ()
    yield from (found for found in candidates if isinstance(found, dict))


def _without_note(schema: Schema) -> bool:
    """Leave out a format that JSON Schema does not define, such as pydantic's `path`."""
    name = schema.get("format")
    if not isinstance(name, str) or name in _FORMATS:
        return False
    del schema["format"]
    return True


def _with_names(schema: Schema, root: Schema) -> bool:
    """Say with the members of an object, if it has none yet, which names they may have."""
    names = _resolved(schema.get("propertyNames"), root)
    if names is None or not schema.keys().isdisjoint({"properties", "patternProperties"}):
        return False
    value = schema.get("additionalProperties", True)
    match names:
        case {"pattern": str(pattern)} if len(names) == 1:
            members: Schema = {"patternProperties": {pattern: value}}
        case {"enum": [*listed]} if len(names) == 1:
            value = _shared(value, root)  # written once, however many names there are
            members = {"properties": {name: value for name in listed if isinstance(name, str)}}
        case {"const": str(name)} if len(names) == 1:
            members = {"properties": {name: value}}
        case _ if not names:
            members = {}
        case _:
            return False
    del schema["propertyNames"]
    schema.update(members, **({"additionalProperties": False} if members else {}))
    return True


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
    items = [_shared({**rest, "const": value}, root) for value in values]
    arrays: list[Schema] = [
        {"type": "array", "prefixItems": order, "items": False, "minItems": size}
        for size in range(max(0, least), min(len(items), most) + 1)
        for order in permutations(items, size)
    ]
    if arrays:
        for word in ("type", "items", "uniqueItems", "minItems", "maxItems"):
            schema.pop(word, None)
        schema["anyOf"] = arrays
    return bool(arrays)


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
