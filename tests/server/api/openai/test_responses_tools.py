"""/v1/responses as agents use it: namespaces, custom tools, tools of OpenAI's servers, references.

Codex sends the first three with each request, Vercel's AI SDK refers to items by their ids.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from asgi_client import JSON, Reply, call
from cpu_limit import cpu_limit
from fake_engine import FakeEngine
from openai.types.responses import (
    ResponseCustomToolCall,
    ResponseCustomToolCallInputDeltaEvent,
    ResponseFunctionToolCall,
)
from starlette.applications import Starlette

from quire.server.api.openai.response_items import stored_items
from quire.server.api.openai.response_store import ResponseStore, StoredResponse
from quire.server.api.openai.responses_request import ResponsesRequest
from quire.server.app import build_app
from quire.server.settings import ServerSettings

CLOSE = {"type": "function", "name": "close", "parameters": {"type": "object"}}
SPACE = {"type": "namespace", "name": "agents", "description": "For agents.", "tools": [CLOSE]}
SEARCH = {"type": "web_search", "external_web_access": False}
PATCH = {"type": "custom", "name": "patch", "description": "Edits.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}}  # fmt: skip


def app_of(name: str, arguments: str) -> tuple[Starlette, FakeEngine]:
    """A server whose model answers with a call."""
    script = f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
    engine = FakeEngine(script=script)
    engine.tokenizer.chat_template_text = "<tool_call>"
    engine.tokenizer.chat_variables = frozenset({"messages", "tools"})
    return build_app(engine, ServerSettings()), engine


def ask(app: Starlette, **fields: Any) -> Reply:
    return call(app, "/v1/responses", {"input": "hi"} | fields)


async def streamed(app: Starlette, tools: Any) -> list[Any]:
    """The events of a stream, as OpenAI's client reads them."""
    web = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app))
    async with openai.AsyncOpenAI(
        base_url="http://test/v1", api_key="k", http_client=web
    ) as client:
        stream = await client.responses.create(model="fake", input="hi", tools=tools, stream=True)
        return [event async for event in stream]


def test_calls_of_a_namespace_have_its_name() -> None:
    app, engine = app_of("agents__close", '{"id": 1}')
    whole = ask(app, tools=[SPACE]).json()
    shown = engine.tokenizer.seen[1]
    assert [each["function"]["name"] for each in shown] == ["agents__close"]
    assert shown[0]["function"]["description"] == "For agents."
    (made,) = whole["output"]
    assert (made["type"], made["namespace"], made["name"]) == ("function_call", "agents", "close")
    assert whole["tools"][0]["tools"][0]["name"] == "close"
    *_, done = asyncio.run(streamed(app, [SPACE]))
    (item,) = done.response.output
    assert isinstance(item, ResponseFunctionToolCall)
    assert (item.namespace, item.name, item.arguments) == ("agents", "close", '{"id": 1}')
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "ok"}
    assert ask(app, tools=[SPACE], input=[made, result]).status == 200
    (called,) = engine.tokenizer.seen[0][0]["tool_calls"]
    assert called["function"]["name"] == "agents__close"


def test_errors_of_tools_have_their_paths_in_the_request() -> None:
    app, _ = app_of("close", "{}")
    wrong = {**CLOSE, "name": "open", "parameters": {"type": "array"}}
    reply = ask(app, tools=[SEARCH, {**SPACE, "tools": [CLOSE, wrong]}, CLOSE])
    assert reply.error["message"] == "tools[1].tools[1].parameters.type: must be object"
    assert ask(app, tools=[SPACE, {**SPACE}]).error["param"] == "tools[1].tools[0].name"


def test_tools_of_openais_servers_are_left_out_beside_functions() -> None:
    app, engine = app_of("close", "{}")
    reply = ask(app, tools=[SEARCH, CLOSE])
    note = "tools of type 'web_search' have no effect: clients run the tools"
    assert reply.headers["x-quire-no-effect"] == note
    assert [each["name"] for each in reply.json()["tools"]] == ["close"]
    assert [each["function"]["name"] for each in engine.tokenizer.seen[1]] == ["close"]
    for alone in ([SEARCH], [{"type": "web_search_preview_2025_03_11"}]):
        refused = ask(app, tools=alone)
        assert (refused.status, refused.error["param"]) == (400, "tools[0].type")
        assert refused.error["message"].endswith("or send functions of your own")
    unknown = ask(app, tools=[CLOSE, {"type": "local_shell"}])
    assert (unknown.status, unknown.error["param"]) == (400, "tools[1].type")


def test_a_custom_tools_input_is_a_text() -> None:
    app, engine = app_of("patch", '{"input": "a\\nb"}')
    whole = ask(app, tools=[PATCH]).json()
    described = engine.tokenizer.seen[1][0]["function"]
    assert described["description"].endswith("this format (lark):\nstart: /x/")
    assert list(described["parameters"]["properties"]) == ["input"]
    (made,) = whole["output"]
    assert (made["type"], made["input"], made["status"]) == (
        "custom_tool_call",
        "a\nb",
        "completed",
    )
    *events, done = asyncio.run(streamed(app, [PATCH]))
    (item,) = done.response.output
    assert isinstance(item, ResponseCustomToolCall)
    pieces = [e.delta for e in events if isinstance(e, ResponseCustomToolCallInputDeltaEvent)]
    assert "".join(pieces) == item.input == "a\nb"
    result = {"type": "custom_tool_call_output", "call_id": made["call_id"], "output": "ok"}
    assert ask(app, tools=[PATCH], input=[made, result]).status == 200
    called, answered = engine.tokenizer.seen[0]
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"input": "a\nb"}
    assert (answered["role"], answered["content"]) == ("tool", "ok")


def test_a_custom_tool_can_be_chosen() -> None:
    app, engine = app_of("patch", '{"input": "a"}')
    engine.script = '{"input": "a"}'
    assert ask(app, tools=[PATCH], tool_choice={"type": "custom", "name": "patch"}).status == 200
    other = ask(app, tools=[PATCH], tool_choice={"type": "custom", "name": "x"})
    assert other.error["param"] == "tool_choice.name"


def test_tools_of_namespaces_are_counted_one_by_one() -> None:
    app, _ = app_of("close", "{}")
    tools = [{"type": "function", "name": f"f{index}"} for index in range(65)]
    spaces = [{"type": "namespace", "name": name, "tools": tools} for name in "ab"]
    reply = ask(app, tools=spaces)
    assert (reply.status, reply.error["param"]) == (400, "tools")
    assert reply.error["message"] == "tools: must have at most 128 tools, not 130"


@pytest.mark.parametrize("stream", [False, True])
def test_items_of_stored_responses_are_referred_to(app: Starlette, stream: bool) -> None:
    first = ask(app).json()
    (item,) = first["output"]
    reference = {"type": "item_reference", "id": item["id"]}
    fields = {
        "input": [{"role": "user", "content": "hi"}, reference, {"role": "user", "content": "so?"}]
    }
    second = ask(app, stream=stream, **fields)
    assert second.status == 200
    counted = call(app, "/v1/responses/input_tokens", fields).json()["input_tokens"]
    assert counted == len("<user>hi<assistant>Hello!<user>so?<assistant>")
    if not stream:  # what is stored has the item itself
        call(app, f"/v1/responses/{first['id']}", method="DELETE")
        assert ask(app, previous_response_id=second.json()["id"]).status == 200


def test_references_to_what_is_not_there(engine: FakeEngine) -> None:
    app = build_app(engine, ServerSettings(api_key="a,b"))
    keys = [JSON | {"authorization": f"Bearer {key}"} for key in "ab"]
    (item,) = call(app, "/v1/responses", {"input": "hi"}, headers=keys[0]).json()["output"]
    for name, key in ((item["id"], keys[1]), (f"{item['id']}0", keys[0]), ("x", keys[0])):
        body = {"input": [{"type": "item_reference", "id": name}]}
        reply = call(app, "/v1/responses", body, headers=key)
        assert (reply.status, reply.error["code"]) == (400, "item_not_found")
        assert reply.error["param"] == "input[0].id"
        assert reply.error["message"].endswith("send the item itself.")


def test_references_have_a_bound_in_bytes(engine: FakeEngine) -> None:
    """A body of some kilobytes could otherwise ask for gigabytes."""
    app = build_app(engine, ServerSettings(response_store_bytes=4096))
    (item,) = ask(app).json()["output"]
    reply = ask(app, input=[{"type": "item_reference", "id": item["id"]}] * 100)
    assert (reply.status, reply.error["param"]) == (400, "input")
    assert reply.error["message"].endswith("have more than 4096 bytes in all; send fewer")


def test_many_references_to_a_long_response_take_no_time() -> None:
    """Each once decoded all items before its own."""
    store = ResponseStore(None, 8 << 20)
    part = {"type": "reasoning_text", "text": "a" * 1000}
    items = [
        {"type": "reasoning", "id": "rs_0_0", "content": [part] * 4000},
        {"type": "function_call", "id": "fc_0_1", "call_id": "0", "name": "f", "arguments": "{}"},
    ]
    reply = json.dumps({"output": items, "status": "completed"}).encode()
    assert store.put("resp_0", "", StoredResponse(reply, b"[]"))
    reference = msgspec.Raw(b'{"type": "item_reference", "id": "fc_0_1"}')
    request = ResponsesRequest(input=[reference] * 4000)
    with cpu_limit(1, time.process_time):
        stored_items(store, request, "")
    assert isinstance(request.input, list)
    assert {json.loads(bytes(item))["type"] for item in request.input} == {"function_call"}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
def test_stored_responses_are_read_in_a_thread(
    path: str, app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have megabytes, which others would wait for."""
    readers, get = [], ResponseStore.get

    def traced(*args: Any) -> Any:
        readers.append(threading.current_thread())
        return get(*args)

    first = ask(app).json()
    monkeypatch.setattr(ResponseStore, "get", traced)
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    body = {"input": [reference], "previous_response_id": first["id"]}
    assert call(app, path, body).status == 200
    assert len(readers) == 2
    assert threading.main_thread() not in readers


def test_a_references_type_may_have_escapes(app: Starlette) -> None:
    (item,) = ask(app).json()["output"]
    body = b'{"input": [{"type": "item\\u005freference", "id": "%s"}]}' % item["id"].encode()
    assert call(app, "/v1/responses", body).status == 200


def test_reasoning_of_another_service_is_taken(app: Starlette, engine: FakeEngine) -> None:
    """A conversation that was begun with OpenAI's models goes on here."""
    summary = [{"type": "summary_text", "text": "hm"}]
    before = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAA"}
    said = {"type": "message", "role": "assistant", "content": "a"}
    assert ask(app, input=[before, said, {"role": "user", "content": "b"}]).status == 200
    assert engine.tokenizer.seen[0][0]["reasoning_content"] == "hm"
