"""Errors of a conversation name the place in the client's own body, whatever it was made into."""

from __future__ import annotations

from typing import Any

import pytest
from asgi_client import call
from fake_engine import FakeEngine, FakeTokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette

from quire.errors import invalid_value
from quire.server.app import build_app
from quire.server.settings import ServerSettings
from quire.tokenizer.conversation_input import prepare_messages


class Strict(FakeTokenizer):
    """Reads messages as chat templates do; refuses texts with an exclamation mark by message."""

    def chat_prompt(self, messages: list[dict[str, Any]], **options: Any) -> str:
        prepare_messages(messages, str)
        for index, message in enumerate(messages):
            if "!" in str(message):
                raise invalid_value("messages", "too loud", where=f"messages[{index}].tool_calls")
        return super().chat_prompt(messages, **options)


@pytest.fixture(scope="module")
def app() -> Starlette:
    return build_app(FakeEngine(tokenizer=Strict()), ServerSettings())


def called(arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}


ITEMS = st.sampled_from(
    [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ho"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        called("{}"),
        called("{") | {"status": "incomplete"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
    ]
)


@settings(suppress_health_check=list(HealthCheck))
@given(
    before=st.lists(ITEMS, max_size=5),
    after=st.lists(ITEMS, max_size=3),
    bad=st.sampled_from([called("nope"), {"role": "user", "content": "!"}]),
    instructions=st.sampled_from([None, "i"]),
)
def test_an_item_of_a_response(
    app: Starlette, before: list[Any], after: list[Any], bad: Any, instructions: str | None
) -> None:
    body = {"input": [*before, bad, *after], "instructions": instructions}
    error = call(app, "/v1/responses", body).error
    where = f"input[{len(before)}]" + (".arguments" if "arguments" in bad else "")
    assert (error["message"].partition(": ")[0], error["param"]) == (where, "input")


BLOCKS = st.sampled_from(
    [
        {"role": "user", "content": "hi"},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "r"},
                {"type": "tool_result", "tool_use_id": "b", "content": "r"},
                {"type": "text", "text": "t"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "t"}]},
    ]
)


@settings(suppress_health_check=list(HealthCheck))
@given(before=st.lists(BLOCKS, max_size=5), system=st.sampled_from([None, "s"]))
def test_a_message_of_anthropics(app: Starlette, before: list[Any], system: str | None) -> None:
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {"a": "!"}}
    loud = {"role": "assistant", "content": [use]}
    messages = [*before, loud, {"role": "user", "content": "hi"}]
    reply = call(app, "/v1/messages/count_tokens", {"messages": messages, "system": system})
    assert reply.json()["error"]["message"] == f"messages[{len(before)}].content: too loud"
