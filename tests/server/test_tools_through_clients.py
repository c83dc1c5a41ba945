"""Tool calls as the official clients read them, from a scripted engine."""

from __future__ import annotations

import asyncio
import json

import anthropic
import httpx2
import openai
import pytest
from fake_engine import FakeEngine

from quire.server.app import build_app
from quire.server.settings import ServerSettings

CALL = '<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>'
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def web() -> httpx2.AsyncClient:
    engine = FakeEngine(script=CALL)
    engine.tokenizer.chat_template_text = "<tool_call>"
    engine.tokenizer.chat_variables = frozenset({"messages", "tools"})
    transport = httpx2.ASGITransport(app=build_app(engine, ServerSettings()))
    return httpx2.AsyncClient(transport=transport)


def test_openai(web: httpx2.AsyncClient) -> None:
    async def talk() -> None:
        async with openai.AsyncOpenAI(
            base_url="http://test/v1", api_key="k", http_client=web
        ) as client:
            tool = {"name": "look", "parameters": SCHEMA}
            chat = await client.chat.completions.create(
                model="fake", messages=HELLO, tools=[{"type": "function", "function": tool}]
            )
            (call,) = chat.choices[0].message.tool_calls or ()
            assert call.type == "function"
            assert json.loads(call.function.arguments) == {"at": "x"}
            async with client.responses.stream(
                model="fake", input="hi", tools=[{"type": "function", "strict": None, **tool}]
            ) as stream:
                response = await stream.get_final_response()
            (item,) = response.output
            assert item.type == "function_call"
            assert json.loads(item.arguments) == {"at": "x"}

    asyncio.run(talk())


def test_anthropic(web: httpx2.AsyncClient) -> None:
    async def talk() -> None:
        async with (
            anthropic.AsyncAnthropic(
                base_url="http://test", api_key="k", http_client=web
            ) as client,
            client.messages.stream(
                model="fake",
                messages=HELLO,
                max_tokens=100,
                tools=[{"name": "look", "input_schema": SCHEMA}],
            ) as stream,
        ):
            message = await stream.get_final_message()
        (block,) = message.content
        assert block.type == "tool_use"
        assert block.input == {"at": "x"}
        assert message.stop_reason == "tool_use"

    asyncio.run(talk())


def test_a_conversation_that_the_server_should_hold_is_sent_whole(web: httpx2.AsyncClient) -> None:
    @anthropic.beta_async_tool
    async def look(at: str) -> str:
        """Look at something."""
        return f"{at} is there"

    async def talk() -> None:
        async with anthropic.AsyncAnthropic(
            base_url="http://test", api_key="k", http_client=web
        ) as client:
            runner = client.beta.messages.tool_runner(
                model="fake", messages=HELLO, max_tokens=100, tools=[look], max_iterations=2
            )
            messages = [message async for message in runner]
        assert [message.stop_reason for message in messages] == ["tool_use", "tool_use"]

    asyncio.run(talk())
