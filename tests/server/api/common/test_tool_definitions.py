"""Tools and thoughts over HTTP: what the template gets, and how answers and streams tell them."""

from __future__ import annotations

import json
import re
from typing import Any
from unittest.mock import ANY

import pytest
from asgi_client import Reply, call
from fake_engine import FakeEngine

from quire.core.sampling_params import SamplingParams, StructuredOutputs
from quire.server.app import build_app
from quire.server.parsing.reasoning_parser import REASONING_PARSERS
from quire.server.parsing.tool_parsers import TOOL_PARSERS
from quire.server.settings import ServerSettings

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
USER = {"role": "user", "content": "hi"}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Par\\u00ees"}}\n</tool_call>'
ARGUMENTS = '{"city": "Par\\u00ees"}'


class Server:
    """A scripted engine whose template has tools and thoughts, as Qwen3's does."""

    def __init__(self, script: str, **settings: Any) -> None:
        self.engine = FakeEngine(script=script)
        self.tokenizer = self.engine.tokenizer
        self.tokenizer.chat_template_text = "{{ tools }} <tool_call> <think></think>"
        self.tokenizer.chat_variables = frozenset({"messages", "tools", "enable_thinking"})
        self.settings = ServerSettings(**settings)

    def chat(self, **fields: Any) -> Reply:
        app = build_app(self.engine, self.settings)
        body = {"messages": [USER], "tools": [WEATHER, NOW]} | fields
        return call(app, "/v1/chat/completions", body)


def message(reply: Reply) -> dict[str, Any]:
    (choice,) = reply.json()["choices"]
    said = choice["message"]
    thoughts = {"reasoning", "reasoning_content"}
    said = {name: v for name, v in said.items() if v is not None or name not in thoughts}
    return said | {"finish_reason": choice["finish_reason"]}


def streamed(reply: Reply) -> dict[str, Any]:
    """The message that a client puts together, in the shape of a whole answer's."""
    found: dict[str, Any] = {"role": "", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    *chunks, done = reply.events
    assert done == "[DONE]"
    for chunk in chunks:
        (choice,) = chunk["choices"]
        found["finish_reason"] = choice["finish_reason"]
        for name, value in choice["delta"].items():
            if name != "tool_calls":
                found[name] = found.get(name, "") + value
        for part in choice["delta"].get("tool_calls", ()):
            index = part.pop("index")
            if index in calls:
                assert list(part) == ["function"]
                assert list(part["function"]) == ["arguments"]
                calls[index]["function"]["arguments"] += part["function"]["arguments"]
            else:
                calls[index] = part
    if calls:
        found |= {"content": found["content"] or None, "tool_calls": list(calls.values())}
    return found


def without_ids(found: dict[str, Any]) -> dict[str, Any]:
    for made in found.get("tool_calls", ()):
        assert re.fullmatch(r"call_[0-9a-f]{24}", made.pop("id"))
    return found


SCRIPTS = [
    CALL,
    f"I ask.\n{CALL}\n{CALL}",
    '<think>\nhm\n</think>\n\n<tool_call>{"name": "now"}</tool_call>',
    "<think>hm</think>It rains.",
    '<tool_call>{"name": "weather", "arguments": {"city": "Par',
    '<tool_call>{"name": "delete", "arguments": {}}</tool_call>',
    "Hello!",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_stream_equals_the_full_answer(script: str) -> None:
    server = Server(script)
    whole = without_ids(message(server.chat()))
    assert without_ids(streamed(server.chat(stream=True))) == whole


def test_a_call() -> None:
    found = message(Server(CALL).chat())
    (made,) = found.pop("tool_calls")
    assert found == {"role": "assistant", "content": None, "finish_reason": "tool_calls"}
    assert made.pop("id").startswith("call_")
    assert made == {
        "type": "function",
        "function": {"name": "weather", "arguments": ARGUMENTS},
    }


def test_the_parts_of_a_streamed_call() -> None:
    server = Server(CALL)
    chunks = [chunk["choices"][0] for chunk in server.chat(stream=True).events[:-1]]
    parts = [part for c in chunks for part in c["delta"].get("tool_calls", ())]
    assert parts[0]["function"] == {"name": "weather", "arguments": ""}
    assert (parts[0]["index"], parts[0]["type"]) == (0, "function")
    arguments = [part["function"]["arguments"] for part in parts[1:]]
    assert len(arguments) > 10  # as they come
    assert "".join(arguments) == ARGUMENTS
    assert chunks[-1]["finish_reason"] == "tool_calls"
    assert all(c["delta"] for c in chunks[1:-1])  # what was held back is no chunk
    assert [c["delta"].get("content") for c in chunks[1:]] == [None] * (len(chunks) - 1)


def test_thoughts_have_both_names_and_can_be_left_out() -> None:
    server = Server("<think>\nhm\n</think>\n\nyes")
    found = {"role": "assistant", "content": "yes", "finish_reason": "stop"}
    both = {"reasoning_content": "hm", "reasoning": "hm"}
    assert message(server.chat()) == found | both
    assert message(server.chat(include_reasoning=False)) == found
    assert streamed(server.chat(include_reasoning=False, stream=True)) == found


def test_a_thought_that_the_prompt_opens() -> None:
    server = Server("hm</think>yes")
    opened = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>\n"}]
    found = message(server.chat(messages=opened, add_generation_prompt=False))
    assert (found["reasoning"], found["content"]) == ("hm", "yes")
    assert message(server.chat())["content"] == "hm</think>yes"


def test_only_complete_calls_are_the_reason_for_the_end() -> None:
    server = Server(CALL)
    found = message(server.chat(max_tokens=len(CALL) - 20))
    assert found["tool_calls"][0]["function"]["arguments"] in ARGUMENTS
    assert found["finish_reason"] == "stop"  # as the script ends; "length" stays what it is
    broken = message(Server(CALL.replace("}}", "]")).chat())
    assert (broken["finish_reason"], broken["content"]) == ("stop", "]\n</tool_call>")


def test_at_most_one_call() -> None:
    found = message(Server(f"{CALL}\n{CALL} so").chat(parallel_tool_calls=False))
    assert (len(found["tool_calls"]), found["content"]) == (1, None)


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_called_of_those_that_the_model_sees(mode: str) -> None:
    server = Server(f'<tool_call>{{"name": "now", "arguments": {{}}}}</tool_call>\n{CALL}')
    found = message(server.chat(tool_choice=allowed(mode, "weather", "weather")))
    assert [made["function"]["name"] for made in found["tool_calls"]] == ["weather"]
    assert server.tokenizer.seen[1] == [WEATHER, {**NOW, "function": ANY}]
    constraint = server.engine.calls[-1]["sampling"].structured_outputs
    assert (constraint is not None) == (mode == "required")
    if constraint:
        assert '"now' not in constraint.grammar


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_function_is_called_exactly_once(stream: bool) -> None:
    server = Server(f"{CALL}\n{CALL} so")
    named = {"type": "function", "function": {"name": "weather"}}
    reply = server.chat(tool_choice=named, parallel_tool_calls=True, stream=stream)
    found = without_ids(streamed(reply) if stream else message(reply))
    assert (len(found["tool_calls"]), found["content"]) == (1, None)
    assert found["finish_reason"] == "tool_calls"
    constraint = server.engine.calls[-1]["sampling"].structured_outputs
    assert "call)*" not in constraint.text
    server.chat(tool_choice="required")
    assert "call)*" in server.engine.calls[-1]["sampling"].structured_outputs.text


def test_foreign_ids_fit_the_template() -> None:
    """Mistral's templates take nothing but nine letters and digits."""
    made = {"id": "toolu_0123", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [made, made | {"id": "abcdefgh9"}]},
        {"role": "tool", "content": "noon", "tool_call_id": "toolu_0123"},
        {"role": "tool", "content": "noon", "tool_call_id": "abcdefgh9"},
    ]
    for parser, fits in (("hermes", "toolu_0123"), ("mistral", "[0-9a-f]{9}")):
        server = Server("so", tool_call_parser=parser)
        assert server.chat(messages=messages).status == 200
        said, first, second = server.tokenizer.seen[0]
        ids = [call["id"] for call in said["tool_calls"]]
        assert ids == [first["tool_call_id"], second["tool_call_id"]]
        assert re.fullmatch(fits, ids[0])
        assert ids[1] == "abcdefgh9"


def test_without_tools_nothing_is_a_call() -> None:
    server = Server(CALL)
    for fields in ({"tools": []}, {"tool_choice": "none"}):
        assert message(server.chat(**fields)) == {
            "role": "assistant",
            "content": CALL,
            "finish_reason": "stop",
        }
        assert server.tokenizer.seen[1] is None


def test_several_answers_have_parsers_of_their_own() -> None:
    server = Server(CALL)
    assert len(server.chat(n=2).json()["choices"]) == 2
    *chunks, _ = server.chat(n=2, stream=True).events
    ends = [c["choices"][0]["finish_reason"] for c in chunks]
    assert [end for end in ends if end] == ["tool_calls"] * 2


def test_logprobs_and_ids_come_with_every_token() -> None:
    *chunks, _ = Server(CALL).chat(stream=True, logprobs=True, return_token_ids=True).events
    choices = [chunk["choices"][0] for chunk in chunks]
    ids = [i for choice in choices for i in choice.get("token_ids", ())]
    assert "".join(map(chr, ids)) == CALL
    assert sum(len(c["logprobs"]["content"]) for c in choices if c["logprobs"]) == len(CALL)


def test_what_the_template_gets() -> None:
    server = Server("It rains.")
    made = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [made], "reasoning_content": "hm"},
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
        {"role": "assistant", "content": "", "reasoning": "ah", "tool_calls": None},
        {"role": "assistant", "reasoning": "so"},
    ]
    assert server.chat(messages=messages).status == 200
    seen, tools = server.tokenizer.seen
    assert seen == [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [made], "reasoning_content": "hm"},
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
        {"role": "assistant", "content": "", "reasoning_content": "ah"},
        {"role": "assistant", "content": "", "reasoning_content": "so"},
    ]
    assert tools[0] == WEATHER
    empty = {"type": "object", "properties": {}}
    assert tools[1]["function"] == {"name": "now", "parameters": empty}


def test_the_parser_sees_control_tokens_that_the_text_leaves_out() -> None:
    server = Server(CALL)
    server.tokenizer.control_tokens = {"<tool_call>": 7, "</think>": 9, "other": 8}
    server.chat()
    server.chat(tools=[])
    token_ids = [call["sampling"].kept_token_ids for call in server.engine.calls]
    assert token_ids == [[9, 7], [9]]


def test_efforts_go_by_the_names_of_the_template() -> None:
    server = Server("yes")
    server.chat(reasoning_effort="none")
    assert "[enable_thinking=False]" in server.engine.last_prompt
    server.tokenizer.chat_variables |= {"reasoning_effort"}
    server.chat(reasoning_effort="low")
    assert "[reasoning_effort=low]" in server.engine.last_prompt


def schema(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f"} | fields}]}


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"properties": value}
    return value


ASSISTANT: dict[str, Any] = {"role": "assistant", "content": "a"}
MADE = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (schema(name="a b"), "tools[0].function.name"),
    (schema(name="f\n"), "tools[0].function.name"),
    (schema(name="x" * 129), "tools[0].function.name"),
    (schema(nam="f"), "tools[0].function.nam"),
    (schema(parameters=deep(33)), "tools[0].function.parameters"),
    (schema(parameters={"type": "array"}), "tools[0].function.parameters.type"),
    (schema(description="x" * (256 << 10)), "tools"),
    ({"tools": [NOW] * 129}, "tools"),
    ({"tools": [NOW, NOW]}, "tools[1].function.name"),
    ({"tools": [{**NOW, "type": "code"}]}, "tools[0].type"),
    ({"tools": [{**NOW, "x": 1}]}, "tools[0].x"),
    ({"tool_choice": "always"}, "tool_choice"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.function.name"),
    ({"tool_choice": allowed("auto", "now", "g")}, "tool_choice.allowed_tools.tools"),
    ({"tool_choice": allowed("any", "now")}, "tool_choice.allowed_tools.mode"),
    ({"tool_choice": {"type": "any", "function": {"name": "now"}}}, "tool_choice.type"),
    ({"messages": [{**USER, "tool_calls": [MADE]}]}, "messages[0].tool_calls"),
    ({"messages": [{**USER, "reasoning": "hm"}]}, "messages[0].reasoning"),
    ({"messages": [{**USER, "tool_call_id": "c"}]}, "messages[0].tool_call_id"),
    ({"messages": [{**USER, "role": "tool"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "tool", "tool_call_id": "c"}]}, "messages[0].content"),
    ({"messages": [{**ASSISTANT, "tool_calls": [MADE] * 129}]}, "messages[0].tool_calls"),
    (
        {"messages": [{**ASSISTANT, "tool_calls": [{**MADE, "type": "x"}]}]},
        "messages[0].tool_calls[0].type",
    ),
    (
        {"messages": [{**ASSISTANT, "tool_calls": [{**MADE, "x": "x"}]}]},
        "messages[0].tool_calls[0].x",
    ),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    reply = Server("yes").chat(**fields)
    assert (reply.status, reply.error["param"]) == (400, param), reply.body


def constraint_of(**fields: Any) -> StructuredOutputs | None:
    server = Server(CALL)
    assert server.chat(**fields).status == 200
    sampling: SamplingParams = server.engine.calls[-1]["sampling"]
    return sampling.structured_outputs


@pytest.mark.parametrize("name", ["weather", "now"])
def test_one_function_is_forced(name: str) -> None:
    constraint = constraint_of(tool_choice={"type": "function", "function": {"name": name}})
    assert constraint is not None
    assert (constraint.kind, constraint.name) == ("grammar", "tools")
    assert f'\\"name\\": \\"{name}\\"' in constraint.text
    assert constraint.text.count("arguments_") == 2  # a rule, and its one use


def test_calls_are_required() -> None:
    constraint = constraint_of(tool_choice="required")
    assert constraint is not None
    assert "call: call_0 | call_1" in constraint.text
    assert '"city": {"type": "string"}' in constraint.text
    assert '"properties": {}, "additionalProperties": false' in constraint.text
    assert "lead" not in constraint.text


def test_only_strict_tools_are_held_to_their_schema() -> None:
    strict = {"type": "function", "function": WEATHER["function"] | {"name": "s", "strict": True}}
    assert constraint_of(tools=[WEATHER, NOW]) is None
    constraint = constraint_of(tools=[WEATHER, strict])
    assert constraint is not None
    assert 'arguments_0: %json {"type": "object", "x-guidance"' in constraint.text
    assert '"city": {"type": "string"}' in constraint.text
    assert "lead[lazy]" in constraint.text
    assert constraint_of(tools=[strict], tool_choice="none") is None


JSON_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"q": {}}}},
}


def test_each_schema_has_its_lines_in_the_grammar() -> None:
    constraint = constraint_of(
        tool_choice={"type": "function", "function": {"name": NOW["function"]["name"]}}
    )
    assert constraint is not None
    ((line, field),) = (constraint.fields_of_lines or {}).items()
    assert constraint.text.splitlines()[line - 1].startswith("arguments_0: %json")
    assert field == "tools[1].function.parameters"


def test_a_response_format_applies_to_the_text_alone() -> None:
    constraint = constraint_of(response_format=JSON_FORMAT)
    assert constraint is not None
    assert constraint.name == "response_format.json_schema.schema"
    start = constraint.text.splitlines()[0]
    assert start.startswith("start: (")
    assert start.endswith("| form)")
    assert constraint.thought_mark == "<think>"
    constraint = constraint_of(response_format=JSON_FORMAT, tools=[])
    assert constraint is not None
    assert constraint.text.startswith("start: form\n")
    constraint = constraint_of(response_format=JSON_FORMAT, tool_choice="required")
    assert constraint is not None
    assert "form" not in constraint.text


def test_grammars_are_unchanged_without_reasoning_and_tools() -> None:
    server = Server("{}", reasoning_parser="none")
    assert server.chat(response_format=JSON_FORMAT, tools=[]).status == 200
    assert server.engine.calls[-1]["sampling"].structured_outputs.kind == "json"


def test_a_grammar_that_excludes_reasoning_is_refused() -> None:
    reply = Server("a").chat(guided_json="[]")
    assert (reply.status, reply.error["param"]) == (400, "guided_json")


def test_parameters_that_a_format_cannot_write() -> None:
    server = Server(CALL, tool_call_parser="qwen3_coder")
    odd = schema(strict=True, parameters={"properties": {"a>b": {}}})
    reply = server.chat(**odd)
    assert (reply.status, reply.error["param"]) == (400, "tools")


def test_schemas_may_be_large_and_deep() -> None:
    server = Server("yes")
    assert server.chat(**schema(parameters=deep(32))).status == 200
    many = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(128)]
    assert server.chat(tools=many).status == 200


def test_models_without_tools_say_so() -> None:
    server = Server(CALL)
    assert "--tool-call-parser" in Server(CALL, tool_call_parser="none").chat().error["message"]
    server.tokenizer.chat_variables = frozenset({"messages"})
    assert "does not read them" in server.chat().error["message"]
    assert server.chat(tool_choice="none").status == 200


def test_formats_can_be_configured() -> None:
    server = Server('{"name": "now", "parameters": {}}', tool_call_parser="llama3")
    assert message(server.chat())["finish_reason"] == "tool_calls"
    plain = Server("<think>hm</think>", reasoning_parser="none")
    assert message(plain.chat())["content"] == "<think>hm</think>"


def test_every_format_can_be_chosen() -> None:
    for name in TOOL_PARSERS:
        assert ServerSettings(tool_call_parser=name).tool_call_parser == name  # type: ignore[arg-type]
    hints = json.dumps(str(ServerSettings.__annotations__))
    for name in (*TOOL_PARSERS, *REASONING_PARSERS):
        assert name in hints


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_generated_after_the_only_call_that_may_be(stream: bool) -> None:
    server = Server(f"I ask.\n{CALL}\n{CALL} and so on")
    reply = server.chat(parallel_tool_calls=False, stream=stream)
    found = without_ids(streamed(reply) if stream else message(reply))
    assert found["finish_reason"] == "tool_calls"
    assert len(found["tool_calls"]) == 1
    end = len(f"I ask.\n{CALL}") - len("</tool_call>")
    assert server.engine.num_sent <= end
    server = Server(f"{CALL}\n{CALL}")
    server.chat(stream=stream)
    assert server.engine.num_sent == len(f"{CALL}\n{CALL}")


def test_tokens_of_thoughts_are_counted() -> None:
    usage = Server("<think>hm</think>It rains.").chat().json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len("<think>hm</think>")}
    usage = Server("It rains.").chat(include_reasoning=False).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last, _ = Server("<think>hm</think>It rains.").chat(n=2, **options).events
    usage = last["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2 * len("<think>hm</think>")}
