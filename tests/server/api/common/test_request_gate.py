"""Admission, deadlines and silence about secrets, over HTTP."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from asgi_client import JSON, Post, Reply, call, request, run_leaping
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.core.request_limits import RequestLimits
from quire.errors import EngineError, QueueTimeoutError
from quire.server.admission.admission_control import Admission, Ticket
from quire.server.api.common import logprob_bounds, request_gate
from quire.server.app import build_app
from quire.server.http import body_memory
from quire.server.settings import ServerSettings

PATHS = ["/v1/completions", "/v1/chat/completions"]
BODIES = {
    "/v1/completions": {"prompt": "abc"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}]},
}


def small(engine: FakeEngine, **settings: object) -> Starlette:
    """Two rows, two places in the queue."""
    engine.info.limits = RequestLimits(
        max_model_len=1024, max_kv_tokens=4096, vocab_size=0x110000, max_num_seqs=2
    )
    return build_app(engine, ServerSettings(**({"max_queued_requests": 2} | settings)))


def admission_of(app: Starlette) -> Admission:
    admission = app.state.models.entrance
    assert isinstance(admission, Admission)
    return admission


async def together(app: Starlette, count: int) -> list[Reply]:
    return await asyncio.gather(
        *(request(app, "/v1/completions", BODIES["/v1/completions"]) for _ in range(count))
    )


def test_a_burst_is_cut_to_the_capacity_at_once(engine: FakeEngine) -> None:
    app, engine.delay = small(engine), 0.01
    replies = run_leaping(together(app, 40))
    statuses = [reply.status for reply in replies]
    assert (statuses.count(200), statuses.count(429)) == (4, 36)
    refused = replies[statuses.index(429)]
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert (refused.error["type"], refused.error["code"]) == ("rate_limit_error", "queue_full")
    assert len(engine.calls) == 4
    assert admission_of(app).in_flight.num_answers == 0
    assert asyncio.run(together(app, 4))[3].status == 200


def test_who_is_refused_is_refused_before_the_body_is_read(engine: FakeEngine) -> None:
    app = small(engine)
    tickets = [Ticket(admission_of(app)) for _ in range(4)]
    body = [b"{"] + [b" "] * 50  # would be malformed in the end
    assert call(app, "/v1/completions", chunks=body).status == 429
    for ticket in tickets:
        with ticket:
            pass
    assert call(app, "/v1/completions", chunks=body).status == 400


SLOW_PATHS = ["/v1/completions", "/tokenize"]


@pytest.mark.parametrize("path", SLOW_PATHS)
def test_slow_bodies_keep_nobody_out(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("quire.server.api.common.request_gate.MAX_LIGHT_REQUESTS", 2)
    app = small(engine, max_queued_requests=0)

    async def crowd() -> tuple[Reply, int, list[Reply]]:
        slow = [request(app, path, chunks=[b" ", b'{"prompt": "a"}'], pause=0.3) for _ in range(20)]
        waiting = asyncio.gather(*slow)
        await asyncio.sleep(0.1)
        held = admission_of(app).in_flight.num_answers
        return await request(app, path, {"prompt": "abc"}), held, await waiting

    quick, held, late = run_leaping(crowd())
    assert (quick.status, held) == (200, 0)
    statuses = {reply.status for reply in late}  # they come whole at one moment
    assert 200 in statuses
    assert statuses <= {200, 429}
    assert admission_of(app).in_flight.num_answers == 0


@pytest.mark.parametrize("path", SLOW_PATHS)
def test_bodies_that_arrive_have_a_bound(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("quire.server.api.common.request_gate.MAX_RECEIVING", 3)
    app = small(engine)

    async def crowd() -> list[Reply]:
        slow = [request(app, path, chunks=[b" ", b'{"prompt": "a"}'], pause=0.1) for _ in range(5)]
        return await asyncio.gather(*slow)

    replies = run_leaping(crowd())
    assert [reply.status for reply in replies] == [200] * 3 + [429] * 2
    assert "3 requests are being received already" in replies[3].error["message"]
    assert call(app, path, {"prompt": "abc"}).status == 200


def test_answers_and_tokens_count(engine: FakeEngine) -> None:
    app = small(engine, max_queued_tokens=0)
    with Ticket(admission_of(app)):
        many = {"prompt": ["a", "b"], "n": 2}
        assert call(app, "/v1/completions", many).status == 429
        assert call(app, "/v1/completions", {"prompt": ["a", "b"]}).status == 200
        long = {"prompt": [[5] * 900] * 3}
        assert call(app, "/v1/completions", long).status == 200
    with Ticket(admission_of(app)) as other:
        other.charge(1, 4000)
        assert call(app, "/v1/completions", {"prompt": [5] * 100}).error["code"] == "queue_full"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "exit_path", ["answer", "stream", "fault", "late fault", "body", "leave", "part"]
)
def test_every_exit_is_counted(engine: FakeEngine, path: str, exit_path: str) -> None:
    app, body = small(engine), dict(BODIES[path])
    if exit_path in ("fault", "late fault"):
        engine.fail_at, engine.failure = (
            (0 if exit_path == "fault" else 2),
            EngineError("no; again"),
        )
    options: dict[str, object] = {}
    if exit_path == "leave":
        engine.delay, options = 0.01, {"leave_after": 1}
    if exit_path == "part":
        options = {"chunks": [b"{"], "leave_after": 0}
    sent = (
        b"{"
        if exit_path == "body"
        else body | {"stream": exit_path in ("stream", "late fault", "leave")}
    )
    call(app, path, sent, **options)
    assert (
        admission_of(app).in_flight.num_answers,
        admission_of(app).in_flight.num_prompt_tokens,
    ) == (
        0,
        0,
    )


def test_an_engine_that_is_down_is_said_at_once(engine: FakeEngine) -> None:
    app, engine.is_alive = small(engine), False
    reply = call(app, "/v1/completions", chunks=[b"{"] * 9)
    assert (reply.status, reply.error["code"]) == (503, "server_is_overloaded")
    assert int(reply.headers["retry-after"]) >= 1


# ---------------------------------------------------------------------- deadlines


@pytest.mark.parametrize(
    ("settings", "fields", "headers", "status", "owner"),
    [
        ({"request_timeout": 0.05}, {}, {}, 504, None),
        ({}, {"timeout": 0.05}, {}, 408, "timeout"),
        ({}, {}, {"x-request-timeout": "0.05"}, 408, "x-request-timeout"),
        ({"request_timeout": 0.05}, {"timeout": 9.0}, {"x-request-timeout": "9"}, 504, None),
        ({"request_timeout": 0.05}, {"timeout": 0.05}, {}, 504, None),
        ({"request_timeout": 9.0}, {"timeout": 0.05}, {"x-request-timeout": "9"}, 408, "timeout"),
    ],
)
@pytest.mark.parametrize("path", PATHS)
def test_a_request_ends_in_its_time(
    engine: FakeEngine,
    path: str,
    settings: dict[str, float],
    fields: dict[str, float],
    headers: dict[str, str],
    status: int,
    owner: str | None,
) -> None:
    app, engine.delay = small(engine, **settings), 0.02
    body = BODIES[path] | fields
    reply = run_leaping(request(app, path, body, headers=JSON | headers))
    assert (reply.status, reply.error["code"]) == (status, "deadline_exceeded")
    error = reply.error
    assert error["param"] == owner
    assert error["type"] == ("server_error" if owner is None else "invalid_request_error")
    reply = run_leaping(request(app, path, body | {"stream": True}, headers=JSON | headers))
    assert reply.status == 200
    assert reply.events[-1]["error"] == error
    assert len(engine.aborted) == 2
    assert admission_of(app).in_flight.num_answers == 0


def test_a_stream_that_never_begins_has_a_status(engine: FakeEngine) -> None:
    app, engine.delay = small(engine), 5.0
    body = BODIES["/v1/completions"] | {"stream": True, "timeout": 0.05}
    assert run_leaping(request(app, "/v1/completions", body)).status == 408


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf", "1e999", "1_0", "5 s"])
def test_a_deadline_that_is_none(app: Starlette, text: str) -> None:
    headers = JSON | {"x-request-timeout": text}
    reply = call(app, "/v1/completions", BODIES["/v1/completions"], headers=headers)
    assert (reply.status, reply.error["param"]) == (400, "x-request-timeout")


def test_the_engine_gets_the_queue_timeout(engine: FakeEngine) -> None:
    app = small(engine, queue_timeout=7.5)
    call(app, "/v1/completions", BODIES["/v1/completions"])
    assert engine.calls[0]["queue_timeout"] == 7.5
    engine.fail_at, engine.failure = 0, QueueTimeoutError("waited too long; later")
    reply = call(app, "/v1/completions", BODIES["/v1/completions"])
    assert (reply.status, reply.error["code"]) == (503, "queue_timeout")
    assert int(reply.headers["retry-after"]) >= 1


# ---------------------------------------------------------------------- silence

CANARY = "canary-words-of-a-user"
KEY = "canary-key-of-a-user"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "failure", [None, RuntimeError(CANARY), KeyError(CANARY), ValueError(f"bad {CANARY}")]
)
def test_no_words_and_no_key_in_logs_or_errors(
    engine: FakeEngine, path: str, failure: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    engine.fail_at, engine.failure = (None if failure is None else 1), failure or ValueError()
    app = build_app(engine, ServerSettings(api_key=KEY))
    body = {"prompt": CANARY, "user": CANARY, "cache_salt": CANARY}
    if path != "/v1/completions":
        body = {"messages": [{"role": "user", "content": CANARY}], "user": CANARY}
    with caplog.at_level(logging.DEBUG):
        for key in (KEY, KEY + "x"):
            for extra in ({}, {"stream": True}, {"nope": 1}, {"n": 10**6}, {"max_tokens": 10**6}):
                headers = JSON | {"authorization": f"Bearer {key}"}
                reply = call(app, path, body | extra, headers=headers)
                assert CANARY.encode() not in reply.body
                assert KEY.encode() not in reply.body
                assert KEY not in str(reply.headers)
    assert CANARY not in caplog.text  # tracebacks included
    assert KEY not in caplog.text
    assert ("internal error" in caplog.text) == (failure is not None)


def test_a_wrong_sampling_param_of_a_running_request_is_its_own_fault(
    complete: Post, engine: FakeEngine
) -> None:
    from quire.errors import InvalidRequestError

    engine.fail_at = 0
    engine.failure = InvalidRequestError("logit_bias bans all; ban fewer", code="invalid_value")
    assert complete().status == 400


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens"])
def test_requests_that_need_no_engine_are_bounded_too(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("quire.server.api.common.request_gate.MAX_LIGHT_REQUESTS", 3)
    user = {"role": "user", "content": "a" * 5000}  # so long that it is worked on beside the loop
    app, encode = build_app(engine, ServerSettings()), engine.tokenizer.encode_prompt

    def slowly(*args: object, **options: object) -> list[int]:
        time.sleep(0.05)
        return encode(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.tokenizer, "encode_prompt", slowly)

    async def burst(count: int, timeout: str = "30") -> list[Reply]:
        headers = JSON | {"x-request-timeout": timeout}
        body = {"messages": [user]}
        return await asyncio.gather(
            *(request(app, path, body, headers=headers) for _ in range(count))
        )

    statuses = [reply.status for reply in asyncio.run(burst(10))]
    assert sorted(statuses) == [200] * 3 + [429] * 7
    assert asyncio.run(burst(1))[0].status == 200  # they have left
    (late,) = asyncio.run(burst(1, "0.01"))
    assert late.status == 408
    assert asyncio.run(burst(1, "soon"))[0].status == 400


MANY = {"prompt": ["ab", "cd"], "n": 2, "logprobs": 2, "max_tokens": 3}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "logprobs"),
        ({"prompt": "ab"}, "logprobs"),
        ({"logprobs": None, "prompt_logprobs": 2, "n": 1, "max_tokens": 1}, "prompt_logprobs"),
        ({"prompt": "ab", "n": 1}, None),  # bounded by the context
        ({"logprobs": None}, None),
        ({"stream": True}, None),
    ],
)
def test_a_request_holds_so_many_logprobs_until_its_last_answer(
    engine: FakeEngine,
    fields: dict[str, object],
    field: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logprob_bounds, "MAX_HELD", 3)
    reply = call(build_app(engine, ServerSettings()), "/v1/completions", MANY | fields)
    if field is None:
        assert reply.status == 200
    else:
        assert (reply.status, reply.error["param"]) == (400, field)
        assert "more than 3 log-probabilities in all; ask for fewer, " in reply.error["message"]


def test_one_caller_holds_a_share_of_all_logprobs(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_gate, "MAX_HELD", 40)
    monkeypatch.setattr(body_memory, "FREE_BYTES", 0)
    engine.delay = 0.01
    app = build_app(engine, ServerSettings(api_key="one,two"))

    async def ask(*keys: str) -> list[Reply]:
        headers = [JSON | {"authorization": f"Bearer {key}"} for key in keys]
        sent = [request(app, "/v1/completions", MANY, headers=each) for each in headers]
        return await asyncio.gather(*sent)

    def statuses(replies: list[Reply]) -> list[int]:
        return [reply.status for reply in replies]

    assert statuses(run_leaping(ask("one"))) == [200]
    *own, other = run_leaping(ask("one", "one", "one", "one", "two"))
    refused = [reply for reply in own if reply.status == 429]
    held = "of log-probabilities of answers already for this caller"
    assert held in refused[0].error["message"]
    assert other.status == 200
    assert statuses(run_leaping(ask("one"))) == [200]
