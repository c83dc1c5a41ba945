"""/v1/chat/completions: what the template gets, and the shape of answers and streams."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
from asgi_client import Post, call
from fake_engine import LIMITS, FakeEngine
from starlette.applications import Starlette

from quire.errors import ConfigError
from quire.server.api.common import chat_request
from quire.server.app import build_app
from quire.server.settings import ServerSettings
from quire.version import __version__


def test_whole_answer(chat: Post, engine: FakeEngine) -> None:
    reply = chat().json()
    assert engine.last_prompt == "<user>hi<assistant>"
    assert reply["id"].startswith("chatcmpl-")
    assert reply["object"] == "chat.completion"
    assert reply["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Hello!",
                "reasoning_content": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": None,
        }
    ]
    assert reply["prompt_logprobs"] is reply["prompt_token_ids"] is None
    assert reply["system_fingerprint"].startswith(f"build-{__version__}-")
    assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 9}


def test_messages_as_the_template_sees_them(chat: Post, engine: FakeEngine) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": parts, "name": "bob"},
    ]
    chat(messages=messages, chat_template_kwargs={"mood": "calm"}, add_generation_prompt=False)
    assert engine.last_prompt == "<developer>be kind<userbob>one+two[mood=calm]"


def test_template_variables_of_the_server_are_those_of_requests_without_them(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.tokenizer.chat_variables = frozenset({"messages", "mood", "enable_thinking"})
    defaults = '{"mood": "calm", "enable_thinking": false, "tone": "low"}'
    app = build_app(engine, ServerSettings(default_chat_template_kwargs=defaults))
    assert "does not read tone" in caplog.text
    for asked, shown in (
        ({}, "[mood=calm][enable_thinking=False]"),
        ({"chat_template_kwargs": {"mood": "gay"}}, "[mood=gay][enable_thinking=False]"),
        ({"reasoning_effort": "high"}, "[mood=calm][enable_thinking=True]"),
    ):
        body = {"messages": [{"role": "user", "content": "hi"}]} | asked
        assert call(app, "/v1/chat/completions", body).status == 200
        assert engine.last_prompt == f"<user>hi{shown}<assistant>"


@pytest.mark.parametrize(
    ("effort", "thinks", "is_reported"),
    [("low", True, False), ("none", False, False), ("low", False, True), ("none", True, True)],
)
def test_an_effort_beside_the_variable_that_it_stands_for(
    app: Starlette, engine: FakeEngine, effort: str, thinks: bool, is_reported: bool
) -> None:
    engine.tokenizer.chat_variables = frozenset({"messages", "enable_thinking"})
    body = {"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": effort}
    variables = {"enable_thinking": thinks}
    reply = call(app, "/v1/chat/completions", body | {"chat_template_kwargs": variables})
    assert engine.last_prompt == f"<user>hi[enable_thinking={thinks}]<assistant>"
    text = "reasoning_effort has no effect: enable_thinking has another value"
    assert reply.headers.get("x-quire-no-effect") == (text if is_reported else None)


@pytest.mark.parametrize(("think", "thinks"), [(False, False), (True, True), ("high", True)])
def test_of_ollamas_think_the_effort_is_made(
    app: Starlette, engine: FakeEngine, think: bool | str, thinks: bool
) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "think": think}
    reply = call(app, "/v1/chat/completions", body)
    assert reply.headers["x-quire-no-effect"].startswith("think has no effect: ")
    engine.tokenizer.chat_variables = frozenset({"messages", "enable_thinking"})
    reply = call(app, "/v1/chat/completions", body)
    assert (reply.status, reply.headers.get("x-quire-no-effect")) == (200, None)
    assert engine.last_prompt == f"<user>hi[enable_thinking={thinks}]<assistant>"


@pytest.mark.parametrize("wrong", ["", "[]", "{", '{"tools": []}', '{"messages": 1}'])
def test_template_variables_of_the_server_are_an_object(wrong: str) -> None:
    with pytest.raises(ConfigError, match="default_chat_template_kwargs"):
        ServerSettings(default_chat_template_kwargs=wrong)


def test_tools_of_an_unknown_format_can_be_counted_but_not_called(
    chat: Post, app: Starlette, engine: FakeEngine
) -> None:
    engine.tokenizer.chat_variables = frozenset({"messages", "tools"})
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    assert chat(**body).error["param"] == "tools"
    for path in ("/tokenize", "/apply-template", "/v1/chat/completions/input_tokens"):
        assert call(app, path, body).status == 200


def test_an_answer_that_goes_on_from_the_last_message(chat: Post, engine: FakeEngine) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]
    asked = {"messages": messages, "continue_final_message": True, "echo": True}
    assert chat(**asked).json()["choices"][0]["message"]["content"] == "Well, Hello!"
    assert engine.tokenizer.continued
    assert engine.last_prompt == "<user>hi<assistant>Well, "
    chunks = chat(**asked, stream=True).events[:-1]
    parts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(parts) == "Well, Hello!"


def test_a_prompt_is_cut_to_its_last_tokens(chat: Post, engine: FakeEngine) -> None:
    chat(truncate_prompt_tokens=5, add_special_tokens=True)
    assert engine.last_prompt == "tant>"
    chat(messages=[{"role": "user", "content": "x" * 80_000}], truncate_prompt_tokens=-1)
    assert len(engine.calls[-1]["ids"]) == LIMITS.max_model_len - 1
    chat(add_special_tokens=True)
    assert engine.last_prompt == "^<user>hi<assistant>"


def test_tokens_of_logprobs_as_ids(chat: Post) -> None:
    reply = chat(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True).json()
    first = reply["choices"][0]["logprobs"]["content"][0]
    assert first["token"] == f"token_id:{ord('H')}"
    assert first["top_logprobs"][0]["token"].startswith("token_id:")


@pytest.mark.parametrize("n", [1, 3])
def test_each_chunk_has_the_token_counts(chat: Post, n: int) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _ = chat(stream=True, n=n, stream_options=options).events
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (*counts[:2], counts[-1]) == (0, 1, 6 * n)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
def test_a_server_may_send_the_token_counts_unasked(
    engine: FakeEngine, path: str, options: dict[str, Any]
) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    del body["prompt" if "chat" in path else "messages"]
    app = build_app(engine, ServerSettings(enable_force_include_usage=True))
    *chunks, end = call(app, path, {**body, **options, "stream": True}).events
    assert all(chunk["usage"]["total_tokens"] > 0 for chunk in chunks)
    assert (chunks[-1]["choices"], end) == ([], "[DONE]")
    assert call(app, path, body).status == 200, "nothing else without a stream"


def test_long_conversations_are_rendered_beside_the_loop(chat: Post, engine: FakeEngine) -> None:
    engine.info.limits = msgspec.structs.replace(LIMITS, max_model_len=9000, max_kv_tokens=9000)
    reply = chat(messages=[{"role": "user", "content": "x" * 5000}])
    assert reply.json()["usage"]["prompt_tokens"] == 5000 + len("<user><assistant>")


def test_an_error_of_a_long_prompt_names_the_messages(chat: Post, engine: FakeEngine) -> None:
    for reply in (chat(max_tokens=1006), chat(messages=[{"role": "user", "content": "x" * 1024}])):
        assert (reply.status, reply.error["param"]) == (400, "messages")
        assert reply.error["code"] == "context_length_exceeded"
        assert reply.error["message"].startswith("messages: ")
    assert engine.calls == []


def test_only_small_bodies_are_read_on_the_loop(
    chat: Post, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    parse = chat_request.parse

    def noting_parse(data: bytes, kind: type[chat_request.ChatRequest]) -> chat_request.ChatRequest:
        threads.append(threading.current_thread() is threading.main_thread())
        return parse(data, kind)

    monkeypatch.setattr(chat_request, "parse", noting_parse)
    chat()
    chat(messages=[{"role": "user", "content": ""}] * 4000)  # much work, though no text
    chat(chat_template_kwargs={"mood": "y" * 5000})
    assert threads == [True, False, False]
    assert len(engine.calls) == 1  # the others do not fit this model


def test_no_template(chat: Post, engine: FakeEngine) -> None:
    engine.tokenizer.has_chat_template = False
    assert (chat().status, chat().error["param"]) == (400, "messages")


def test_logprobs(chat: Post, engine: FakeEngine) -> None:
    engine.script = "é"
    (choice,) = chat(logprobs=True, top_logprobs=2).json()["choices"]
    assert choice["logprobs"]["content"] == [
        {
            "token": "é",
            "logprob": -1.5,
            "bytes": [0xC3, 0xA9],
            "top_logprobs": [
                {"token": "ê", "logprob": -0.5, "bytes": [0xC3, 0xAA]},
                {"token": "é", "logprob": -1.5, "bytes": [0xC3, 0xA9]},
            ],
        }
    ]


def test_all_log_probabilities_are_bounded(chat: Post, engine: FakeEngine) -> None:
    def ask(**fields: Any) -> Any:
        return chat(logprobs=True, **fields)

    size = LIMITS.vocab_size
    message = ask(top_logprobs=-1).error["message"]
    assert message.startswith(f"top_logprobs: -1 (all {size}) is above max")
    engine.info.limits = msgspec.structs.replace(LIMITS, max_logprobs=-1, vocab_size=1 << 17)
    error = ask(top_logprobs=-1, max_tokens=3, n=3).error
    assert (error["param"], "above 1048576 in all" in error["message"]) == ("top_logprobs", True)
    assert chat(prompt_logprobs=-1).error["param"] == "prompt_logprobs"  # 18 tokens
    reply = ask(top_logprobs=-1, max_tokens=1, truncate_prompt_tokens=2, prompt_logprobs=-1).json()
    (position,) = reply["choices"][0]["logprobs"]["content"]
    assert [top["token"] for top in position["top_logprobs"]] == ["I", "H", "J"]  # all there are
    assert len(reply["prompt_logprobs"][1]) == 3


def test_log_probabilities_of_named_tokens(chat: Post, engine: FakeEngine) -> None:
    error = chat(logprob_token_ids=[1]).error
    assert error["message"] == "logprob_token_ids: it needs logprobs; ask for them"
    assert chat(logprobs=True, logprob_token_ids=[1 << 30]).error["param"] == "logprob_token_ids"
    reply = chat(logprobs=True, top_logprobs=1, logprob_token_ids=[73, 74], max_tokens=1).json()
    (position,) = reply["choices"][0]["logprobs"]["content"]
    assert len(position["top_logprobs"]) == 3  # whatever their number, top_logprobs cuts nothing
    assert engine.calls[-1]["sampling"].logprob_token_ids == [73, 74]


def test_a_budget_for_thinking_goes_with_the_models_marks(chat: Post, engine: FakeEngine) -> None:
    error = chat(thinking_token_budget=5).error
    assert error["param"] == "thinking_token_budget"
    assert "name its parser by --reasoning-parser" in error["message"]  # run-batch has it, too
    responses = {"input": "hi", "reasoning": {"max_tokens": 0}}
    assert call(build_app(engine, ServerSettings()), "/v1/responses", responses).status == 200
    for budget in (-1, 0):  # asks for nothing
        assert chat(thinking_token_budget=budget, thinking_budget_tokens=budget).status == 200
    engine.tokenizer.chat_template_text = "</think>"
    app = build_app(engine, ServerSettings())
    message = {"role": "user", "content": "hi"}
    for path, body in (
        ("/v1/chat/completions", {"messages": [message], "thinking_token_budget": 5}),
        ("/v1/completions", {"prompt": "a<think>", "thinking_budget_tokens": 5}),
        ("/completion", {"prompt": "a<think>", "thinking_budget_tokens": 5}),
        ("/v1/responses", {"input": "hi", "reasoning": {"max_tokens": 5}}),
    ):
        assert call(app, path, body).status == 200
        sampling, ids = engine.calls[-1]["sampling"], engine.calls[-1]["ids"]
        assert sampling.thinking_token_budget == 5
        assert "".join(map(chr, sampling.reasoning_marks.end)) == "</think>"
        assert sampling.reasoning_marks.are_open_after(ids) == ("prompt" in body)


def test_token_ids_and_prompt_logprobs(chat: Post) -> None:
    reply = chat(return_token_ids=True, prompt_logprobs=0, max_tokens=1).json()
    assert reply["prompt_token_ids"] == [ord(char) for char in "<user>hi<assistant>"]
    assert reply["choices"][0]["token_ids"] == [ord("H")]
    assert reply["prompt_logprobs"][0] is None
    assert list(reply["prompt_logprobs"][1]) == [str(ord("u"))]


def test_metadata_comes_back(chat: Post) -> None:
    assert chat(metadata={"a": "b"}).json()["metadata"] == {"a": "b"}
    assert "metadata" not in chat().json()
    assert chat(metadata={"a" * 65: "b"}).error["param"] == "metadata"


def test_stream(chat: Post) -> None:
    first, *texts, done = chat(stream=True).events
    assert done == "[DONE]"
    assert first["object"] == "chat.completion.chunk"
    assert delta(first) == {"role": "assistant"}
    assert [delta(chunk) for chunk in texts] == [{"content": char} for char in "Hello!"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in [first, *texts]]
    assert reasons == [None] * 6 + ["stop"]  # with the last of the text


def test_stream_with_usage(chat: Post) -> None:
    *_, end, usage, _done = chat(stream=True, stream_options={"include_usage": True}).events
    assert end["usage"] is None
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 6)


def test_stream_of_several_answers(chat: Post) -> None:
    *chunks, _ = chat(stream=True, n=3).events
    for index in range(3):
        own = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert delta(own[0])["role"] == "assistant"
        assert "".join(delta(chunk).get("content", "") for chunk in own) == "Hello!"
        assert own[-1]["choices"][0]["finish_reason"] == "stop"


def test_stream_with_logprobs_and_ids(chat: Post) -> None:
    first, *texts, _done = chat(stream=True, logprobs=True, return_token_ids=True).events
    assert len(first["prompt_token_ids"]) == 19
    for chunk, char in zip(texts, "Hello!", strict=True):
        (choice,) = chunk["choices"]
        assert choice["token_ids"] == [ord(char)]
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == [char]


def delta(chunk: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = chunk["choices"][0]["delta"]
    return found
