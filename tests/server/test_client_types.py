"""Replies and events have all that the types of the official clients require.

Those clients take what comes; clients in other languages, and those that check, do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from asgi_client import call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.server.app import build_app
from quire.server.settings import ServerSettings

pydantic = pytest.importorskip("pydantic")
openai_chat = pytest.importorskip("openai.types.chat")
openai_responses = pytest.importorskip("openai.types.responses")
anthropic = pytest.importorskip("anthropic.types")

CALL = '<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>'
MESSAGES = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
FUNCTION = {"name": "look", "parameters": SCHEMA}
CHAT = {"messages": MESSAGES, "tools": [{"type": "function", "function": FUNCTION}]}
ASKED = {"input": "hi", "tools": [{"type": "function", **FUNCTION}]}
MESSAGE = {
    "messages": MESSAGES,
    "max_tokens": 99,
    "tools": [{"name": "look", "input_schema": SCHEMA}],
}
ITEMS: list[dict[str, Any]] = [
    {"role": "assistant", "content": "I do"},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "x"},
    {"role": "user", "content": "hi"},
]


@pytest.fixture
def app() -> Starlette:
    engine = FakeEngine(f"<think>a</think>b{CALL}")
    engine.tokenizer.chat_template_text = "<tool_call></think>"
    engine.tokenizer.chat_variables = frozenset({"messages", "tools"})
    return build_app(engine, ServerSettings())


def members(union: Any) -> Iterator[Any]:
    """The classes of a union of unions."""
    if get_origin(union) is Annotated:
        union = get_args(union)[0]
    if get_origin(union) is Union:
        for member in get_args(union):
            yield from members(member)
    else:
        yield union


def check(kind: Any, found: dict[str, Any]) -> None:
    """Of a union's classes, those whose `type` is that of what was found."""
    kinds = list(members(kind))
    if len(kinds) > 1:
        kinds = [k for k in kinds if found["type"] in get_args(k.model_fields["type"].annotation)]
    faults = []
    for one in kinds:
        try:
            pydantic.TypeAdapter(one).validate_python(found)
        except pydantic.ValidationError as error:
            faults.append(str(error))
        else:
            return
    pytest.fail("\n".join([json.dumps(found), *faults]))


def events(app: Starlette, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = call(app, path, body | {"stream": True}).body.decode().splitlines()
    found = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    return [event for event in map(json.loads, found) if event.get("type") != "ping"]


@pytest.mark.parametrize(
    ("path", "body", "whole", "part"),
    [
        (
            "/v1/chat/completions",
            CHAT | {"logprobs": True, "n": 2},
            openai_chat.ChatCompletion,
            openai_chat.ChatCompletionChunk,
        ),
        (
            "/v1/responses",
            ASKED | {"top_logprobs": 1},
            openai_responses.Response,
            openai_responses.ResponseStreamEvent,
        ),
        ("/v1/messages", MESSAGE, anthropic.Message, anthropic.RawMessageStreamEvent),
    ],
)
def test_answers(app: Starlette, path: str, body: dict[str, Any], whole: Any, part: Any) -> None:
    check(whole, call(app, path, body).json())
    for event in events(app, path, body):
        check(part, event)


def test_stored_responses_and_their_items(app: Starlette) -> None:
    first = call(app, "/v1/responses", ASKED | {"input": ITEMS}).json()
    second = call(app, "/v1/responses", ASKED | {"previous_response_id": first["id"]}).json()
    path = f"/v1/responses/{second['id']}"
    check(openai_responses.Response, call(app, path, None, method="GET").json())
    listed = call(app, f"{path}/input_items", None, method="GET").json()["data"]
    assert len(listed) > len(ITEMS)
    for item in listed:
        check(openai_responses.response_item.ResponseItem, item)
