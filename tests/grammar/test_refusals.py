"""Refusals of schemas say where, what, and how to correct it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError
from quire.grammar.grammar_compiler import GrammarCompiler
from quire.grammar.refusals import MAX_REASON_CHARS, explained

HERE = "properties.list.items"
TYPES = "string, number, integer, boolean, null, array or object"
LENGTHS = "use an enum or a const of names, or a pattern or lengths alone"
REFUSED: list[tuple[Any, str]] = [
    ({"not": {}}, f'{HERE}: keywords that cannot be enforced: ["not"]; remove them'),
    ({"format": "regex"}, f"{HERE}: formats that cannot be enforced: regex; remove them"),
    (
        {"propertyNames": {"not": {}}},
        f'{HERE}: keywords that cannot be enforced: ["propertyNames"]; {LENGTHS}',
    ),
    (
        {"uniqueItems": True},
        f'{HERE}: keywords that cannot be enforced: ["uniqueItems"]; give it type array',
    ),
    (
        {"properties": {"a": {}}, "maxProperties": 1},
        f"{HERE}: minProperties and maxProperties need",
    ),
    ({"oneOf": [{}, {}]}, f"{HERE}.oneOf: two of its schemas may hold at once; use anyOf"),
    ({"type": "text"}, f"{HERE}.type: must be string, number"),
    ({"anyOf": [{}, {"type": "text"}]}, f"{HERE}.anyOf[1].type: must be string, number"),
    ({"type": 3}, f"{HERE}.type: must be string, number"),
    ({"$ref": "#/$defs/b"}, f"{HERE}.$ref: #/$defs/b does not exist; define it"),
    ({"$ref": "http://a/b"}, f"{HERE}.$ref: the server does not fetch http://a/b; put its schema"),
    ({"$ref": 3}, f"{HERE}.$ref: must be a string such as"),
    (
        {"type": "string", "minLength": -1},
        f"{HERE}.minLength: expected positive integer, got -1",
    ),
    ({"minimum": "a"}, f'{HERE}.minimum: expected number, got "a"; correct it'),
    ({"required": "a"}, f'{HERE}.required: expected array, got "a"; correct it'),
    ({"required": [3]}, f"{HERE}.required: must list strings"),
    ({"enum": 3}, f"{HERE}.enum: must be an array; correct it"),
    ({"properties": 3}, f"{HERE}.properties: must be an object; correct it"),
    ({"multipleOf": 0}, f"{HERE}.multipleOf: must be above 0; correct it"),
    ({"pattern": "("}, f"{HERE}: unclosed group; correct it"),
    ({"pattern": "(?=a)"}, f"{HERE}: look-around, including"),
    (
        {"pattern": r"\ba"},
        rf"{HERE}: look-around and boundaries such as \b are not",
    ),
    (
        {"patternProperties": {"a": {}, "b": {}}},
        f"{HERE}: patternProperty regexes /a/ and",
    ),
    ({"pattern": "a" * 9999}, f"{HERE}.pattern: over 4096 characters; shorten it"),
    ({"type": "f64"}, f"{HERE}.type: must be {TYPES}, not f64"),
    ({"$ref": "#/$defs/f64"}, f"{HERE}.$ref: #/$defs/f64 does not exist; define it"),
    ({"prefixItems": [{}, {"const": 2**60}]}, f"{HERE}.prefixItems[1].const: a number above 2**53"),
    ({"minProperties": 2}, f"{HERE}.minProperties: above 1 one name could be used twice"),
]


@pytest.mark.parametrize(("inner", "problem"), REFUSED, ids=lambda case: str(case)[:40])
def test_a_refusal_names_the_path_in_the_schema(
    inner: Any, problem: str, byte_compiler: GrammarCompiler
) -> None:
    known = {"not": {"type": "object"}, "type": {"enum": ["text"]}, "$ref": {"type": "string"}}
    schema = {
        "$defs": {"unused": {"properties": known}},
        "properties": {**known, "list": {"type": "array", "items": inner}},
    }
    with pytest.raises(InvalidRequestError) as caught:
        byte_compiler.matcher(StructuredOutputs(json=schema))
    assert str(caught.value).startswith(f"structured_outputs.json: {problem}")
    assert "; " in str(caught.value) or "must" in str(caught.value)


@pytest.mark.parametrize("word", ["patternProperties", "properties", "required", "pattern", "type"])
@pytest.mark.parametrize("pattern", [r"\ba", "(?=a)", "("])
def test_what_is_wrong_elsewhere_in_a_schema_is_no_other_error(
    word: str, pattern: str, byte_compiler: GrammarCompiler
) -> None:
    """llguidance does not look at definitions that nothing refers to."""
    for wrong in (3, None, [1], {"a": 1}):
        schema = {"$defs": {"unused": {word: wrong}}, "type": "string", "pattern": pattern}
        with pytest.raises(InvalidRequestError):
            byte_compiler.matcher(StructuredOutputs(json=schema))


def test_what_is_not_certain_is_not_named() -> None:
    two = {"items": {"pattern": "("}, "prefixItems": [{"pattern": "a"}]}
    assert explained("unclosed group", two) == "unclosed group; correct it"
    assert explained("something else", {"something": {}}) == "something else; correct it"
    assert explained("unclosed group") == "unclosed group; correct it"


def test_long_reasons_keep_their_fix_and_long_paths_their_end() -> None:
    text = explained(f"Unimplemented keys: {json.dumps([str(i) for i in range(999)])}", {"998": 1})
    assert len(text) <= MAX_REASON_CHARS
    assert text.endswith("…; remove them")
    schema: dict[str, Any] = {"not": {}}
    for _ in range(60):
        schema = {"properties": {"member": schema}}
    assert explained('Unimplemented keys: ["not"]', schema).partition(": ")[0].endswith(".member")
