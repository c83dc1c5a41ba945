"""/v1/chat/completions/batch: one choice for each conversation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from asgi_client import Reply, call
from fake_engine import LIMITS, FakeEngine
from starlette.applications import Starlette

from quire.server.app import build_app
from quire.server.settings import ServerSettings

CONVERSATIONS = [[{"role": "user", "content": word}] for word in ("hi", "ho", "ha")]


def ask(app: Starlette, **fields: Any) -> Reply:
    return call(app, "/v1/chat/completions/batch", {"messages": CONVERSATIONS} | fields)


def test_each_conversation_gets_a_choice(app: Starlette, engine: FakeEngine) -> None:
    reply = ask(app, temperature=0, logprobs=True, metadata={"a": "b"}).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in reply["choices"]} == {"Hello!"}
    assert all(len(choice["logprobs"]["content"]) == 6 for choice in reply["choices"])
    seen = {"".join(map(chr, engine_call["ids"])) for engine_call in engine.calls}
    assert seen == {f"<user>{word}<assistant>" for word in ("hi", "ho", "ha")}
    assert reply["usage"]["completion_tokens"] == 18
    assert (reply["object"], reply["metadata"]) == ("chat.completion", {"a": "b"})


def test_reasoning_is_parsed_in_each(engine: FakeEngine) -> None:
    engine.tokenizer.chat_template_text = "</think>"
    engine.script = "<think>hm</think>ok"
    reply = ask(build_app(engine, ServerSettings())).json()
    messages = [choice["message"] for choice in reply["choices"]]
    assert [(m["reasoning"], m["content"]) for m in messages] == [("hm", "ok")] * 3
    details = reply["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == 3 * len("<think>hm</think>")


def test_each_choice_has_what_is_asked_of_its_prompt(app: Starlette) -> None:
    asked = {"return_token_ids": True, "prompt_logprobs": 1}
    for choice, word in zip(ask(app, **asked).json()["choices"], ("hi", "ho", "ha"), strict=True):
        assert "".join(map(chr, choice["prompt_token_ids"])) == f"<user>{word}<assistant>"
        first, second, *others = choice["prompt_logprobs"]
        assert (first, len(others)) == (None, len(choice["prompt_token_ids"]) - 2)
        assert second[str(ord("u"))]["logprob"] == -1.5
    (alone,) = ask(app, messages=CONVERSATIONS[:1], **asked).json()["choices"]
    assert len(alone["prompt_token_ids"]) == len(alone["prompt_logprobs"])
    assert "prompt_token_ids" not in ask(app).json()["choices"][0]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stream": True}, "stream: several conversations are not streamed"),
        ({"n": 2}, "n: each conversation gets one answer, not 2"),
        (
            {"messages": CONVERSATIONS * 20, "allowed_token_ids": [5] * 40_000},
            "allowed_token_ids: 40000 ids for each of 60 answers are above 2097152 in all; send",
        ),
        ({"messages": [[]]}, "messages[0]: "),
        ({"messages": []}, "messages: "),
        ({"messages": CONVERSATIONS[0]}, "messages[0]: "),
        ({"messages": [*CONVERSATIONS, [{"role": "ghost", "content": ""}]]}, "messages[3][0].role"),
        ({"messages": [[{"role": "user", "content": "", "x": 1}]]}, "messages[0][0].x"),
        (
            {"messages": [*CONVERSATIONS, [{"role": "user", "content": "x" * 70_000}]]},
            "messages[3]:",
        ),
    ],
)
def test_what_is_refused(app: Starlette, fields: dict[str, Any], words: str) -> None:
    reply = ask(app, **fields)
    assert reply.status == 400
    assert reply.error["message"].startswith(words)


def test_log_probabilities_are_bounded_over_all_conversations(
    app: Starlette, engine: FakeEngine
) -> None:
    engine.info.limits = msgspec.structs.replace(LIMITS, max_logprobs=-1, vocab_size=1 << 18)
    fields = {"logprobs": True, "top_logprobs": -1, "max_tokens": 2}
    assert ask(app, messages=CONVERSATIONS[:2], **fields).status == 200
    error = ask(app, **fields).error
    assert (error["param"], "above 1048576 in all" in error["message"]) == ("top_logprobs", True)
