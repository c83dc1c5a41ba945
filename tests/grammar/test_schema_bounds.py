from __future__ import annotations

import json
from typing import Any

import pytest

from quire.grammar.schema_bounds import (
    MAX_DEPTH,
    MAX_MULTIPLES,
    MAX_NODES,
    MAX_PATTERN_CHARS,
    OverBoundsError,
    check_embedded_schemas,
    check_schema,
)


def nested(depth: int) -> dict[str, Any]:
    """A schema with this nesting depth."""
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


TAKEN = [
    nested(MAX_DEPTH),
    {"enum": list(range(MAX_NODES - 2))},
    {"pattern": "a" * MAX_PATTERN_CHARS},
    {"multipleOf": MAX_MULTIPLES},
    {"multipleOf": 0.01},
    {"multipleOf": 2.5e-3},
    {"multipleOf": True},
    {"multipleOf": "x"},
    {"enum": [2**53, -(2**53), 1e15, "a\n\t\b\r\f\u0080"]},
    {"minProperties": 1, "maxProperties": 5},
    {"minProperties": 3, "required": ["a", "b"]},
    {"minProperties": 3, "additionalProperties": False, "properties": {"minProperties": {}}},
    {"minProperties": "3"},
    {"properties": {"const": {"maximum": 2**53}}, "maximum": 2**63 - 1, "default": 2**63},
]
REFUSED = [
    (nested(MAX_DEPTH + 1), "deep"),
    ({"enum": list(range(MAX_NODES - 1))}, "values in all"),
    ({"pattern": "a" * (MAX_PATTERN_CHARS + 1)}, "pattern"),
    ({"multipleOf": MAX_MULTIPLES + 1}, "multipleOf"),
    ({"multipleOf": -MAX_MULTIPLES - 1}, "multipleOf"),
    ({"multipleOf": 0.0100001}, "multipleOf"),
    ({"multipleOf": 1e300}, "multipleOf"),
    ({"multipleOf": 1e-300}, "multipleOf"),
    ({"allOf": [{"multipleOf": MAX_MULTIPLES}, {"multipleOf": 1}]}, "multipleOf"),
    ({"const": 2**53 + 1}, "const: a number above"),
    ({"enum": [1e300]}, "enum: a number above"),
    ({"type": "integer", "enum": [0, -(2**63)]}, "enum: a number above"),
    ({"const": [-(2**63)]}, "const: a number above"),
    ({"enum": [{"a": {"b": 2**60 + 1}}]}, "enum: a number above"),
    ({"$ref": "#/properties", "properties": {"const": {"a": -(2**63)}}}, "const: a number above"),
    ({"enum": ["a", "b\x1b"]}, r"enum: a text with U\+001B, a control character; leave it out"),
    ({"const": {"a": ["\x7f"]}}, "const: a text with"),
    ({"minProperties": 2}, "minProperties: above 1 one name could be used twice"),
    ({"items": {"minProperties": 3, "required": ["a", "a"]}}, "or lower it to 2"),
    ({"minProperties": 2, "propertyNames": {"pattern": "^a"}}, "put more names into required"),
    (
        {"minProperties": 2.5, "patternProperties": {"^a": True}, "additionalProperties": False},
        "minProperties",
    ),
    ([], "must be a JSON schema: an object"),
    (True, "must be a JSON schema: an object"),
    (None, "must be a JSON schema: an object"),
]


@pytest.mark.parametrize("schema", TAKEN, ids=lambda schema: json.dumps(schema)[:30])
def test_a_schema_at_the_bounds_is_taken(schema: dict[str, Any]) -> None:
    check_schema(json.dumps(schema))
    check_embedded_schemas(f"start: %json {json.dumps(schema)} | %json\n{json.dumps(schema)}")


@pytest.mark.parametrize(("schema", "problem"), REFUSED, ids=lambda schema: json.dumps(schema)[:30])
def test_a_schema_beyond_them_is_not(schema: Any, problem: str) -> None:
    with pytest.raises(OverBoundsError, match=problem):
        check_schema(json.dumps(schema))
    if isinstance(schema, dict):
        with pytest.raises(OverBoundsError, match=problem):
            check_embedded_schemas(f'start: "a" | %json {json.dumps(schema)}')


@pytest.mark.parametrize(
    "text", ["{", "[" * 10_000, '{"a":' * 10_000, '{"enum": [1' + "0" * 5000 + "]}", "", "x"]
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(OverBoundsError):
        check_schema(text)


def test_a_name_given_twice_does_not_hide_what_stands_first() -> None:
    with pytest.raises(OverBoundsError, match="multipleOf"):
        check_schema('{"multipleOf": 99999999, "multipleOf": 1}')
    with pytest.raises(OverBoundsError, match="multipleOf"):
        check_schema('{"multip\\u006ceOf": 99999999}')


def test_an_embedded_schema_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(OverBoundsError, match="JSON"):
        check_embedded_schemas('start: %json {"multipleOf": 9e9 // a comment\n}')
