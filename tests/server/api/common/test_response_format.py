from __future__ import annotations

import json
from typing import Any

import pytest
from asgi_client import Post
from fake_engine import FakeEngine

from quire.core.structured_outputs import StructuredOutputs

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {"enum": [1]}}}
NAMED = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
TOOLS = [{"type": "function", "function": {"name": "f"}}]

SAME: list[tuple[dict[str, Any], str, Any, str]] = [
    ({"response_format": NAMED}, "json", SCHEMA, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_object"}}, "json_object", True, "response_format"),
    (
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        *("json", SCHEMA, "response_format.schema"),
    ),
    ({"structured_outputs": {"json": SCHEMA}}, "json", SCHEMA, "structured_outputs.json"),
    ({"structured_outputs": {"regex": "a"}}, "regex", "a", "structured_outputs.regex"),
    ({"structured_outputs": {"choice": ["a"]}}, "choice", ["a"], "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": "x"}}, "grammar", "x", "structured_outputs.grammar"),
    (
        {"structured_outputs": {"json_object": True}, "response_format": {"type": "text"}},
        "json_object",
        True,
        "structured_outputs.json_object",
    ),
    ({"guided_json": SCHEMA}, "json", SCHEMA, "guided_json"),
    ({"guided_json": json.dumps(SCHEMA)}, "json", SCHEMA, "guided_json"),
    ({"guided_regex": "a"}, "regex", "a", "guided_regex"),
    ({"guided_choice": ["a", "b"]}, "choice", ["a", "b"], "guided_choice"),
    ({"guided_grammar": "x"}, "grammar", "x", "guided_grammar"),
]


@pytest.mark.parametrize("route", ["complete", "chat"])
@pytest.mark.parametrize(("fields", "kind", "value", "field"), SAME, ids=lambda v: str(v)[:30])
def test_each_parameter_gives_the_same_grammar(
    route: str,
    fields: dict[str, Any],
    kind: str,
    value: Any,
    field: str,
    complete: Post,
    chat: Post,
    engine: FakeEngine,
) -> None:
    reply = {"complete": complete, "chat": chat}[route](**fields)
    assert reply.status == 200, reply.body
    constraint = engine.calls[0]["sampling"].structured_outputs
    assert isinstance(constraint, StructuredOutputs)
    assert (constraint.kind, constraint.name) == (kind, field)
    if kind == "json":
        assert json.loads(constraint.text) == value
        assert list(json.loads(constraint.text)["properties"]) == [
            "b",
            "a",
        ]  # the order is the answer's
    else:
        assert getattr(constraint, kind) == value


@pytest.mark.parametrize(
    ("fields", "style"),
    [
        ({"structured_outputs": {"json": {}, "disable_any_whitespace": True}}, (True, None)),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": " *"}}, (None, " *")),
        ({"guided_json": {}, "guided_whitespace_pattern": " ?"}, (None, " ?")),
        ({"response_format": NAMED}, (None, None)),
    ],
)
def test_white_space_can_be_chosen(
    fields: dict[str, Any], style: Any, chat: Post, engine: FakeEngine
) -> None:
    assert chat(**fields).status == 200
    constraint = engine.calls[0]["sampling"].structured_outputs
    assert (constraint.disable_any_whitespace, constraint.whitespace_pattern) == style


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": NAMED, "structured_outputs": {"regex": "a"}}, "structured_outputs."),
        ({"structured_outputs": {"regex": "a"}, "guided_choice": ["a"]}, "guided_choice"),
    ],
)
def test_two_structured_outputs_are_refused(
    fields: dict[str, Any], named: str, complete: Post, chat: Post
) -> None:
    for post in (complete, chat):
        reply = post(**fields)
        assert reply.status == 400
        assert reply.error["param"].startswith(named)
        assert "set one of them" in reply.error["message"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"structural_tag": ""}}, "structured_outputs.structural_tag"),
        ({"response_format": {"type": "structural_tag", "tags": []}}, "response_format.tags"),
        (
            {
                "response_format": {
                    "type": "structural_tag",
                    "structures": [{"begin": "<a>", "end": "</a>", "x": 1}],
                    "triggers": ["<a>"],
                }
            },
            "response_format.structures[0].x",
        ),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": "x"}},
            "structured_outputs.whitespace_pattern",
        ),
        ({"guided_json": {}, "guided_whitespace_pattern": "x"}, "guided_whitespace_pattern"),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"grammar": 'root ::= "a"', "guided_regex": "a"}, "grammar"),
        ({"guided_json": {}, "json_schema": {}}, "json_schema"),
    ],
)
def test_the_field_at_fault_is_named(fields: dict[str, Any], named: str, chat: Post) -> None:
    reply = chat(**fields)
    assert reply.status == 400
    assert reply.error["param"] == named


TAG = {
    "structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}],
    "triggers": ["<a"],
}


@pytest.mark.parametrize("members", [TAG, {"format": {"type": "any_text"}}])
def test_a_structural_tag_is_read_from_vllms_older_and_newer_fields(
    members: dict[str, Any], chat: Post, complete: Post, engine: FakeEngine
) -> None:
    for post in (chat, complete):
        assert post(response_format={"type": "structural_tag", **members}).status == 200
        constraint = engine.calls[-1]["sampling"].structured_outputs
        assert constraint.kind == "structural_tag"
        assert {**json.loads(constraint.text), **members} == json.loads(constraint.text)
