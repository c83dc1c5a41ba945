"""Schemas that llguidance would refuse although it can enforce them in other words."""

from __future__ import annotations

import datetime
import json
import random
import re
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from cpu_limit import cpu_limit
from test_grammar_compiler import is_taken, walk

from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError
from quire.grammar.grammar_compiler import GrammarCompiler
from quire.grammar.lark_text import json_rule
from quire.grammar.schema_translation import translated
from quire.tokenizer.tokenizer import Tokenizer

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
TRUTH = {"type": "boolean"}
OPEN = {"properties": {"aa": TRUTH, "d": DIGIT, "b": DIGIT}, "additionalProperties": True}
COLOURS = {"enum": ["red", "é"], "title": "Colour", "type": "string"}  # as pydantic writes an Enum


def _map(names: Any, **more: Any) -> dict[str, Any]:
    """A schema with a member that is a map with such names."""
    inner = {"type": "object", "propertyNames": names, "additionalProperties": DIGIT, **more}
    members = {"v": inner, "format": {"type": "string", "format": "path", "maxLength": 3}}
    common = {"required": ["v", "format"], "additionalProperties": False}
    return {"type": "object", "properties": members, "$defs": {"Colour": COLOURS}, **common}


def _set(values: list[Any], **more: Any) -> dict[str, Any]:
    """A schema of an array of different values."""
    return {"type": "array", "items": {"enum": values}, "uniqueItems": True, **more}


MAPS = [
    _map({"$ref": "#/$defs/Colour"}),
    _map({"enum": ["a", "b"]}, required=["b"]),
    _map({"enum": ["a", "b"]}, maxProperties=1),
    _map({"const": "a"}, minProperties=1),
    _map({"pattern": "^[ab]$", "type": "string"}, maxProperties=2),
    _map({"type": "string"}, maxProperties=1),
    _map(True, maxProperties=0),
    _map({"type": "string"}, properties={"a": DIGIT}, additionalProperties=False),
    _map(True, patternProperties={"^a$": DIGIT}, additionalProperties=False),
    _map({"maxLength": 2, "type": "string"}, maxProperties=2),
    _map({"minLength": 2, "maxLength": 2}, maxProperties=1),
    _map({"enum": ["a", "c"]}, properties={"a": TRUTH, "b": DIGIT}, required=["c"]),
    _map({"enum": ["a", "c"]}, properties={"a": TRUTH, "b": DIGIT}, additionalProperties=False),
    _map({"const": "a"}, properties={"a": TRUTH, "b": DIGIT}, required=["a"]),
    _map({"pattern": "^[a-c]+$"}, **OPEN, required=["aa", "b"], maxProperties=3),
    _map({"pattern": "^[a-c]+$"}, **OPEN | {"additionalProperties": False}, required=["aa"]),
    _map({"maxLength": 1}, **OPEN | {"additionalProperties": {}}),
    {"const": {"format": "path", "propertyNames": 1}},
    {"const": {"uniqueItems": False}},
    _set(["red", 1, True, "é"], minItems=3),
    _set(["red", 1], items={"$ref": "#/$defs/Colour"}, **{"$defs": {"Colour": COLOURS}}),
    {"type": "object", "properties": {"s": _set([5, 1, 7, 2], maxItems=3)}, "required": ["s"]},
    _set([1, 2, 3, 4, "a"], minItems=3, maxItems=4),
    _set([], items={"const": 1}, uniqueItems=False, maxItems=3),
]
# pydantic's patterns of a Decimal, as its version 2.13 writes them, by digits and fractional digits
DECIMALS = {
    (None, None): r"\d*\.?\d*$",
    (None, 2): r"\d*\.?\d{0,2}0*$",
    (5, 2): r"(?:\d{0,3}|(?=[\d.]{1,6}0*$)\d{0,3}\.\d{0,2}0*$)",
    (2, 2): r"(?:\d{0,0}|(?=[\d.]{1,3}0*$)\d{0,0}\.\d{0,2}0*$)",
    (1, 3): r"(?:\d{0,0}|(?=[\d.]{1,2}0*$)\d{0,0}\.\d{0,3}0*$)",
    (3, 0): r"(?:\d{0,3}|(?=[\d.]{1,4}0*$)\d{0,3}\.\d{0,0}0*$)",
    (4, None): r"(?:\d{0,4}|(?=[\d.]{1,5}0*$)\d*\.\d*0*$)",
}


@pytest.mark.parametrize("schema", MAPS, ids=range(len(MAPS)))
def test_answers_validate(
    schema: dict[str, Any], byte_compiler: GrammarCompiler, byte_tokenizer: Tokenizer
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    before = json.dumps(schema)
    in_lark = StructuredOutputs(grammar=f"start: {json_rule(schema, {})}")
    for outputs in (StructuredOutputs(json=schema), in_lark):
        for seed in range(5):
            matcher = byte_compiler.matcher(outputs)
            answer = walk(matcher, byte_tokenizer, random.Random(seed), longest=5000)
            jsonschema.validate(json.loads(answer), schema)
    assert json.dumps(schema) == before


def test_a_set_may_come_in_each_order(
    byte_compiler: GrammarCompiler, byte_tokenizer: Tokenizer
) -> None:
    outputs = StructuredOutputs(json=_set([1, 2], minItems=1), disable_any_whitespace=True)
    walks = (random.Random(seed) for seed in range(99))
    found = {walk(byte_compiler.matcher(outputs), byte_tokenizer, each) for each in walks}
    assert found == {"[1]", "[2]", "[1,2]", "[2,1]"}


@pytest.mark.parametrize(("digits", "fraction"), DECIMALS)
def test_decimal_numbers_of_pydantic(
    digits: int | None,
    fraction: int | None,
    byte_compiler: GrammarCompiler,
    byte_tokenizer: Tokenizer,
) -> None:
    pattern = r"^(?!^[-+.]*$)[+-]?0*" + DECIMALS[digits, fraction]
    schema = {"anyOf": [{"type": "string", "pattern": pattern}]}
    for seed in range(30):
        matcher = byte_compiler.matcher(StructuredOutputs(json=schema))
        answer = json.loads(walk(matcher, byte_tokenizer, random.Random(seed), longest=5000))
        assert re.search(pattern, answer), answer
        _, found, exponent = Decimal(answer).as_tuple()
        assert isinstance(exponent, int)
        assert fraction is None or -exponent <= fraction, answer
        assert digits is None or max(len(found), -exponent) <= digits, answer


RANGES: list[tuple[dict[str, Any], str, str]] = [
    ({"exclusiveMinimum": 0, "maximum": 0.5}, "0", "0.25"),
    ({"exclusiveMinimum": 1.0, "exclusiveMaximum": 1.25}, "1", "1.01"),
    ({"exclusiveMaximum": 0, "minimum": -0.5}, "-0", "-0.5"),
    ({"exclusiveMaximum": -1, "exclusiveMinimum": -1.5, "minimum": -9}, "-1", "-1.01"),
]


@pytest.mark.parametrize(("limits", "end", "inside"), RANGES, ids=str)
def test_an_excluded_end_of_a_range_is_not_in_it(
    limits: dict[str, Any],
    end: str,
    inside: str,
    byte_compiler: GrammarCompiler,
    byte_tokenizer: Tokenizer,
) -> None:
    separate = [{"type": "number", name: limit} for name, limit in limits.items()]
    for schema in ({"anyOf": [{"type": "number", **limits}]}, {"allOf": separate}):
        outputs = StructuredOutputs(json=schema)
        for number in (end, f"{end}.0", f"{end}.000"):
            assert not is_taken(byte_compiler.matcher(outputs), byte_tokenizer, number)
        assert is_taken(byte_compiler.matcher(outputs), byte_tokenizer, inside)


DATE, MOMENT, TIME = datetime.date, datetime.datetime, datetime.time
DATES = [
    ("date", DATE.fromisoformat, "2024-02-29 2000-02-29 0001-01-01 9999-12-31 2023-02-28"),
    ("date", None, "2023-02-29 1900-02-29 0000-02-29 0000-01-01 2023-04-31 2024-02-30"),
    (
        "date-time",
        MOMENT.fromisoformat,
        "2024-02-29T23:59:59Z 1999-01-01T00:00:00.5-09:30",
    ),
    ("date-time", None, "2023-02-29T00:00:00Z 2024-01-01T23:59:60Z 0000-01-01T00:00:00Z"),
    ("time", TIME.fromisoformat, "23:59:59Z 00:00:00.25-12:00"),
    ("time", None, "23:59:60Z 24:00:00Z"),
]


@pytest.mark.parametrize(("name", "read", "texts"), DATES, ids=range(len(DATES)))
def test_dates_are_in_the_calendar(
    name: str,
    read: Callable[[str], object] | None,
    texts: str,
    byte_compiler: GrammarCompiler,
    byte_tokenizer: Tokenizer,
) -> None:
    schema = {"type": "string", "format": name, "allOf": [{"minLength": 1}]}
    for text in texts.split():
        matcher = byte_compiler.matcher(StructuredOutputs(json=schema))
        assert is_taken(matcher, byte_tokenizer, f'"{text}"') == (read is not None)
        if read is not None:
            read(text)


def test_many_names_do_not_copy_the_schema_of_their_values() -> None:
    value = {"enum": [f"value {i}" for i in range(1000)]}
    names = {"enum": [f"name {i}" for i in range(1000)]}
    text = json.dumps(_map(names, additionalProperties=value))
    assert len(translated(text)) < 5 * len(text)


SETS = [
    _set([1, 2, 3, 4, 5, 6]),
    _set([1, 2], maxItems=-1),
    _set([1, 1.0]),
    _set([1, 2], minItems=3),
    _set([1, 2], prefixItems=[{"const": 1}]),
    _set([], items={"type": "string"}),
]


@pytest.mark.parametrize("schema", SETS, ids=str)
def test_other_sets_are_refused(schema: Any, byte_compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidRequestError, match="uniqueItems"):
        byte_compiler.matcher(StructuredOutputs(json=schema))


UNKNOWN = [
    {"minLength": -2},
    {"maxLength": 10**6},
    {"minLength": 2, "pattern": "b"},
    {"$ref": "#/$defs/Loop"},
    {"$ref": "#/$defs/None"},
    {"$ref": 3},
    {"enum": ["a"], "pattern": "b"},
    3,
    False,
]


@pytest.mark.parametrize("names", UNKNOWN, ids=str)
def test_what_cannot_be_said_is_refused(names: Any, byte_compiler: GrammarCompiler) -> None:
    schema = _map(names) | {"$defs": {"Loop": {"$ref": "#/$defs/Loop"}}}
    with pytest.raises(InvalidRequestError, match="propertyNames"):
        byte_compiler.matcher(StructuredOutputs(json=schema))


LISTED: list[dict[str, Any]] = [
    {"additionalProperties": {"type": "integer"}},  # would hold for a listed member, too
    {"propertyNames": {"pattern": "^(?:a|aa)+$"}},  # may take very long to match
    {"propertyNames": {"pattern": r"^\p{L}$"}},
    {"propertyNames": {"enum": ["a"]}, "patternProperties": {"^b": True}},
    {"properties": 3},
    {"properties": {"a\n": DIGIT}, "propertyNames": {"maxLength": 3}},
]


@pytest.mark.parametrize("more", LISTED, ids=str)
def test_what_cannot_be_said_of_listed_members_is_refused(
    more: Any, byte_compiler: GrammarCompiler
) -> None:
    schema = {"type": "object", "propertyNames": {"pattern": "^a"}, "properties": {"a": DIGIT}}
    with pytest.raises(InvalidRequestError, match=r"propertyNames|properties"):
        byte_compiler.matcher(StructuredOutputs(json=schema | more))


def test_many_listed_members_with_other_names() -> None:
    members = {f"member_{i}": DIGIT for i in range(2000)}
    schema = _map({"pattern": "^[a-z]+(?:_[0-9]*)?$"}, properties=members, additionalProperties={})
    with cpu_limit(2.0, time.process_time):
        found = json.loads(translated(json.dumps(schema)))["properties"]["v"]
        names = {"enum": [*members, "more"]}
        listed = json.loads(translated(json.dumps(_map(names, properties=members))))
    assert found["properties"] == members
    assert [*listed["properties"]["v"]["properties"]] == names["enum"]


def test_members_with_other_names_are_left_out(byte_compiler: GrammarCompiler) -> None:
    schema = _map({"enum": ["a"]}, properties={"b": DIGIT}, required=["b"])
    with pytest.raises(InvalidRequestError, match="required property 'v' is unsatisfiable"):
        byte_compiler.matcher(StructuredOutputs(json=schema))
