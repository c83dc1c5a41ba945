"""/v1/messages: what the template gets, the order of events, errors in Anthropic's shape."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from asgi_client import Reply, call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.errors import QueueFullError
from quire.server.app import build_app
from quire.server.settings import ServerSettings

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
CALL = '<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>'


@pytest.fixture
def speaking() -> FakeEngine:
    """An engine whose template knows tools and thoughts."""
    engine = FakeEngine()
    engine.tokenizer.chat_template_text = "<tool_call></think>"
    engine.tokenizer.chat_variables = frozenset({"messages", "tools", "enable_thinking"})
    return engine


def ask(app: Starlette, **fields: Any) -> Reply:
    return call(app, "/v1/messages", {"messages": [USER], "max_tokens": 500} | fields)


def events(reply: Reply) -> list[dict[str, Any]]:
    """The data of a stream's events, each of which has its type as its name."""
    *parts, tail = reply.body.decode().split("\n\n")
    assert tail == ""
    sent = []
    for part in parts:
        name, data = part.split("\n")
        sent.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {sent[-1]['type']}"
    return sent


def test_whole_answer(app: Starlette, engine: FakeEngine) -> None:
    reply = ask(app, system="be kind").json()
    assert "".join(map(chr, engine.calls[0]["ids"])) == "<system>be kind<user>hi<assistant>"
    assert reply.pop("id").startswith("msg_")
    assert reply == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [{"type": "text", "text": "Hello!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 17,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 17,
            "output_tokens": 6,
        },
    }


def test_events_come_in_anthropics_order(app: Starlette) -> None:
    sent = events(ask(app, stream=True))
    assert [event["type"] for event in sent] == [
        "message_start",
        "content_block_start",
        "ping",
        *["content_block_delta"] * 6,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert sent[0]["message"]["content"] == []
    assert sent[1]["content_block"] == {"type": "text", "text": ""}
    assert "".join(e["delta"]["text"] for e in sent if e["type"] == "content_block_delta") == (
        "Hello!"
    )
    assert sent[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert sent[-2]["usage"]["output_tokens"] == 6


def test_thoughts_and_calls_are_blocks_streamed_as_whole(speaking: FakeEngine) -> None:
    app = build_app(speaking, ServerSettings())
    speaking.script = f"<think>hm</think>Well. {CALL}{CALL}"
    whole = ask(app, tools=[TOOL]).json()
    assert [block["type"] for block in whole["content"]] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    assert whole["content"][0] == {"type": "thinking", "thinking": "hm", "signature": ""}
    assert whole["content"][2]["input"] == {"at": "x"}
    assert whole["stop_reason"] == "tool_use"

    joined: list[dict[str, Any]] = []
    for event in events(ask(app, tools=[TOOL], stream=True)):
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(joined)
                joined.append(block | {"input_text": ""})
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                assert index == len(joined) - 1
                for name in ("text", "thinking"):
                    joined[-1][name] = joined[-1].get(name, "") + delta.get(name, "")
                joined[-1]["input_text"] += delta.get("partial_json", "")
    for streamed, block in zip(joined, whole["content"], strict=True):
        assert streamed["type"] == block["type"]
        if block["type"] == "tool_use":
            assert json.loads(streamed["input_text"]) == block["input"]
        else:
            assert streamed[block["type"]] == block[block["type"]]


@pytest.mark.parametrize("parser", ["hermes", "mistral"])
def test_calls_have_anthropics_ids(speaking: FakeEngine, parser: str) -> None:
    app = build_app(speaking, ServerSettings(tool_call_parser=parser))  # type: ignore[arg-type]
    speaking.script = CALL if parser == "hermes" else '[TOOL_CALLS]look[ARGS]{"at": "x"}'
    (block,) = ask(app, tools=[TOOL]).json()["content"]
    sent = events(ask(app, tools=[TOOL], stream=True))
    streamed = next(e["content_block"] for e in sent if e["type"] == "content_block_start")
    for made in (block, streamed):
        assert re.fullmatch(r"toolu_[0-9a-f]{24}", made["id"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_is_called_exactly_once(speaking: FakeEngine, stream: bool) -> None:
    app = build_app(speaking, ServerSettings())
    speaking.script = CALL + CALL
    reply = ask(app, tools=[TOOL], tool_choice={"type": "tool", "name": "look"}, stream=stream)
    assert reply.body.decode().count("toolu_") == 1


def test_the_signature_of_thoughts_is_an_event(speaking: FakeEngine) -> None:
    """Vercel's AI SDK sends back only thoughts for which it came, and drops others."""
    speaking.script = "<think>hm</think>Well."
    app = build_app(speaking, ServerSettings())
    deltas = [
        e["delta"] for e in events(ask(app, stream=True)) if e["type"].endswith("block_delta")
    ]
    last = max(i for i, delta in enumerate(deltas) if delta["type"] == "thinking_delta")
    assert deltas[last + 1] == {"type": "signature_delta", "signature": ""}
    assert len([delta for delta in deltas if "signature" in delta]) == 1


def test_blocks_come_in_the_order_in_which_they_were_written(speaking: FakeEngine) -> None:
    app = build_app(speaking, ServerSettings())
    speaking.script = f"Look: {CALL} and then {CALL} done"
    kinds = ["text", "tool_use", "text", "tool_use", "text"]
    whole = ask(app, tools=[TOOL]).json()["content"]
    assert [block["type"] for block in whole] == kinds
    assert [block["text"] for block in whole[::2]] == ["Look:", " and then", " done"]
    sent = events(ask(app, tools=[TOOL], stream=True))
    started = [e["content_block"]["type"] for e in sent if e["type"] == "content_block_start"]
    assert started == kinds


def test_messages_as_the_template_sees_them(speaking: FakeEngine) -> None:
    app = build_app(speaking, ServerSettings())
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "x"}}
    text = {"type": "text", "text": "so", "cache_control": {"type": "ephemeral"}}
    conversation = [
        {"role": "user", "content": [text, text]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, text, use]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "no", "is_error": True},
                text,
            ],
        },
    ]
    assert ask(app, messages=conversation, tools=[TOOL], system=[text]).status == 200
    messages, tools = speaking.tokenizer.seen
    assert [message["role"] for message in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert messages[2]["reasoning_content"] == "hm"
    assert messages[2]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"x"}'}
    assert (messages[3]["content"], messages[3]["tool_call_id"]) == ("Error: no", "c1")
    assert tools[0]["function"]["name"] == "look"


def test_thinking_can_be_disabled(speaking: FakeEngine) -> None:
    app = build_app(speaking, ServerSettings())
    speaking.script = "<think>hm</think>Well."
    reply = ask(app, thinking={"type": "disabled"}).json()
    assert [block["type"] for block in reply["content"]] == ["text"]
    assert "[enable_thinking=False]" in "".join(map(chr, speaking.calls[0]["ids"]))


def test_thoughts_can_be_left_out(speaking: FakeEngine) -> None:
    app = build_app(speaking, ServerSettings())
    speaking.script = "<think>hm</think>Well."
    reply = ask(app, thinking={"type": "adaptive", "display": "omitted"}).json()
    assert [block["type"] for block in reply["content"]] == ["text"]
    assert "enable_thinking" not in "".join(map(chr, speaking.calls[0]["ids"]))


def test_an_answer_can_be_given_a_format_and_an_effort(speaking: FakeEngine) -> None:
    speaking.tokenizer.chat_template_text = ""
    app = build_app(speaking, ServerSettings())
    text_format = {"type": "json_schema", "schema": {"type": "object"}}
    assert ask(app, output_config={"format": text_format, "effort": "high"}).status == 200
    constraint = speaking.calls[0]["sampling"].structured_outputs
    assert json.loads(constraint.json) == {"type": "object"}
    assert constraint.name == "output_config.format.schema"  # as errors of the form call it
    assert "[enable_thinking=True]" in "".join(map(chr, speaking.calls[0]["ids"]))


def test_sampling_params_reach_the_sampler(app: Starlette, engine: FakeEngine) -> None:
    ask(app, stop_sequences=["a"], temperature=0.5, top_p=0.9, top_k=3, max_tokens=2)
    sampling = engine.calls[0]["sampling"]
    assert (sampling.stop, sampling.max_tokens) == (["a"], 2)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 3)


@pytest.mark.parametrize("content", ["Hel", [{"type": "text", "text": "Hel"}]])
def test_a_started_answer_is_continued(app: Starlette, engine: FakeEngine, content: Any) -> None:
    started = [USER, {"role": "assistant", "content": content}]
    assert ask(app, messages=started).json()["content"] == [{"type": "text", "text": "Hello!"}]
    assert engine.tokenizer.continued
    ask(app)
    assert not engine.tokenizer.continued


def test_a_system_message_may_stand_anywhere(app: Starlette, engine: FakeEngine) -> None:
    texts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    ask(app, messages=[USER, {"role": "system", "content": texts}, USER], system="a")
    assert engine.last_prompt == "<system>a<user>hi<system>b+c<user>hi<assistant>"
    ask(app, messages=[USER, {"role": "system", "content": "d"}])
    assert engine.last_prompt == "<user>hi<system>d<assistant>"


@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_may_exceed_the_context(
    app: Starlette, engine: FakeEngine, stream: bool
) -> None:
    """Agents ask for 32,000 tokens of any model; a cut answer says what has cut it."""
    ends, engine.ending = [], "length"
    for wanted in (3, 5000):
        reply = ask(app, max_tokens=wanted, stream=stream)
        ends.append(events(reply)[-2]["delta"] if stream else reply.json())
    assert [end["stop_reason"] for end in ends] == ["max_tokens", "model_context_window_exceeded"]
    assert [call["cut_to_context"] for call in engine.calls] == [True, True]


def test_what_is_too_long_is_said_in_anthropics_words(app: Starlette, engine: FakeEngine) -> None:
    """Claude Code shortens a conversation only when it reads them, by these numbers."""
    most, text = engine.info.limits.max_model_len, "x" * 1500
    error = ask(app, messages=[{"role": "user", "content": text}]).json()["error"]
    size = len(f"<user>{text}<assistant>")
    assert error["type"] == "invalid_request_error"
    begin = f"prompt is too long: {size} tokens > {most - 1} maximum; messages: "
    assert error["message"].startswith(begin)


def test_blocks_have_no_null(speaking: FakeEngine) -> None:
    """Anthropic leaves a block's field out instead, and clients that check its types rely on it."""
    speaking.script = f"<think>a</think>b{CALL}"
    app = build_app(speaking, ServerSettings())
    content = ask(app, tools=[TOOL]).json()["content"]
    assert {block["type"] for block in content} == {"thinking", "text", "tool_use"}
    started = [e for e in events(ask(app, tools=[TOOL], stream=True)) if "content_block" in e]
    for block in content + [event["content_block"] for event in started]:
        assert None not in block.values(), block


def test_tokens_are_counted_without_the_model(app: Starlette, engine: FakeEngine) -> None:
    reply = call(app, "/v1/messages/count_tokens", {"messages": [USER], "system": "ab"})
    assert reply.json() == {"input_tokens": len("<system>ab<user>hi<assistant>")}
    assert engine.calls == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens: "),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"max_tokns": 3}, "max_tokns: unknown field; did you mean 'max_tokens'?"),
        ({"temperature": -1}, "temperature: "),
        ({"stop_sequences": [""]}, "stop_sequences[0]: "),
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role: "),
        (
            {"messages": [{"role": "system", "content": [{"type": "thinking", "thinking": "a"}]}]},
            "messages[0].content: a system message has only text; ",
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": ""}]},
            "messages: the last one has no",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}],
                    }
                ]
            },
            "messages: the last one has no text to continue at its end; send the results",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages["),
        ({"messages": [USER | {"x": 1}]}, "messages[0].x: unknown field; remove it"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens: it goes with"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 9}}, "thinking.budget_tokens: it goes"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type: "),
        ({"output_config": {"format": {"type": "json"}}}, "output_config.format.type: "),
        ({"tools": [TOOL]}, "tools: "),
        ({"tools": [TOOL, TOOL]}, "tools[1].name: "),
        ({"tools": [TOOL | {"input_schema": {"type": "string"}}]}, "tools[0].input_schema.type: "),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name: "),
        ({"tool_choice": {"type": "any"}}, "tool_choice: "),
        ({"container": "x"}, "container: 'x' is not supported: clients run the tools"),
        ({"messages": [USER | {"content": "a" * 5000}]}, "prompt is too long: 4032 tokens > 1023 "),
    ],
)
def test_refusals_in_anthropics_shape(app: Starlette, fields: dict[str, Any], words: str) -> None:
    reply = ask(app, **fields)
    assert reply.status == 400
    found = reply.json()
    assert set(found) == {"type", "error", "request_id"}
    assert found["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
    assert found["type"] == "error"
    assert found["error"]["type"] == "invalid_request_error"
    assert found["error"]["message"].startswith(words)


def test_a_budget_for_thinking(app: Starlette, engine: FakeEngine) -> None:
    thinking = {"type": "enabled", "budget_tokens": 2000}
    reply = ask(app, thinking=thinking)
    assert "thinking.budget_tokens has no effect" in reply.headers["x-quire-no-effect"]
    assert engine.calls[-1]["sampling"].thinking_token_budget is None
    for kind in ("disabled", "enabled"):  # what asks for nothing
        reply = ask(app, thinking={"type": kind, "budget_tokens": 0})
        assert reply.status == 200
        assert "x-quire-no-effect" not in reply.headers
    engine.tokenizer.chat_template_text = "</think>"
    engine.tokenizer.chat_variables = frozenset({"messages", "enable_thinking"})
    ask(build_app(engine, ServerSettings()), thinking=thinking)
    assert engine.calls[-1]["sampling"].thinking_token_budget == 2000
    assert "[enable_thinking=True]" in engine.last_prompt


def test_other_failures_in_anthropics_shape(engine: FakeEngine) -> None:
    app = build_app(engine, ServerSettings(api_key="k"))
    kinds = []
    for headers, method in (({}, "POST"), ({"x-api-key": "k"}, "GET")):
        sent = {"content-type": "application/json"} | headers
        reply = call(app, "/v1/messages", {"messages": [USER]}, headers=sent, method=method)
        kinds.append((reply.status, reply.json()["error"]["type"]))
    assert kinds == [(401, "authentication_error"), (405, "invalid_request_error")]
    wrong_model = ask(build_app(engine, ServerSettings()), model="other")
    assert (wrong_model.status, wrong_model.json()["error"]["type"]) == (404, "not_found_error")
    engine.failure, engine.fail_at = QueueFullError("full; come later"), 0
    full = ask(build_app(engine, ServerSettings()))
    assert (full.status, full.json()["error"]["type"]) == (429, "rate_limit_error")


def test_a_broken_stream_ends_with_an_error_event(app: Starlette, engine: FakeEngine) -> None:
    engine.fail_at = 2
    sent = events(ask(app, stream=True))
    assert sent[-1]["type"] == "error"
    assert sent[-1]["error"]["type"] == "api_error"
    assert "secret" not in sent[-1]["error"]["message"]
    assert "message_stop" not in [event["type"] for event in sent]
    assert sent[-1]["request_id"]


def test_what_is_for_anthropics_accounting_is_no_prompt(app: Starlette, engine: FakeEngine) -> None:
    """Claude Code begins its system prompt with it, and the number differs between sessions."""
    prompts = []
    for number in "12":
        billed = f"x-anthropic-billing-header: cc_version=2.1.{number}; cc_entrypoint=cli;"
        blocks = [{"type": "text", "text": text} for text in (billed, "be kind")]
        assert ask(app, system=blocks).status == 200
        prompts.append(engine.last_prompt)
    assert prompts == ["<system>be kind<user>hi<assistant>"] * 2
    assert ask(app, system=blocks[:1]).status == 200
    assert engine.last_prompt == "<user>hi<assistant>"


def test_what_claude_code_sends_besides(speaking: FakeEngine) -> None:
    """Long names of MCP tools, the scope of a cached prefix, what a tool search has found."""
    app, name = build_app(speaking, ServerSettings()), "mcp__" + "a" * 123
    cached = {"type": "ephemeral", "scope": "global", "ttl": "1h"}
    system = [{"type": "text", "text": "be kind", "cache_control": cached}]
    tools = [{"name": name, "input_schema": {"type": "object"}, "defer_loading": True}]
    used = {"type": "tool_use", "id": "a", "name": "ToolSearch", "input": {"query": "x"}}
    found = {"type": "tool_reference", "tool_name": name}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, used]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "a", "content": [found]}],
        },
    ]
    assert ask(app, system=system, tools=tools, messages=messages).status == 200
    assert speaking.tokenizer.seen[0][-1]["content"] == name
    refused = ask(app, tools=[tools[0] | {"name": name + "a"}])
    assert refused.json()["error"]["message"].startswith("tools[0].name: must be 1 to 128 of")
