"""/v1/responses: what the template gets, the order of events, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgi_client import Reply, call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.core.sampling_params import SamplingParams
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.openai.responses_request import ResponsesRequest
from quire.server.app import build_app
from quire.server.settings import ServerSettings

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
CALL = '<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>'


@pytest.fixture
def speaking() -> FakeEngine:
    """An engine whose template knows tools and thoughts."""
    engine = FakeEngine(script=f"<think>hm</think>Well. {CALL}{CALL}")
    engine.tokenizer.chat_template_text = "<tool_call></think>"
    engine.tokenizer.chat_variables = frozenset({"messages", "tools"})
    return engine


def ask(app: Starlette, **fields: Any) -> Reply:
    return call(app, "/v1/responses", {"input": "hi"} | fields)


def events(reply: Reply) -> list[dict[str, Any]]:
    """The data of a stream's events: named by their type, numbered from 0."""
    *parts, tail = reply.body.decode().split("\n\n")
    assert tail == ""
    sent = []
    for number, part in enumerate(parts):
        name, data = part.split("\n")
        sent.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {sent[-1]['type']}"
        assert sent[-1]["sequence_number"] == number
    return sent


@pytest.mark.parametrize(
    ("cut", "status"), [("}</tool_call>", "completed"), ("}}</tool_call>", "incomplete")]
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ending", ["length", "stop"])
def test_a_call_is_incomplete_if_its_arguments_are(
    speaking: FakeEngine, cut: str, status: str, stream: bool, ending: str
) -> None:
    """Nobody makes an incomplete one, so it is left out of later prompts.

    A stop string cuts arguments as max_tokens does; then the response is complete.
    """
    speaking.script, speaking.ending = CALL.removesuffix(cut), ending
    app = build_app(speaking, ServerSettings())
    reply = ask(app, tools=[TOOL], stream=stream)
    response = events(reply)[-1]["response"] if stream else reply.json()
    (made,) = response["output"]
    assert response["status"] == ("incomplete" if ending == "length" else "completed")
    assert made["status"] == status
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "a cat"}
    ask(app, input=[result], tools=[TOOL], previous_response_id=response["id"])
    asked = [each for each in speaking.tokenizer.seen[0] if each.get("tool_calls")]
    assert len(asked) == (status == "completed")


def test_whole_answer(app: Starlette, engine: FakeEngine) -> None:
    reply = ask(app, instructions="be kind", metadata={"a": "b"}, max_output_tokens=50).json()
    assert "".join(map(chr, engine.calls[0]["ids"])) == "<system>be kind<user>hi<assistant>"
    assert reply["id"].startswith("resp_")
    (message,) = reply["output"]
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}],
        "status": "completed",
    }
    assert (reply["object"], reply["status"], reply["error"]) == ("response", "completed", None)
    assert (reply["metadata"], reply["max_output_tokens"]) == ({"a": "b"}, 50)
    assert reply["usage"] == {
        "input_tokens": 34,
        "input_tokens_details": {"cached_tokens": 17, "cache_write_tokens": 0},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 40,
    }


def test_events_come_in_order(app: Starlette) -> None:
    sent = events(ask(app, stream=True))
    assert [event["type"].removeprefix("response.") for event in sent] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 6,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert sent[0]["response"]["status"] == "in_progress"
    assert sent[2]["item"]["content"] == []
    assert sent[10]["text"] == "".join(event["delta"] for event in sent[4:10]) == "Hello!"
    assert sent[-1]["response"]["output"] == [sent[-2]["item"]]
    assert sent[-1]["response"]["usage"]["output_tokens"] == 6


def test_thoughts_and_calls_are_items_streamed_as_whole(speaking: FakeEngine) -> None:
    app = build_app(speaking, ServerSettings())
    whole = ask(app, tools=[TOOL]).json()["output"]
    assert [i["type"] for i in whole] == ["reasoning", "message", *["function_call"] * 2]
    assert json.loads(whole[2]["arguments"]) == {"at": "x"}
    sent = events(ask(app, tools=[TOOL], stream=True))
    streamed = sent[-1]["response"]["output"]
    for one in (whole, streamed):
        for item in one:
            del item["id"]
            item.pop("call_id", None)
    assert streamed == whole
    deltas: dict[int, str] = {}
    for event in sent:
        if event["type"].endswith(".delta"):
            index = event["output_index"]
            deltas[index] = deltas.get(index, "") + event["delta"]
    assert deltas == {
        0: "hm",
        1: whole[1]["content"][0]["text"],
        2: whole[2]["arguments"],
        3: whole[3]["arguments"],
    }


def test_text_after_thoughts_has_its_logprobs_however_it_comes(speaking: FakeEngine) -> None:
    speaking.script = "<think>hm</think>Yes, \u00e9 \U0001f600."
    app = build_app(speaking, ServerSettings())
    asked = {"include": ["message.output_text.logprobs"], "tools": [TOOL]}
    whole = ask(app, **asked).json()["output"][-1]["content"][0]
    streamed = events(ask(app, **asked, stream=True))[-1]["response"]["output"][-1]["content"][0]
    assert whole == streamed
    spelled = "".join(one["token"] for one in whole["logprobs"])
    assert spelled == f"</think>{whole['text']}"


def test_allowed_tools_are_called_any_number_of_times(speaking: FakeEngine) -> None:
    app = build_app(speaking, ServerSettings())
    look, other = {"type": "function", "name": "look"}, {**TOOL, "name": "other"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [look]}
    reply = ask(app, tools=[TOOL, other], tool_choice=choice).json()
    assert [i["type"] for i in reply["output"]].count("function_call") == 2
    assert reply["tool_choice"] == choice


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_is_called_exactly_once(speaking: FakeEngine, stream: bool) -> None:
    app = build_app(speaking, ServerSettings())
    choice = {"type": "function", "name": "look"}
    reply = ask(app, tools=[TOOL], tool_choice=choice, stream=stream)
    whole = events(reply)[-1]["response"] if stream else reply.json()
    assert [i["type"] for i in whole["output"]].count("function_call") == 1


def test_items_as_the_template_sees_them(speaking: FakeEngine) -> None:
    app = build_app(speaking, ServerSettings())
    reply = ask(app, tools=[TOOL]).json()  # an answer can be sent back as it is
    result = {"type": "function_call_output", "call_id": "c", "output": "no"}
    words = {"role": "user", "content": [{"type": "input_text", "text": "so"}]}
    again = ask(app, tools=[TOOL], input=[words, *reply["output"], result, words])
    assert again.status == 200
    messages, tools = speaking.tokenizer.seen
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[1]["reasoning_content"] == "hm"
    assert [call["function"]["name"] for call in messages[1]["tool_calls"]] == ["look", "look"]
    assert (messages[2]["content"], messages[2]["tool_call_id"]) == ("no", "c")
    assert tools[0]["function"]["name"] == "look"


def test_a_call_that_was_cut_is_no_part_of_what_follows(speaking: FakeEngine) -> None:
    app = build_app(speaking, ServerSettings())
    call = {"type": "function_call", "call_id": "c", "name": "look"}
    cut = call | {"arguments": '{"query": "', "status": "incomplete"}
    words = {"role": "user", "content": "so"}
    assert ask(app, tools=[TOOL], input=[words, cut, words]).status == 200
    assert [message["role"] for message in speaking.tokenizer.seen[0]] == ["user", "user"]
    whole = call | {"arguments": "{}", "status": "completed"}
    assert ask(app, tools=[TOOL], input=[words, whole, words]).status == 200
    assert [message["role"] for message in speaking.tokenizer.seen[0]][1] == "assistant"


def test_sampling_params_reach_the_sampler(app: Starlette, engine: FakeEngine) -> None:
    schema = {"type": "object"}
    text_format = {"type": "json_schema", "name": "n", "schema": schema}
    ask(app, max_output_tokens=3, temperature=0.5, top_p=0.9, text={"format": text_format})
    sampling = engine.calls[0]["sampling"]
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (3, 0.5, 0.9)
    assert json.loads(sampling.structured_outputs.json) == schema
    assert sampling.structured_outputs.name == "text.format.schema"  # as errors of it call it


def test_structural_tags_are_those_of_chats(app: Starlette, engine: FakeEngine) -> None:
    tag = {"begin": "<a>", "schema": {"type": "object"}, "end": "</a>"}
    older = {"structures": [tag], "triggers": ["<a"]}
    newer = {"format": {"type": "const_string", "value": "x"}}
    messages = [{"role": "user", "content": "a"}]
    for given in ({"type": "structural_tag", **fields} for fields in (older, newer)):
        assert ask(app, text={"format": given}).json()["text"]["format"] == given
        call(app, "/v1/chat/completions", {"messages": messages, "response_format": given})
        ours, chats = (each["sampling"].structured_outputs for each in engine.calls[-2:])
        assert json.loads(ours.structural_tag) == json.loads(chats.structural_tag)
        assert ours.name == "text.format"
    assert ask(app, text={"format": {"type": "text", **older}}).error["param"] == (
        "text.format.structures"
    )


def test_sampling_fields_of_chats(app: Starlette, engine: FakeEngine) -> None:
    fields = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.5, "seed": 3, "stop": "x"}
    ask(app, **fields, priority=0, chat_template_kwargs={"mood": "calm"})
    sampling = engine.calls[0]["sampling"]
    assert (sampling.top_k, sampling.min_p, sampling.seed) == (5, 0.1, 3)
    assert (sampling.repetition_penalty, sampling.stop) == (1.5, ["x"])
    assert "[mood=calm]" in "".join(map(chr, engine.calls[0]["ids"]))
    assert ask(app, chat_template_kwargs={"messages": 1}).status == 400
    elsewhere = {"n", "max_tokens", "thinking_token_budget", "structured_outputs"}
    logprobs = {"logprobs", "prompt_logprobs", "logprob_token_ids"}
    of_chats = set(ChatRequest.__struct_fields__) & set(SamplingParams.__struct_fields__)
    assert of_chats - set(ResponsesRequest.__struct_fields__) == elsewhere | logprobs
    ask(app, min_tokens=2, bad_words=["a"], allowed_token_ids=[5, 6], stop_token_ids=[7])
    sampling = engine.calls[-1]["sampling"]
    assert (sampling.min_tokens, sampling.bad_words) == (2, ["a"])
    assert (sampling.allowed_token_ids, sampling.stop_token_ids) == ([5, 6], [7])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "ghost", "content": ""}]}, "input[0].role"),
        ({"input": [{"type": "image"}]}, "input[0].type"),
        ({"input": ["a"]}, "input[0]"),
        ({"input": [{}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": "a", "x": 1}]}, "input[0].x"),
        ({"background": 1}, "background"),
        ({"instrutions": "a"}, "instrutions"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 5000}, "input"),
        ({"temperature": -1}, "temperature"),
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"model": "other"}, "model"),
        ({"include": ["foo"]}, "include[0]"),
    ],
)
def test_refusals(app: Starlette, fields: dict[str, Any], param: str) -> None:
    reply = ask(app, **fields)
    assert reply.status in (400, 404)
    assert reply.error["param"] == param
    assert reply.error["message"].startswith(f"{param}: ")


def test_hints_without_effect(app: Starlette) -> None:
    sent = ask(
        app,
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low"},
        stream=True,
        stream_options={"include_obfuscation": True},
    ).headers["x-quire-no-effect"]
    for name in (
        "include: 'reasoning.encrypted_content'",
        "reasoning.summary",
        "text.verbosity",
        "include_obfuscation",
    ):
        assert f"{name} has no effect: " in sent


def test_a_broken_stream_ends_with_an_error_event(app: Starlette, engine: FakeEngine) -> None:
    engine.fail_at = 2
    sent = events(ask(app, stream=True))
    assert (sent[-1]["type"], sent[-1]["code"]) == ("error", "internal_error")
    assert "secret" not in sent[-1]["message"]
