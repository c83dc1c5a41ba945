"""Forced calls with a real engine: a model that knows no tools calls them all the same."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from child_process import run_to_end
from server_process import end_server, running_server

from quire.config import EngineConfig
from quire.engine.frontend.async_engine import AsyncEngine
from quire.hub import resolve_model
from quire.server.app import build_app
from quire.server.settings import ServerSettings

EXAMPLE = Path(__file__).parents[2] / "examples" / "tools"

TEMPLATE = (
    "{% if tools %}<|system|>{{ tools | tojson }} <tool_call></tool_call><|end|>{% endif %}"
    "{% for message in messages %}<|user|>{{ message.content }}<|end|>{% endfor %}<|assistant|>"
)
WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
TOOLS = [{"type": "function", "function": WEATHER}]

Chat = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The bundled model with a template that has tools."""
    model = tmp_path / "tooled"
    shutil.copytree(resolve_model("quire-tiny"), model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return model


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Chat]:
    config = EngineConfig.from_options(model=str(folder), threads=1, num_blocks=200)
    engine = await AsyncEngine.start(config)
    transport = httpx.ASGITransport(build_app(engine, ServerSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://quire") as client:

        async def chat(path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
            asked: dict[str, Any] = {"messages": [{"role": "user", "content": "is it raining?"}]}
            seed = {"options": {"seed": 5}} if path.startswith("/api/") else {"seed": 5}
            return await client.post(path, json=asked | seed | fields, timeout=60)

        try:
            yield chat
        finally:
            await engine.close()


def test_calls_are_forced_and_fit_their_schema(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(folder) as chat:
            named = {"type": "function", "function": {"name": "weather"}}
            for choice in ("required", named):
                reply = await chat(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
                (answer,) = reply.json()["choices"]
                assert answer["finish_reason"] == "tool_calls"
                (call,) = answer["message"]["tool_calls"]
                arguments = json.loads(call["function"]["arguments"])
                assert arguments["city"] in ("Paris", "Rome")
                assert isinstance(arguments["days"], int)
            schema = {"name": "weather", "schema": WEATHER["parameters"]}
            schema = {"type": "json_schema", "json_schema": schema}
            reply = await chat(tools=TOOLS, response_format=schema)  # the schema or a call
            message = reply.json()["choices"][0]["message"]
            text = message["content"] or message["tool_calls"][0]["function"]["arguments"]
            assert isinstance(json.loads(text), dict)
            bad = json.loads(json.dumps(TOOLS).replace("integer", "integr"))
            reply = await chat(tools=bad, tool_choice="required")
            param = reply.json()["error"]["param"]
            assert (reply.status_code, param) == (400, "tools[0].function.parameters")

    asyncio.run(scenario())


def test_control_tokens_of_calls_reach_the_parser(folder: Path) -> None:
    """Here the mark of calls is a control token, as in Mistral's models."""
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("<tool_call>", "[TOOL_CALLS]"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = folder / name
        path.write_text(path.read_text().replace("<|pad|>", "[TOOL_CALLS]"))

    async def scenario() -> None:
        async with serving(folder) as chat:
            forced = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
            reply = await chat(**forced)
            (answer,) = reply.json()["choices"]
            assert answer["finish_reason"] == "tool_calls"
            assert len(answer["message"]["tool_calls"][0]["id"]) == 9

    asyncio.run(scenario())


def test_the_example_completes_two_rounds() -> None:
    """examples/tools as docs/tools.md runs it: a forced call, its result, and an answer from it."""
    template = str(EXAMPLE / "chat_template.jinja")
    with running_server("--chat-template", template, "--num-blocks", "256") as (process, url):
        done = run_to_end([sys.executable, str(EXAMPLE / "two_turns.py"), url], check=True)
        end_server(process)
    call, answer = done.stdout.splitlines()
    hours = {"pharmacy": "Monday to Friday from 9:30 am", "bakery": "Monday to Saturday from 6 am"}
    shop = re.fullmatch(r"opening_hours\({'shop': '(\w+)'}\)", call)
    assert shop is not None
    assert hours[shop[1]] in answer


def test_the_example_says_what_is_wrong_in_a_line() -> None:
    """The bundled model's own template refuses tools."""
    command = [sys.executable, str(EXAMPLE / "two_turns.py")]
    nobody = "http://127.0.0.1:1"
    with running_server("quire-tiny", "--num-blocks", "256") as (process, served):
        for url, said in (
            (nobody, "docs/tools.md says how to start one"),
            (served, 'HTTP 400: {"error":{"message":"tools: '),
        ):
            done = run_to_end([*command, url])
            assert done.returncode == 1
            assert said in done.stderr
            assert len(done.stderr.splitlines()) == 1
        end_server(process)


TAG = {
    "type": "tag",
    "begin": "<c>",
    "content": {"type": "regex", "pattern": "[0-9]{3}"},
    "end": "</c>",
}


def test_a_structural_tag_beside_tools_and_alone(folder: Path) -> None:
    """The text has the tag's form, or there is a call; what cannot be compiled names its field."""

    async def scenario() -> None:
        async with serving(folder) as chat:
            asked = {"type": "structural_tag", "format": TAG}
            for tools in ({}, {"tools": TOOLS}):
                reply = await chat(response_format=asked, max_tokens=60, **tools)
                assert reply.status_code == 200, reply.text
                message = reply.json()["choices"][0]["message"]
                is_tag = re.fullmatch("<c>[0-9]{3}</c>", message["content"] or "")
                assert is_tag or (tools and message["tool_calls"])
                wrong = {"type": "structural_tag", "format": {**TAG, "content": {"type": "none"}}}
                reply = await chat(response_format=wrong, **tools)
                assert reply.status_code == 400
                assert reply.json()["error"]["param"].startswith("response_format")

    asyncio.run(scenario())


BAD_FORMATS: list[Any] = [
    {"type": "integr"},
    {"type": "object", "properties": {"a": {"type": "strng"}}},
    {"$ref": "#/$defs/nowhere"},
    {"type": "string", "pattern": "("},
]


def test_a_format_that_cannot_be_compiled_is_named_in_ollamas_api(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(folder) as chat:
            for schema in BAD_FORMATS:
                for stream in (False, True):
                    reply = await chat("/api/chat", format=schema, stream=stream)
                    assert reply.status_code == 400, (schema, reply.text)
                    assert reply.json()["error"].startswith("format: "), reply.text
            good = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
            reply = await chat("/api/chat", format=good, stream=False)
            assert json.loads(reply.json()["message"]["content"])["a"] == 1

    asyncio.run(scenario())
