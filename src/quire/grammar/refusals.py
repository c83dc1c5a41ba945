"""Reasons of llguidance as a caller reads them: where in the schema, what is wrong, and the fix."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from quire.grammar.grammar_matcher import DEAD_END
from quire.grammar.schema_bounds import MAX_PATH_CHARS
from quire.grammar.schema_translation import inner_schemas

MAX_REASON_CHARS = 300
NO_TEXT = "no text matches it; loosen it"
_TYPES = "string, number, integer, boolean, null, array or object"
_FIXES = {  # of keywords that can be enforced in some cases
    "propertyNames": "use an enum or a const of names, or a pattern or lengths alone; with "
    "properties, these only if additionalProperties is not a schema",
    "uniqueItems": "give it type array, and items that are an enum of at most 5 different strings, "
    "integers or booleans",
}
Schema = dict[str, Any]
_IsCulprit = Callable[[Schema, re.Match[str]], bool]


def _has_key(schema: Schema, found: re.Match[str]) -> bool:
    return any(name in schema for name in json.loads(found[1]))


def _has_optional(schema: Schema, _: re.Match[str]) -> bool:
    names, required = schema.get("properties"), schema.get("required")
    is_bounded = "minProperties" in schema or "maxProperties" in schema
    listed = required if isinstance(required, list) else []
    return is_bounded and isinstance(names, dict) and any(name not in listed for name in names)


def _has_value(schema: Schema, found: re.Match[str]) -> bool:
    return found[2] in schema and json.dumps(schema[found[2]]) == found[3]


def _has_wrong_type(schema: Schema, _: re.Match[str]) -> bool:
    return "type" in schema and not isinstance(schema["type"], str | list)


def _has_wrong_required(schema: Schema, _: re.Match[str]) -> bool:
    required = schema.get("required")
    return isinstance(required, list) and not all(isinstance(name, str) for name in required)


def _has_wrong_ref(schema: Schema, _: re.Match[str]) -> bool:
    return "$ref" in schema and not isinstance(schema["$ref"], str)


def _has_wrong_kind(schema: Schema, found: re.Match[str]) -> bool:
    kind = list if found[2] == "array" else dict
    return found[1] in schema and not isinstance(schema[found[1]], kind)


def _is_of_type(schema: Schema, found: re.Match[str]) -> bool:
    kind = schema.get("type")
    return found[1] in (kind if isinstance(kind, list) else [kind])


def _has(name: str, group: int | None = None, before: str = "") -> _IsCulprit:
    """A test for a schema with a keyword, and with a value that a group of the reason has."""

    def is_culprit(schema: Schema, found: re.Match[str]) -> bool:
        wanted = schema.get(name) if group is None else before + found[group]
        return name in schema and schema[name] == wanted

    return is_culprit


def _has_pattern(schema: Schema, found: re.Match[str]) -> bool:
    named = schema.get("patternProperties")
    return schema.get("pattern") == found[1] or (isinstance(named, dict) and found[1] in named)


# of a reason: how it begins, which schema it is about, and what is said instead (None: the same)
_REASONS: tuple[tuple[str, _IsCulprit, str | None], ...] = (
    (r"Unimplemented keys: (\[.*\])", _has_key, r"keywords that cannot be enforced: \1; {fix}"),
    (
        r"Unknown format: (.*)",
        _has("format", 1),
        r"formats that cannot be enforced: \1; remove them",
    ),
    (
        r"min/maxProperties only supported.*",
        _has_optional,
        "minProperties and maxProperties need all names of properties in required; put them there, "
        "or remove these",
    ),
    (
        r"(?:at .*?: )?.*coerce_one_of.*",
        _has("oneOf"),
        "oneOf: two of its schemas may hold at once; use anyOf, or tell them apart by a required "
        "const",
    ),
    (r"Invalid type: (.*)", _is_of_type, rf"type: must be {_TYPES}, not \1"),
    (
        r"Pointer '(.*)' does not exist",
        _has("$ref", 1, "#"),
        r"$ref: #\1 does not exist; define it",
    ),
    (
        r"Resource '(.*)' is not present in a registry.*",
        _has("$ref", 1),
        r"$ref: the server does not fetch \1; put its schema into $defs",
    ),
    (r"type must be a string .*", _has_wrong_type, f"type: must be {_TYPES}, or a list of these"),
    (r"\$ref must be a string.*", _has_wrong_ref, "$ref: must be a string such as #/$defs/name"),
    (r"Expected string for 'required' item.*", _has_wrong_required, "required: must list strings"),
    (
        r"Expected (.*) for '(\w+)', got (.*)",
        _has_value,
        r"\2: expected \1, got \3; correct it",
    ),
    (r"(\w+) must be an (array|object)$", _has_wrong_kind, r"\1: must be an \2; correct it"),
    (r"invalid multiple of", _has("multipleOf", None), "multipleOf: must be above 0; correct it"),
    (
        r"patternProperty regexes /(.*)/ and /.*/ are not disjoint",
        _has_pattern,
        r"\g<0>; change them so that no name matches both",
    ),
    (
        r"lookarounds not supported yet; \w+ in regex /(.*)/",
        _has_pattern,
        r"look-around and boundaries such as \\b are not supported; write the pattern without them",
    ),
    (r"look-around, .*|backreferences .*", _has("pattern"), r"\g<0>; write it without"),
    (
        r"(?:unclosed|unopened|unrecognized|incomplete|repetition|invalid|duplicate|Unicode) .*",
        _has("pattern"),
        None,
    ),
    (
        r"Unable to determine if regex is empty.*",
        _has("allOf"),
        "its patterns are too costly together; use fewer or simpler ones",
    ),
)


def explained(reason: str, schema: Any = None) -> str:
    """The problem and the fix. schema: that was compiled, if it was one."""
    if reason == DEAD_END:
        return NO_TEXT
    if reason.startswith("panic: "):  # says nothing to callers, but names files
        return "llguidance fails on it; write it in another way"
    line = re.match(r"at \d+\(\d+\): (?:failed to compile JSON schema: )?", reason)
    before, rest = (line[0], reason[line.end() :]) if line else ("", reason)
    rest = re.sub("^Expected f64 ", "Expected number ", rest)
    where = ""
    for pattern, is_culprit, text in _REASONS:
        if found := re.match(pattern, rest):
            where = _path_of(schema, is_culprit, found)
            rest = found.expand(text) if text else f"{found[0]}; correct it"
            break
    else:
        rest = f"{rest}; correct it"
    if where:
        where += "." if re.match(r"\$?\w+: ", rest) else ": "
    rest = rest.replace("{fix}", _fix(rest))
    return before + where + _cut(rest)


def _fix(text: str) -> str:
    return next((fix for name, fix in _FIXES.items() if f'["{name}"]' in text), "remove them")


def _cut(text: str) -> str:
    """At most MAX_REASON_CHARS characters; the fix, at the end, stays."""
    if len(text) <= MAX_REASON_CHARS:
        return text
    problem, _, fix = text.rpartition("; ")
    return f"{problem[: MAX_REASON_CHARS - 3 - len(fix)]}…; {fix}"


def _path_of(schema: Any, is_culprit: _IsCulprit, found: re.Match[str]) -> str:
    """The path of the first schema that the reason is about; empty for the root or if unknown."""
    paths = [path for path, inner in _with_paths(schema) if is_culprit(inner, found)]
    is_certain = len(paths) == 1 or (paths and found.re.groups)
    return paths[0][-MAX_PATH_CHARS:] if is_certain else ""


def _with_paths(root: Any) -> Iterator[tuple[str, Schema]]:
    """A schema and all those in it; definitions come last."""
    rest, definitions = [("", root)] if isinstance(root, dict) else [], list[tuple[str, Schema]]()
    while rest or definitions:
        path, schema = rest.pop() if rest else definitions.pop()
        yield path, schema
        for name, inner in reversed([*inner_schemas(schema)]):
            is_definition = name.startswith(("$defs.", "definitions."))
            later = definitions if is_definition else rest
            later.append((f"{path}.{name}" if path else name, inner))
