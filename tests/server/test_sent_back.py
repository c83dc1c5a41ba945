"""Objects of the official clients are taken back as they dump them: unknown members are null."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from asgi_client import call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.server.api.anthropic.messages_request import MessagesRequest
from quire.server.app import build_app
from quire.server.http.request_body import read_body
from quire.server.settings import ServerSettings

CALL = '<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>'
LOOK: dict[str, Any] = {"name": "look", "description": "look at it"}
HELLO = {"role": "user", "content": "hi"}


@pytest.fixture
def app() -> Starlette:
    engine = FakeEngine(script=CALL)
    engine.tokenizer.chat_template_text = "<tool_call>"
    engine.tokenizer.chat_variables = frozenset({"messages", "tools", "tool_calls"})
    return build_app(engine, ServerSettings())


def web(app: Starlette) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app))


def test_openais_objects(app: Starlette) -> None:
    async def talk() -> None:
        async with openai.AsyncOpenAI(
            base_url="http://test/v1", api_key="k", http_client=web(app)
        ) as client:
            tool: Any = {"type": "function", "strict": None, "parameters": {}, **LOOK}
            first = await client.responses.create(model="fake", input="hi", tools=[tool])
            (item,) = first.output
            assert item.type == "function_call"
            result = {"type": "function_call_output", "call_id": item.call_id, "output": "y"}
            text = {"role": "assistant", "content": "a", "type": "message", "phase": None}
            for aliased in (False, True):
                conversation: Any = [HELLO, text, item.model_dump(by_alias=aliased), result]
                again = await client.responses.create(model="fake", input=conversation)
                assert again.output

    asyncio.run(talk())


def test_anthropics_objects(app: Starlette) -> None:
    async def talk() -> None:
        async with anthropic.AsyncAnthropic(
            base_url="http://test", api_key="k", http_client=web(app)
        ) as client:
            tools: Any = [{"input_schema": {"type": "object"}, **LOOK}]
            more: Any = {"model": "fake", "max_tokens": 90, "tools": tools}
            first = await client.messages.create(messages=[HELLO], **more)  # type: ignore[list-item]
            used: Any = [block.model_dump() for block in first.content]
            result = {"type": "tool_result", "tool_use_id": used[0]["id"], "content": "y"}
            conversation: Any = [
                HELLO,
                {"role": "assistant", "content": used},
                {"role": "user", "content": [result]},
            ]
            assert (await client.messages.create(messages=conversation, **more)).content

    asyncio.run(talk())


BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
    },
    "/v1/messages": {
        "max_tokens": 2,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "metadata": {"user_id": "u"},
    },
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
}


def inner(body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The objects within a body, with their paths."""
    found = []
    queue: list[tuple[str, Any]] = [*body.items()]
    while queue:
        path, value = queue.pop()
        if isinstance(value, list):
            queue += [(f"{path}[{i}]", each) for i, each in enumerate(value)]
        elif isinstance(value, dict):
            found.append((path, value))
            queue += [(f"{path}.{name}", each) for name, each in value.items()]
    return found


@pytest.mark.parametrize("path", BODIES)
def test_an_inner_name_is_null_or_refused(app: Starlette, path: str) -> None:
    body = BODIES[path]
    assert call(app, path, body).status == 200
    for where, found in inner(body):
        found["surprise"] = None
        assert call(app, path, body).status == 200, where
        found["surprise"] = 1
        reply = call(app, path, body)
        assert reply.status == 400
        assert f"{where}.surprise: unknown field; remove it" in reply.body.decode()
        del found["surprise"]


def test_only_what_has_no_name_is_left_out() -> None:
    """Null within a schema stays, as within a call's arguments."""
    schema = {"properties": {"a": {"const": None}}}
    tool = {"name": "look", "input_schema": schema, "odd": None}
    body = {**BODIES["/v1/messages"], "tools": [tool]}
    (read,) = read_body(json.dumps(body).encode(), MessagesRequest).tools or ()
    assert read.input_schema == schema


def test_tools_that_are_loaded_later_are_all_shown(app: Starlette) -> None:
    tool = {"name": "look", "input_schema": {"type": "object"}, "defer_loading": True}
    reply = call(app, "/v1/messages", {**BODIES["/v1/messages"], "tools": [tool]})
    assert "defer_loading of tools has no effect" in reply.headers["x-quire-no-effect"]
    tool = {"type": "function", "name": "look", "defer_loading": True}
    reply = call(app, "/v1/responses", {**BODIES["/v1/responses"], "tools": [tool]})
    assert "defer_loading of tools has no effect" in reply.headers["x-quire-no-effect"]
