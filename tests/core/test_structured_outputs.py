from __future__ import annotations

import json
from enum import Enum
from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import BaseModel

from quire.core.sampling_params import SamplingParams, StructuredOutputs
from quire.core.structured_outputs import (
    MAX_CHOICES,
    MAX_CHOICES_BYTES,
    MAX_GRAMMAR_BYTES,
    MAX_REGEX_BYTES,
)
from quire.errors import InvalidRequestError

CONSTRAINTS: list[dict[str, Any]] = [
    {"json": {"type": "object"}},
    {"json": '{"type": "object"}'},
    {"json": "{}" + " " * (MAX_GRAMMAR_BYTES - 2)},
    {"regex": "a" * MAX_REGEX_BYTES},
    {"choice": ["a"]},
    {"choice": ["x"] * MAX_CHOICES},
    {"grammar": 'start: "a"'},
    {"json_object": True},
    {"json_object": True, "disable_any_whitespace": True},
    {"json": {}, "whitespace_pattern": r"[\n ]*", "disable_any_whitespace": False},
    {"regex": "a", "disable_any_whitespace": False, "whitespace_pattern": None},
]


@pytest.mark.parametrize("fields", CONSTRAINTS, ids=lambda fields: next(iter(fields)))
def test_each_structured_output_is_accepted_and_survives_the_wire(fields: dict[str, Any]) -> None:
    constraint = StructuredOutputs(**fields)
    assert constraint.kind == next(iter(fields))
    params = SamplingParams(structured_outputs=constraint)
    frame = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(frame, type=SamplingParams) == params


def test_a_schema_is_stored_as_text() -> None:
    constraint = StructuredOutputs(json={"type": "string", "maxLength": 3})
    assert isinstance(constraint.json, str)
    assert json.loads(constraint.text) == {"type": "string", "maxLength": 3}


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Shoe(BaseModel):
    colour: Colour
    size: int


def test_classes_stand_for_what_they_describe() -> None:
    assert json.loads(StructuredOutputs(json=Shoe).text) == Shoe.model_json_schema()
    assert StructuredOutputs(choice=Colour).choice == ["red", "blue"]
    assert StructuredOutputs(choice=np.array(["a", "b"])).choice == ["a", "b"]
    params = SamplingParams(structured_outputs={"json": Shoe})
    assert params.structured_outputs == StructuredOutputs(json=Shoe.model_json_schema())
    for wrong in ({"json": Colour}, {"json": int}, {"choice": Shoe}, {"regex": Shoe}):
        with pytest.raises(InvalidRequestError, match=r"^structured_outputs\.\w+: must be"):
            StructuredOutputs(**wrong)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "structured_outputs"),
        ({"regex": "a", "choice": ["a"]}, "structured_outputs"),
        ({"json": {1, 2}}, "structured_outputs.json"),
        ({"json": {"a": object()}}, "structured_outputs.json"),
        ({"json": ""}, "structured_outputs.json"),
        ({"json": True}, "structured_outputs.json"),
        ({"json": "x" * (MAX_GRAMMAR_BYTES + 1)}, "structured_outputs.json"),
        ({"json": {"x": "x" * MAX_GRAMMAR_BYTES}}, "structured_outputs.json"),
        ({"regex": ""}, "structured_outputs.regex"),
        ({"regex": "\ud800"}, "structured_outputs.regex"),
        ({"choice": ["\ud800"]}, "structured_outputs.choice"),
        ({"json": {"const": "\ud800"}}, "structured_outputs.json"),
        ({"regex": 1}, "structured_outputs.regex"),
        ({"regex": "é" * (MAX_REGEX_BYTES // 2 + 1)}, "structured_outputs.regex"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": "abc"}, "structured_outputs.choice"),
        ({"choice": ["a", 1]}, "structured_outputs.choice"),
        ({"choice": ["a", ""]}, "structured_outputs.choice"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "structured_outputs.choice"),
        ({"choice": ["a" * (MAX_CHOICES_BYTES + 1)]}, "structured_outputs.choice"),
        ({"grammar": ""}, "structured_outputs.grammar"),
        ({"grammar": ["a"]}, "structured_outputs.grammar"),
        ({"json_object": False}, "structured_outputs.json_object"),
        ({"json_object": 1}, "structured_outputs.json_object"),
        ({"regex": "a", "whitespace_pattern": " "}, "structured_outputs.whitespace_pattern"),
        ({"regex": "a", "disable_any_whitespace": True}, "structured_outputs.disable_any_whites"),
        ({"json": {}, "disable_any_whitespace": "no"}, "structured_outputs.disable_any_whites"),
        *(
            ({"json": {}, "whitespace_pattern": bad}, "structured_outputs.whitespace_pattern")
            for bad in ["", "a", r"\s", "[ a]", "[^a]", "( )", " |x", " {9,2}", "* ", " " * 65, 1]
        ),
        (
            {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True},
            "structured_outputs.whitespace_pattern",
        ),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        StructuredOutputs(**fields)
    assert (caught.value.param or "").startswith(named)
    assert str(caught.value).startswith(f"{caught.value.param}: ")
    assert any(word in str(caught.value) for word in ("must", "; leave", "; set"))
    assert len(str(caught.value)) < 200


def test_white_space_makes_another_grammar() -> None:
    styles: list[dict[str, Any]] = [{}, {"disable_any_whitespace": True}]
    styles += [{"whitespace_pattern": pattern} for pattern in (" ", " ?")]
    assert len({StructuredOutputs(json_object=True, **style).key for style in styles}) == 4


def test_an_endless_schema_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(InvalidRequestError, match="plain JSON values"):
        StructuredOutputs(json=schema)


def test_a_caller_may_name_the_field_otherwise() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        StructuredOutputs(regex="", field="guided_regex")
    assert caught.value.param == "guided_regex"


def test_only_structured_outputs_are_structured_outputs() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(structured_outputs="a")  # type: ignore[arg-type]
    assert caught.value.param == "structured_outputs"


def test_vllms_names_that_ask_for_nothing_are_taken() -> None:
    asked = StructuredOutputs(  # type: ignore[call-arg]
        json={"type": "object"},
        disable_fallback=True,
        backend="xgrammar",
        disable_additional_properties=False,
    )
    assert asked == StructuredOutputs(json={"type": "object"})
    problem = "^StructuredOutputs has no parameter 'disable_additional_properties'; known: json, "
    with pytest.raises(TypeError, match=problem):
        StructuredOutputs(json={}, disable_additional_properties=True)  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match=r"^StructuredOutputs has no parameter 'guided_re.*; use re"
    ):
        StructuredOutputs(guided_regex="a")  # type: ignore[call-arg]
