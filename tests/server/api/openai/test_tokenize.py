"""/tokenize and /detokenize: round trips, both forms, bounds and refusals."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from asgi_client import Reply, call, request
from fake_engine import FakeEngine, FakeTokenizer
from starlette.applications import Starlette

from quire.background import TooLongError, is_hurried

USER = {"role": "user", "content": "hi"}


def tokenize(app: Starlette, **fields: Any) -> Reply:
    return call(app, "/tokenize", fields)


def test_a_prompt_there_and_back(app: Starlette, engine: FakeEngine) -> None:
    reply = tokenize(app, prompt="añb").json()
    assert reply == {
        "count": 3,
        "max_model_len": 1024,
        "tokens": [97, 241, 98],
        "token_strs": None,
    }
    back = call(app, "/detokenize", {"tokens": reply["tokens"], "model": "fake"})
    assert back.json() == {"prompt": "añb</s>"}  # it shows a control token at the end
    assert engine.calls == []  # no model ran


def test_token_strs(app: Starlette) -> None:
    assert tokenize(app, prompt="añ", return_token_strs=True).json()["token_strs"] == ["a", "ñ"]


def test_special_tokens_are_the_tokenizers_default_unless_set(
    app: Starlette, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def encode(text: str, *, add_special_tokens: bool = True, parse_special: bool) -> list[int]:
        assert parse_special  # as in /v1/completions
        asked.append(add_special_tokens)
        return [len(text)]

    monkeypatch.setattr(engine.tokenizer, "encode", encode)
    for fields in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
        tokenize(app, prompt="a", **fields)
    assert asked == [True, True, False]
    asked.clear()
    for name in ("add_special", "add_special_tokens"):
        for fields in ({}, {name: True}, {name: False}):
            call(app, "/tokenize", {"content": "a"} | fields)
    assert asked == [False, True, False] * 2


def test_messages_through_the_template(app: Starlette) -> None:
    fields = {"messages": [USER], "chat_template_kwargs": {"mood": "calm"}}
    reply = tokenize(app, **fields, add_generation_prompt=False).json()
    assert "".join(map(chr, reply["tokens"])) == "<user>hi[mood=calm]"
    assert tokenize(app, messages=[USER]).json()["count"] == len("<user>hi<assistant>")
    special = tokenize(app, messages=[USER], add_special_tokens=True).json()
    assert special["count"] == len("^<user>hi<assistant>")


def test_what_does_not_fit_the_model_is_still_counted(app: Starlette) -> None:
    assert tokenize(app, prompt="x" * 5000).json()["count"] == 5000
    assert tokenize(app, messages=[USER | {"content": "x" * 5000}]).json()["count"] > 5000


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": [USER]}, "prompt"),
        ({"prompt": "a", "tools": []}, "tools"),
        ({"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": "a", "model": "other"}, "model"),
        ({"prompt": "a", "promt": "b"}, "promt"),
        ({"prompt": "a", "chat_template": "x"}, "chat_template"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "ghost", "content": ""}]}, "messages[0].role"),
        ({"messages": [USER | {"x": 1}]}, "messages[0].x"),
    ],
)
def test_refusals(app: Starlette, fields: dict[str, Any], param: str) -> None:
    reply = tokenize(app, **fields)
    assert reply.status in (400, 404)
    assert reply.error["param"] == param


@pytest.mark.parametrize("tokens", [[-1], [2**31], ["a"], None, [1.5]])
def test_ids_that_are_none(app: Starlette, tokens: Any) -> None:
    assert call(app, "/detokenize", {"tokens": tokens}).status == 400


def test_ids_without_a_token_are_named(app: Starlette, engine: FakeEngine) -> None:
    engine.tokenizer.vocab_size = 100
    ours = call(app, "/detokenize", {"tokens": [], "model": "fake"}).json()
    assert ours == {"prompt": "</s>"}, "as vLLM's"
    assert call(app, "/detokenize", {"tokens": []}).json() == {"prompt": "</s>", "content": "</s>"}
    refused = call(app, "/detokenize", {"tokens": [99, 100, 7000]})
    assert (refused.status, refused.error["param"]) == (400, "tokens[1]")
    text = "tokens[1]: 100 is not a token of this vocabulary of 100; remove it"
    assert refused.error["message"] == text


def test_long_text_is_encoded_beside_the_loop(
    app: Starlette, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop = []

    def encode(text: str, **_: bool) -> list[int]:  # noqa: ARG001
        on_loop.append(threading.current_thread() is threading.main_thread())
        return []

    monkeypatch.setattr(engine.tokenizer, "encode", encode)
    tokenize(app, prompt="a")
    tokenize(app, prompt="a" * 5000)
    assert on_loop == [True, False]


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens"])
def test_counting_costs_no_more_than_what_can_be_counted(
    app: Starlette, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    longest = longest_asked = 4 * 1024  # tokens of one character
    plain, num_chars = FakeTokenizer.encode, 0

    def encode(self: FakeTokenizer, text: str, **options: Any) -> list[int]:
        nonlocal num_chars, longest_asked
        num_chars += len(text)
        longest_asked = max(longest_asked, len(text))
        return plain(self, text, **options)

    monkeypatch.setattr(FakeTokenizer, "encode", encode)

    def count(size: int) -> Reply:
        if path == "/tokenize":
            return call(app, path, {"prompt": "a" * size})
        return call(app, path, {"messages": [{"role": "user", "content": "a" * size}]})

    assert count(longest - 100).status == 200
    assert count(5 * longest).status == 400
    num_chars = 0
    message = count(65_000).json()["error"]["message"]
    assert f"that is counted is {longest} tokens" in message
    assert num_chars <= 4 * longest
    assert longest_asked <= 4 * longest


@pytest.mark.parametrize("field", ["prompt", "content"])
def test_a_body_with_far_too_much_text_is_read_once(
    app: Starlette, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.setattr("quire.server.http.strict_json.read_names", pytest.fail)
    reply = call(app, "/tokenize", {field: "a" * 1_000_000})
    assert reply.status == 400
    assert reply.error["message"].startswith("prompt: too large: 1000000 characters")


def test_detokenize_takes_as_many_tokens_as_are_counted(app: Starlette) -> None:
    assert call(app, "/detokenize", {"tokens": [97] * 4096}).status == 200
    reply = call(app, "/detokenize", {"tokens": [97] * 4097})
    assert (reply.status, reply.error["param"]) == (400, "tokens")


def test_large_counts_have_their_own_thread(app: Starlette, engine: FakeEngine) -> None:
    go = threading.Event()

    class Slow(FakeTokenizer):
        def encode(self, text: str, **options: Any) -> list[int]:
            if text.startswith("wait"):
                assert go.wait(10.0)
                return [1]
            return super().encode(text, **options)

    engine.tokenizer = Slow()

    async def both() -> None:
        waiting = [
            asyncio.create_task(request(app, "/tokenize", {"prompt": "wait" + " " * 5000}))
            for _ in range(8)
        ]
        await asyncio.sleep(0.1)
        body = {"prompt": "a" * 900, "user": "u" * 512, "cache_salt": "s" * 512}
        body |= {"metadata": None, "stop": ["x" * 250] * 16}
        reply = await asyncio.wait_for(request(app, "/v1/completions", body), 5.0)
        assert reply.status == 200, reply.body
        go.set()
        assert {reply.status for reply in await asyncio.gather(*waiting)} == {200}

    try:
        asyncio.run(both())
    finally:
        go.set()


@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions"])
def test_conversations_that_take_long_to_render_leave_the_event_loop(
    app: Starlette, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    threads: list[str] = []

    def chat_prompt(*_: Any, **__: Any) -> str:
        threads.append(threading.current_thread().name)
        if is_hurried():
            raise TooLongError
        return "abc"

    monkeypatch.setattr(engine.tokenizer, "chat_prompt", chat_prompt)
    reply = call(app, path, {"messages": [USER]})
    assert reply.status == 200
    on_loop, in_thread = threads
    assert in_thread.startswith("quire-")
    assert not on_loop.startswith("quire-")


@pytest.mark.parametrize(
    ("path", "fields", "text"),
    [
        ("/tokenize", {}, "prompt: it is missing; send it, or messages"),
        ("/score", {"text_1": "a"}, "text_2: it is missing; send it, or documents"),
        ("/rerank", {"query": "a"}, "documents: it is missing; send it, or texts"),
        ("/v1/embeddings", {}, "input: it is missing; send it, or messages"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]},
         "prompt: must be sent without messages, or messages without it"),
    ],
)  # fmt: skip
def test_one_of_two_fields_may_be_missing_or_too_much(
    app: Starlette, path: str, fields: dict[str, Any], text: str
) -> None:
    assert call(app, path, fields).error["message"] == text


def test_tokenizer_info(app: Starlette) -> None:
    info = call(app, "/tokenizer_info", query="model=fake").json()
    assert info["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (info["model_max_length"], info["eos_token"]) == (1024, "</s>")
    assert (info["bos_token"], info["chat_template"]) == (None, None)
    assert call(app, "/tokenizer_info", query="model=ghost").status == 404
