"""The request fields: each is honoured at its bounds and refused by name beyond them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from asgi_client import Post, call
from fake_engine import FakeEngine
from read_fields import unread_fields
from starlette.applications import Starlette

from quire.core.sampling_params import SamplingParams
from quire.server.api.common import chat_messages, chat_request, generation_request
from quire.server.api.openai import completions_request, tokenize
from quire.server.app import build_app
from quire.server.settings import ServerSettings

# field: (values that are taken, values that are refused); the prompt has 3 tokens, the context 1024
SHARED: dict[str, tuple[list[Any], list[Any]]] = {
    "n": ([1, 16, None], [-1, 0, 17, 2**31, 2**63, 2**64, 1.0, 1.5, "1", True]),
    "temperature": ([0, 0.5, 100, None], [-0.1, 100.1, 1e308, "1", True]),
    "top_p": ([0.01, 1, None], [-0.1, 0, 1.1, 1e308, "1"]),
    "top_k": ([-1, 0, 1, 2**31 - 1, None], [-2, 2**31, 2**64, 0.5]),
    "min_p": ([0, 1, None], [-0.1, 1.1, "0"]),
    "presence_penalty": ([-2, 2, None], [-2.1, 2.1]),
    "frequency_penalty": ([-2, 2, None], [-2.1, 2.1]),
    "repetition_penalty": ([0.1, 1, 100, None], [-1, 0, 100.1]),
    "logit_bias": (
        [{}, {"5": 1}, {"5": -100, "6": 100.0}, None],
        [
            {"a": 1},
            {"-1": 1},
            {"1.5": 1},
            {"5": 101},
            {"5": "1"},
            {"9999999": 1},
            {"9" * 99: 1},
            [5],
        ],
    ),
    "seed": ([-(2**63), 0, 2**63 - 1, None], [-(2**63) - 1, 2**63, 2**64, 0.5, "a"]),
    "stop": (
        ["a", ["a", "b"], [], ["x" * 256] * 16, None],
        ["", [""], ["x"] * 17, "x" * 257, [1], 1, {}],
    ),
    "stop_token_ids": (
        [[], [0, 5], [5] * 128, None],
        [[-1], [0x110000], [2**64], ["a"], 5, [True], [5] * 129],
    ),
    "include_stop_str_in_output": ([True, False, None], [1, "true"]),
    "max_tokens": ([-1, 1, 1021, None], [-2, 0, 1022, 2**31, 2**64, 1.0, "1", True]),
    "min_tokens": ([0, 1, None], [-1, 2**31, 0.5]),
    "ignore_eos": ([True, False, None], [1, "yes"]),
    "logprob_token_ids": ([None], [[], [0], [-1], [0] * 1025, [0.5], 5]),  # it needs logprobs
    "thinking_token_budget": ([-1, 0, None], [5, -2, 2**31, 1.0]),  # no marks are known here
    "prompt_logprobs": ([0, 20, None], [-1, -2, 21, 2**64, True]),
    "bad_words": (
        [[], ["a"], ["x" * 256] * 128, None],
        [[""], "a", [1], ["a"] * 129, ["x" * 257]],
    ),
    "allowed_token_ids": (
        [[5], [0, 5, 5], [5] * 131072, None],
        [[], [-1], [0x110000], ["a"], 5, [True], [5] * 131073],
    ),
    "skip_special_tokens": ([True, False, None], [0]),
    "stream": ([True, False, None], [1, "true"]),
    "user": (["", "someone", "x" * 512, None], ["x" * 513, 1]),
    "priority": ([-(2**31), 0, 2**31 - 1, None], [-(2**31) - 1, 2**31, 0.5]),
    "cache_salt": (["", "x" * 512, None], ["x" * 513, 1]),
    "return_token_ids": ([True, False, None], [1]),
    "timeout": ([0.5, 1, 1e9, None], [0, -1, "5", True]),
    "model": (["fake", None], [1]),
    "response_format": (
        [
            *[{"type": "text"}, {"type": "json_object"}, None],
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": True}},
            {"type": "json_schema", "json_schema": {"schema": {}}},
        ],
        [
            *[{}, {"type": "xml"}, {"type": "text", "x": 1}, {"type": "json_schema"}, "text", 1],
            {"type": "json_schema", "json_schema": {"name": "a"}},
            {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": True}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "stirct": True}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"x": "x" * 65536}}},
        ],
    ),
    "structured_outputs": (
        [
            *[{"regex": "a"}, {"choice": ["a"]}, {"grammar": "start: A"}, {"json": {}}, None],
            *[{"json": "{}"}, {"json_object": True}, {"regex": "a", "json_object": False}],
            {"regex": "a", "structural_tag": None, "disable_any_whitespace": False},
            {"json": {}, "whitespace_pattern": "[ \\n]{1,4}", "disable_any_whitespace": False},
            {"json_object": True, "disable_any_whitespace": True, "whitespace_pattern": None},
            *[{"structural_tag": "{}"}, {"structural_tag": {"type": "structural_tag"}}],
        ],
        [
            *[{}, {"json_object": False}, {"regex": "a", "choice": ["a"]}, {"regx": "a"}, "a"],
            *[{"regex": "a", "whitespace_pattern": " "}, {"structural_tag": []}, {"json": []}],
            *[
                {"json": {}, "whitespace_pattern": "a"},
                {"regex": "a", "disable_any_whitespace": True},
            ],
            {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True},
        ],
    ),
    "guided_json": ([{}, "{}", None], [[], 1, True]),
    "guided_whitespace_pattern": ([None], [" ", "a", 1]),  # it needs guided_json
    "guided_regex": (["a", None], ["", "a" * 4097, 1]),
    "guided_choice": ([["a"], None], [[], "a", ["a"] * 1001, [1]]),
    "json_schema": ([{}, "{}", None], [[], 1, True]),
    "grammar": (['root ::= "a"', "", None], ["a" * 65537, 1]),
    "return_tokens_as_token_ids": ([True, False, None], [1]),
    "return_progress": ([True, False, None], [1]),
    "timings_per_token": ([True, False, None], [1]),
    "truncate_prompt_tokens": ([1, 5, -1, None], [0, -2, 1025, 0.5, "a"]),
    "truncation_side": (["left", "right", None], ["both", 1]),
    "add_special_tokens": ([True, False, None], [1]),
    "guided_grammar": (["start: A", None], ["", "a" * 65537, 1]),
}
COMPLETION = SHARED | {
    "min_tokens": ([0, 16], [17]),  # max_tokens is 16 unless it is given
    "echo": ([True, False, None], [1, "true"]),
    "logprobs": ([0, 20, None], [-1, -2, 21, 2**64, True, 1.5]),
    "prompt": (
        ["a", ["a", "b"], [5], [[5], [6, 7]], "a" * 1023],
        [
            *["", [], [[]], ["a", 5], [5, "a"], [[5], "a"], [[[5]]], None, 5, {"a": 1}],
            *[[-1], [0x110000], [2**64], [True], [1.0], [5] * 1024, ["a"] * 1025, "a" * 65537],
        ],
    ),
    "suffix": (["", None], ["a"]),
    "best_of": ([1, None], [2, True]),
}


def nested(depth: int) -> list[Any]:
    """Lists in one another."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


USER = {"role": "user", "content": "hi"}
CHAT = SHARED | {
    "max_tokens": ([-1, 1, 1005, None], [-2, 0, 1006, 2**64]),
    "max_completion_tokens": ([-1, 1, 1005, None], [-2, 0, 1006, 2**31, 2**64, 1.0]),
    "logprobs": ([True, False, None], [1, 0, "true"]),
    "top_logprobs": ([None], [1, -1, 21]),  # it needs logprobs
    "add_generation_prompt": ([True, False, None], [1]),
    "chat_template_kwargs": (
        [{}, {"thinking": False}, {"a": nested(15)}, None],
        [
            *[{"messages": []}, {"tools": []}, {"self": 1}, {"add_generation_prompt": True}],
            *[[], "a", {"a": nested(16)}, {"a": nested(900)}, {"a": "x" * (16 << 10)}],
        ],
    ),
    "messages": (
        [
            [USER],
            [{"role": "system", "content": ""}, USER],
            [{**USER, "name": "bob"}],
            [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
            [USER, {"role": "assistant", "content": "a", "refusal": None, "tool_calls": []}, USER],
        ],
        [
            [],
            None,
            "hi",
            ["hi"],
            [{}],
            [{"role": "user"}],
            [{"content": "a"}],
            [{**USER, "role": "tool"}],
            [{**USER, "content": None}],
            [{**USER, "content": 5}],
            [{**USER, "nam": "bob"}],
            [{**USER, "tool_calls": [1]}],
            [{**USER, "content": "a" * 65537}],
            [{**USER, "content": ""}] * 4097,
            [{**USER, "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            [{**USER, "content": [{"type": "text", "text": "a", "x": 1}]}],
        ],
    ),
    "tools": ([[], None], [[{"type": "function", "function": {"name": "f"}}], {}, [{}]]),
    "tool_choice": (["none", "auto", None], ["required", "f", {"type": "function"}, 1]),
    "parallel_tool_calls": ([True, False, None], [1]),
    "reasoning_effort": ([None, "low"], [1]),
    "include_reasoning": ([True, False, None], [0]),
    "metadata": ([None, {}, {"a": "b"}], [{"a": 1}, [], {str(i): "" for i in range(17)}]),
    "store": ([False, True, None], []),
    "continue_final_message": ([False, True, None], [1]),
    "echo": ([True, False, None], [1]),
}

CASES = [
    (route, field, value, good)
    for route, table in (("complete", COMPLETION), ("chat", CHAT))
    for field, (taken, refused) in table.items()
    for good, values in ((True, taken), (False, refused))
    for value in values
]


@pytest.mark.parametrize(
    ("route", "field", "value", "good"), CASES, ids=[f"{c[0]}-{c[1]}-{c[2]!r:.20}" for c in CASES]
)
def test_bounds(route: str, field: str, value: Any, good: bool, complete: Post, chat: Post) -> None:
    reply = {"complete": complete, "chat": chat}[route](**{field: value})
    if good:
        assert reply.status == 200, reply.body
        return
    assert reply.status == 400, reply.body
    # the numbers of an over-long request are reported for the prompt, since either can be corrected
    prompt = {"complete": "prompt", "chat": "messages"}[route]
    named = {field, prompt} if "context" in str(reply.error["code"]) else {field}
    assert reply.error["param"].partition("[")[0].partition(".")[0] in named, reply.error


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        (
            "chat/completions",
            {"prompt": "a"},
            "messages: it is missing; prompt is a field of /v1",
        ),
        ("completions", {"messages": []}, "prompt: it is missing; messages is a field of /v1/chat"),
        ("chat/completions", {}, "messages: it is missing; send it"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text: it is missing; send it",
        ),
        ("completions", {"model": "messages"}, "prompt: it is missing; "),
    ],
)
def test_a_body_of_another_route(
    app: Starlette, path: str, body: dict[str, Any], text: str
) -> None:
    assert call(app, f"/v1/{path}", body).error["message"].startswith(text)


def test_tables_cover_every_field() -> None:
    for table, request in (
        (COMPLETION, completions_request.CompletionRequest),
        (CHAT, chat_request.ChatRequest),
    ):
        assert set(request.__struct_fields__) - {"stream_options"} <= set(table)


def test_every_accepted_field_is_read() -> None:
    assert unread_fields() == {"user"}


def test_every_sampling_sampling_param_is_reachable() -> None:
    fields = set(chat_request.ChatRequest.__struct_fields__)
    set_by_servers = {"detokenize", "kept_token_ids", "reasoning_marks"}
    of_python = {"output_kind"}
    assert set(SamplingParams.__struct_fields__) <= fields | set_by_servers | of_python


def test_bodies_begin_with_the_fields_that_are_read_together() -> None:
    """As `sampling_of` reads them by their places."""
    first, bodies = generation_request.GenerationRequest.__struct_fields__, []
    kinds = [generation_request.GenerationRequest]
    while kinds:
        kinds += (derived := kinds.pop().__subclasses__())
        bodies += derived
    assert {chat_request.ChatRequest, completions_request.CompletionRequest} <= set(bodies)
    assert all(body.__struct_fields__[: len(first)] == first for body in bodies)


def test_defaults(complete: Post, chat: Post, engine: FakeEngine) -> None:
    complete()
    chat()
    completion, conversation = (call["sampling"] for call in engine.calls)
    assert completion == SamplingParams(max_tokens=16)
    assert conversation == SamplingParams(max_tokens=None)


def test_defaults_of_the_model(engine: FakeEngine) -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "max_tokens": 9}
    engine.info = replace(engine.info, sampling_defaults=defaults)
    app = build_app(engine, ServerSettings())
    messages = [{"role": "user", "content": "hi"}]
    call(app, "/v1/completions", {"prompt": "a", "temperature": 0})
    for changes in ({"top_k": 1}, {"max_completion_tokens": 3}):
        call(app, "/v1/chat/completions", {"messages": messages} | changes)
    first, second, third = (call["sampling"] for call in engine.calls)
    assert (first.temperature, first.top_k) == (0, 20)
    assert (second.temperature, second.top_k) == (0.6, 1)
    assert (third.temperature, third.max_tokens) == (0.6, 3)
    assert [call["cut_to_context"] for call in engine.calls] == [True, True, False]


def test_sampling_params_arrive(complete: Post, engine: FakeEngine) -> None:
    sampling_fields = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
        "seed": 7,
        "stop_token_ids": [3],
        "include_stop_str_in_output": True,
        "max_tokens": 9,
        "min_tokens": 2,
        "logprobs": 3,
        "prompt_logprobs": 2,
        "bad_words": ["no"],
        "allowed_token_ids": [1, 2],
        "skip_special_tokens": False,
    }
    reply = complete(**sampling_fields, stop="x", logit_bias={"5": 1}, priority=-3, cache_salt="s")
    assert reply.status == 200
    (call,) = engine.calls
    assert call["sampling"] == SamplingParams(**sampling_fields, stop=["x"], logit_bias={5: 1.0})
    assert (call["priority"], call["cache_salt"]) == (-3, "s")


def test_unknown_field_names_the_nearest(complete: Post) -> None:
    error = complete(max_tokns=5).error
    assert error["message"] == "max_tokns: unknown field; did you mean 'max_tokens'?"
    assert error["param"] == "max_tokns"


def test_names_of_other_engines_are_their_own_fields(complete: Post, engine: FakeEngine) -> None:
    assert complete(max_new_tokens=5, repeat_penalty=1.5).status == 200
    sampling = engine.calls[0]["sampling"]
    assert (sampling.max_tokens, sampling.repetition_penalty) == (5, 1.5)
    assert complete(n_predict=-1).status == 200
    assert complete(n_predict=5).status == complete(num_predict=5).status == 200
    cut = [call["cut_to_context"] for call in engine.calls]
    assert cut == [False, True, True, True]  # as their own servers do
    assert complete(max_new_tokens=5, max_tokens=6).error["param"] == "max_new_tokens"
    assert complete(max_new_tokens="5").error["param"] == "max_new_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_a_header_says_what_had_no_effect(chat: Post, stream: bool) -> None:
    asked = {"store": True, "safety_identifier": "x", "reasoning_effort": "low", "stream": stream}
    reported = chat(**asked).headers["x-quire-no-effect"]
    assert re.findall(r"(\S+) has no effect: ", reported) == [
        *("store", "safety_identifier", "reasoning_effort"),
    ]
    assert "x-quire-no-effect" not in chat(store=False, best_of=1, user="me").headers


def test_a_field_may_repeat_another(complete: Post) -> None:
    reply = complete(n=2, best_of=2)
    assert reply.status == 200
    assert "x-quire-no-effect" not in reply.headers
    for wrong in ({"n": 2, "best_of": 3}, {"best_of": 2}, {"n": True, "best_of": True}):
        assert complete(**wrong).status == 400


def test_variables_that_the_template_does_not_read(chat: Post, engine: FakeEngine) -> None:
    reply = chat(chat_template_kwargs={"mood": "calm", "enable_thinking\n": False})
    assert "".join(map(chr, engine.calls[0]["ids"])).endswith("[mood=calm]<assistant>")
    reported = reply.headers["x-quire-no-effect"]
    assert reported.startswith("chat_template_kwargs.enable_thinking? has no effect")


def test_unknown_names_are_cut(complete: Post) -> None:
    reply = complete(**{"x" * 5000: 1})
    assert len(reply.body) < 1000


def test_unsupported_field_is_refused_by_name(chat: Post) -> None:
    error = chat(modalities=["audio"]).error
    assert error["message"].startswith('modalities: ["audio"] is not supported: models read and')
    assert error["code"] == "unsupported_parameter"


@pytest.mark.parametrize("options", [{"include_usage": True}, {}])
def test_stream_options_need_a_stream(complete: Post, options: dict[str, bool]) -> None:
    assert complete(stream_options=options).error["param"] == "stream_options"
    assert complete(stream_options=options, stream=True).status == 200


def test_stream_options_unknown_name(complete: Post) -> None:
    error = complete(stream=True, stream_options={"include_usag": True}).error
    assert "stream_options.include_usag" in error["message"]


def test_a_stream_is_not_obfuscated(complete: Post) -> None:
    options = {"include_obfuscation": False}
    assert "x-quire-no-effect" not in complete(stream=True, stream_options=options).headers
    options = {"include_obfuscation": True}
    headers = complete(stream=True, stream_options=options).headers
    assert headers["x-quire-no-effect"].startswith("include_obfuscation has no effect")


def test_no_prompt_logprobs_in_a_stream(complete: Post) -> None:
    assert complete(stream=True, prompt_logprobs=1).error["param"] == "prompt_logprobs"


def test_top_logprobs(chat: Post) -> None:
    assert chat(logprobs=True, top_logprobs=20).status == 200
    assert chat(logprobs=True, top_logprobs=21).status == 400
    assert chat(logprobs=False, top_logprobs=1).error["param"] == "top_logprobs"


@pytest.mark.parametrize("stop", ["", [""]])
def test_an_empty_stop_string_is_named_as_such(complete: Post, stop: object) -> None:
    text = ": must be a string of length >= 1"
    assert complete(stop=stop).error["message"].endswith(text)


@pytest.mark.parametrize(
    ("field", "entries", "shown"),
    [
        ("logit_bias", {"5": 1, "abc": 1}, "logit_bias['abc']: must be an integer, not a string"),
        ("logit_bias", {"5": 1, "-1": 1}, "logit_bias['-1']: must be an integer >= 0"),
        ("logit_bias", {"5": 1, "6": 101}, "logit_bias['6']: must be a number <= 100.0"),
        ("metadata", {"a": "b", "c": 1}, "metadata['c']: must be a string, not an integer"),
        ("metadata", {"k" * 99: "b"}, f"metadata['{'k' * 64}']: must be a string of length <= 64"),
    ],
)
def test_the_entry_of_a_map_that_is_wrong_is_named(
    chat: Post, field: str, entries: object, shown: str
) -> None:
    error = chat(**{field: entries}).error
    assert (error["message"], error["param"]) == (shown, field)


def test_two_limits_must_agree(chat: Post) -> None:
    assert chat(max_tokens=3, max_completion_tokens=3).status == 200
    assert chat(max_tokens=3, max_completion_tokens=4).status == 400


def test_too_many_answers(complete: Post) -> None:
    assert complete(prompt=["a"] * 65, n=16).error["param"] == "prompt"


def test_neutral_values_are_documented_once() -> None:
    for kind in (
        completions_request.CompletionRequest,
        chat_request.ChatRequest,
        chat_messages.Message,
        tokenize.TokenizeRequest,
    ):
        assert kind.neutral
        assert kind.neutral.keys().isdisjoint(kind.__struct_fields__)
