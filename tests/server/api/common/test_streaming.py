"""Failures and disconnects: before the first byte, after it, and after the client has left."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from typing import Any

import fake_engine
import pytest
from asgi_client import Post, call, request, run_leaping
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.core.request_output import Logprob
from quire.errors import (
    CallerLimitError,
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
)
from quire.server.api.common import conversation
from quire.server.api.common.job_runner import merged
from quire.server.api.common.logprob_formats import ChatLogprobs, TopLogprob, chat_logprobs

FAILURES = [
    (EngineError("the step failed; send it again"), 500, "server_error", "engine_error"),
    (OverloadedError("the queue is full; wait", retry_after=2.5), 503, None, None),
    (CallerLimitError("too much; wait"), 429, "rate_limit_error", "rate_limit_exceeded"),
    (InvalidRequestError("n: no; lower it", param="n"), 400, "invalid_request_error", None),
    (
        ContextLengthError("prompt: too long; shorten it", num_prompt_tokens=9, limit=8),
        *(400, "exceed_context_size_error", "context_length_exceeded"),
    ),
    (RuntimeError("secret words"), 500, "server_error", "internal_error"),
    (KeyError("secret words"), 500, "server_error", "internal_error"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("failure", "status", "kind", "code"), FAILURES)
def test_before_the_first_token(
    complete: Post,
    engine: FakeEngine,
    failure: Exception,
    status: int,
    kind: str | None,
    code: str | None,
    stream: bool,
) -> None:
    engine.failure, engine.fail_at = failure, 0
    reply = complete(stream=stream)
    assert reply.status == status
    assert kind is None or reply.error["type"] == kind
    assert code is None or reply.error["code"] == code
    assert b"secret" not in reply.body


def test_overload_says_when_to_come_back(complete: Post, engine: FakeEngine) -> None:
    engine.failure, engine.fail_at = OverloadedError("full; wait", retry_after=2.5), 0
    reply = complete()
    assert reply.headers["retry-after"] == "3"
    assert reply.error["code"] == "server_is_overloaded"


@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
def test_after_the_first_token(complete: Post, engine: FakeEngine, prompt: object) -> None:
    engine.failure, engine.fail_at = EngineError("the step failed; send it again"), 3
    reply = complete(stream=True, prompt=prompt)
    assert reply.status == 200
    *chunks, last = reply.events
    assert last == {
        "error": {
            "message": "the step failed; send it again",
            "type": "server_error",
            "param": None,
            "code": "engine_error",
        }
    }
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


def test_unknown_failures_are_logged_and_not_sent(
    app: Starlette, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.fail_at = 0
    headers = {"content-type": "application/json", "x-request-id": "find-me"}
    with caplog.at_level(logging.ERROR):
        reply = call(app, "/v1/completions", {"prompt": "a"}, headers=headers)
    assert reply.error["message"].endswith("see the server log for request id find-me")
    (record,) = caplog.records
    assert "find-me" in record.getMessage()
    assert "RuntimeError" in record.getMessage()
    assert "fake_engine.py" in record.getMessage()
    assert "secret" not in caplog.text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(("stream", "leave_after"), [(True, 2), (True, 0), (False, 0)])
def test_disconnect_aborts(
    app: Starlette, engine: FakeEngine, path: str, stream: bool, leave_after: int
) -> None:
    engine.delay = 0.01
    messages = [{"role": "user", "content": "a"}]
    asked = {"prompt": "a"} if path == "/v1/completions" else {"messages": messages}
    asked |= {"stream": stream, "ignore_eos": True, "max_tokens": 500}
    call(app, path, asked, leave_after=leave_after)
    assert len(engine.aborted) == len(engine.calls) <= 1
    assert engine.num_sent <= leave_after + 2


def test_disconnect_aborts_every_prompt(app: Starlette, engine: FakeEngine) -> None:
    engine.delay = 0.01
    asked = {"prompt": ["a", "b", "c"], "stream": True, "ignore_eos": True, "max_tokens": 500}
    call(app, "/v1/completions", asked, leave_after=1)
    assert len(set(engine.aborted)) == 3


def test_a_failing_prompt_aborts_the_others(complete: Post, engine: FakeEngine) -> None:
    engine.failure, engine.fail_at, engine.delay = EngineError("no; again"), 2, 0.001
    assert complete(prompt=["a", "b", "c"]).status == 500
    assert len(set(engine.aborted)) == 3


def test_an_invalid_prompt_among_others_is_a_400(complete: Post, engine: FakeEngine) -> None:
    engine.delay = 0.01
    assert complete(prompt=["a", "b" * 2000], stream=True).status == 400


def test_disconnect_while_the_body_is_sent(app: Starlette, engine: FakeEngine) -> None:
    async def half() -> None:
        parts = [{"type": "http.request", "body": b"{", "more_body": True}]

        async def receive() -> dict[str, object]:
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(_message: object) -> None:
            raise AssertionError("nobody is there")

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
        await app(scope, receive, send)  # type: ignore[arg-type]

    asyncio.run(half())
    assert engine.calls == []


def test_stopping_server_is_not_a_disconnect(app: Starlette, engine: FakeEngine) -> None:
    async def stop() -> None:
        engine.delay = 0.01
        task = asyncio.create_task(request(app, "/v1/completions", {"prompt": "a"}))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_leaping(stop())
    assert len(engine.aborted) == 1


def test_many_streams_do_not_wait_for_each_other(app: Starlette, engine: FakeEngine) -> None:
    engine.delay = 0.01

    async def all_at_once() -> float:
        body = {"prompt": "a", "stream": True}
        await asyncio.gather(*(request(app, "/v1/completions", body) for _ in range(50)))
        return asyncio.get_running_loop().time()

    assert run_leaping(all_at_once()) == pytest.approx(6 * engine.delay)


async def count(stop: int, *, fail: bool = False) -> object:
    for number in range(stop):
        await asyncio.sleep(0)
        yield number
    if fail:
        raise EngineError("no; again")


def test_merged_keeps_each_order() -> None:
    async def collect() -> list[tuple[int, int]]:
        return [item async for item in merged([count(3), count(0), count(2)])]  # type: ignore[list-item,misc]

    found = asyncio.run(collect())
    assert [n for index, n in found if index == 0] == [0, 1, 2]
    assert [n for index, n in found if index == 2] == [0, 1]


def test_merged_raises_the_first_failure() -> None:
    async def collect() -> None:
        async for _ in merged([count(50), count(1, fail=True)]):  # type: ignore[list-item]
            pass

    with pytest.raises(EngineError):
        asyncio.run(collect())


@pytest.mark.parametrize("num_each", [5, 5000])
@pytest.mark.parametrize("stream", [False, True])
def test_many_log_probabilities_are_written_beside_the_event_loop(
    app: Starlette, monkeypatch: pytest.MonkeyPatch, num_each: int, stream: bool
) -> None:
    wide = {token_id: Logprob(-1.0, None, "a") for token_id in range(1, num_each)}
    monkeypatch.setattr(fake_engine, "position", lambda token_id: {token_id: wide[1]} | wide)
    writers = set[threading.Thread]()

    def written(*args: Any, **options: Any) -> ChatLogprobs:
        writers.add(threading.current_thread())
        return chat_logprobs(*args, **options)

    monkeypatch.setattr(conversation, "chat_logprobs", written)
    messages = [{"role": "user", "content": "a"}]
    body = {"messages": messages, "logprobs": True, "logprob_token_ids": [65], "stream": stream}
    assert call(app, "/v1/chat/completions", body).status == 200
    assert (threading.main_thread() in writers) == (num_each == 5)


def test_the_garbage_collector_does_not_scan_log_probabilities() -> None:
    """A reply may have a million."""
    one = Logprob(-1.0, 1, "a")
    assert not any(map(gc.is_tracked, (one, {1: one}, TopLogprob("a", -1.0, [97]))))
