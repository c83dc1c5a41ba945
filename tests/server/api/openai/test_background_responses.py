"""Responses in the background: their states, how they end, and who may still change them."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from asgi_client import Reply, call, request
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.server.api.openai.background_responses import BackgroundWatch
from quire.server.api.openai.response_store import ResponseStore, StoredResponse
from quire.server.app import build_app
from quire.server.http.disconnect import DisconnectWatch
from quire.server.settings import ServerSettings

PATH = "/v1/responses"
POLL_SECONDS = 0.01


async def begin(app: Starlette, **fields: Any) -> tuple[str, asyncio.Task[Reply]]:
    """Ask in the background and leave; the response's id, and the task that works on it."""
    reply, body = Reply(0, {}, b""), {"input": "hi", "background": True} | fields
    task = asyncio.ensure_future(request(app, PATH, body, leave_after=1, into=reply))
    while not reply.body and not task.done():
        await asyncio.sleep(0)
    queued = reply.json()
    assert (reply.status, queued["status"], queued["background"]) == (200, "queued", True)
    return queued["id"], task


async def read(app: Starlette, response_id: str, tail: str = "", method: str = "GET") -> Any:
    return (await request(app, f"{PATH}/{response_id}{tail}", method=method)).json()


def ended_process() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


async def until_called(engine: FakeEngine) -> None:
    while not engine.calls:
        await asyncio.sleep(0)


def test_a_response_is_completed_without_its_client(app: Starlette, engine: FakeEngine) -> None:
    async def main() -> None:
        engine.wait_at = 2
        response_id, task = await begin(app)
        await until_called(engine)
        running = await read(app, response_id)
        assert (running["status"], running["output"], running["usage"]) == ("in_progress", [], None)
        asked = {"input": "more", "previous_response_id": response_id}
        refused = (await request(app, PATH, asked)).error
        assert refused["param"] == "previous_response_id"
        assert "that response is in_progress" in refused["message"]
        engine.go.set()
        await task
        done = await read(app, response_id)
        assert (done["status"], done["background"]) == ("completed", True)
        assert done["output"][0]["content"][0]["text"] == "Hello!"
        assert done["usage"]["output_tokens"] == 6
        assert await read(app, response_id, "/cancel", "POST") == done
        assert (await request(app, PATH, asked)).json()["status"] == "completed"

    asyncio.run(main())


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_response_that_is_cancelled_or_deleted_stops(
    app: Starlette, engine: FakeEngine, method: str
) -> None:
    async def main() -> None:
        engine.wait_at = 2
        response_id, task = await begin(app)
        await until_called(engine)
        tail = "/cancel" if method == "POST" else ""
        ended = await read(app, response_id, tail, method)
        await task
        assert len(engine.aborted) == 1
        if method == "POST":
            assert ended["status"] == "cancelled"
            assert await read(app, response_id) == ended
            assert await read(app, response_id, tail, method) == ended  # as often as one likes
        else:
            assert (await read(app, response_id))["error"]["code"] == "not_found"

    asyncio.run(main())


def test_a_response_has_the_timings_that_it_asks_for(app: Starlette) -> None:
    async def main() -> None:
        for fields in ({"timings_per_token": True}, {}):
            response_id, task = await begin(app, **fields)
            await task
            done = await read(app, response_id)
            assert done["status"] == "completed"
            assert ("timings" in done) == bool(fields)
            assert not fields or done["timings"]["predicted_n"] == 6

    asyncio.run(main())


def test_a_failure_is_stored(app: Starlette, engine: FakeEngine) -> None:
    async def main() -> None:
        engine.fail_at = 1
        response_id, task = await begin(app)
        await task
        found = await read(app, response_id)
        assert (found["status"], found["error"]["code"]) == ("failed", "internal_error")
        assert "secret" not in found["error"]["message"]
        assert found["output"] == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"store": False}, "background can only be used when `store` is true"),
        ({"stream": True}, "background: its answer is not streamed"),
    ],
)
def test_what_does_not_go_with_background(
    app: Starlette, fields: dict[str, Any], message: str
) -> None:
    refused = call(app, PATH, {"input": "hi", "background": True} | fields)
    assert (refused.status, refused.error["param"]) == (400, "background")
    assert refused.error["message"].startswith(message)


def test_a_response_whose_process_has_ended_has_failed(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path, 1000)
    running = StoredResponse(b'{"status":"in_progress"}', b"[]", ended_process())
    assert running.is_abandoned
    assert not running._replace(process=os.getpid()).is_abandoned
    assert store.put("a", "t", running)
    assert store.get("a", "t") == running
    assert store.running_ids(running.process) == {"a"}
    assert store.replace_running("a", "t", b"{}")
    assert not store.replace_running("a", "t", b"{}")
    found = store.get("a", "t")
    assert found is not None
    assert not found.is_abandoned
    assert store.running_ids(running.process) == set()
    store.close()


def test_its_reader_gets_the_failure(engine: FakeEngine, tmp_path: Path) -> None:
    app = build_app(engine, ServerSettings(), tmp_path)
    store = ResponseStore(tmp_path, 1000)
    left = StoredResponse(b'{"id":"a","status":"in_progress"}', b"[]", ended_process())
    assert store.put("a", "", left)
    error = {"code": "server_error", "message": "its server process ended; send it again"}
    for _ in range(2):
        reply = call(app, "/v1/responses/a", method="GET")
        assert reply.json() == {"id": "a", "status": "failed", "error": error}
    store.close()


def test_a_response_that_no_store_holds_is_refused_for_good(engine: FakeEngine) -> None:
    app = build_app(engine, ServerSettings(response_store_bytes=1000))
    reply = call(app, PATH, {"input": "hi" * 400, "background": True})
    assert (reply.status, reply.error["param"]) == (400, "background")
    assert "bytes is not stored (at most 1000)" in reply.error["message"]
    assert not engine.calls
    assert call(app, PATH, {"input": "hi", "background": True}).status == 200


def test_the_store_is_looked_at_once_for_all(
    app: Starlette, engine: FakeEngine, monkeypatch: Any
) -> None:
    looks: list[set[str] | None] = []
    running_ids = ResponseStore.running_ids

    def counted(store: ResponseStore, process: int) -> set[str] | None:
        looks.append(running_ids(store, process))
        return looks[-1]

    monkeypatch.setattr("quire.server.api.openai.background_responses.POLL_SECONDS", POLL_SECONDS)
    monkeypatch.setattr(ResponseStore, "running_ids", counted)

    async def main() -> None:
        engine.wait_at = 2
        started = [await begin(app) for _ in range(8)]
        ids = {response_id for response_id, _ in started}
        while ids not in looks:
            await asyncio.sleep(0.001)
        first = started[0][0]
        looks.clear()
        begin_of_looks = time.monotonic()
        await read(app, first, "/cancel", "POST")
        await started[0][1]
        assert len(engine.aborted) == 1
        polls = (time.monotonic() - begin_of_looks) / POLL_SECONDS  # on a busy machine many
        assert len(looks) <= 2 + polls  # not one for each of the eight
        assert looks[-1] == ids - {first}
        engine.go.set()
        await asyncio.gather(*(task for _, task in started))
        looks.clear()
        await asyncio.sleep(0.03)
        assert not looks  # as none runs

    asyncio.run(main())


def test_a_look_that_fails_is_not_the_last(
    monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store, answers = ResponseStore(None, 100), [MemoryError("no room"), set[str]()]

    def running_ids(_store: ResponseStore, _process: int) -> set[str]:
        answer = answers.pop(0)
        if isinstance(answer, MemoryError):
            raise answer
        return answer

    monkeypatch.setattr("quire.server.api.openai.background_responses.POLL_SECONDS", 0.001)
    monkeypatch.setattr(ResponseStore, "running_ids", running_ids)

    async def main() -> None:
        with BackgroundWatch(store).watched("r") as ended:
            await asyncio.wait_for(ended.wait(), 5)

    asyncio.run(main())
    assert [record.exc_text is not None for record in caplog.records] == [True]
    store.close()


def test_a_running_response_is_not_dropped() -> None:
    store = ResponseStore(None, 100)
    running = StoredResponse(b"r" * 40, b"", os.getpid())
    assert store.put("abandoned", "t", running._replace(process=ended_process()))
    assert store.put("a", "t", running)
    assert store.put("done", "t", StoredResponse(b"r" * 20, b""))
    assert store.get("done", "t")
    assert store.put("b", "t", running)
    assert [name for name in ("abandoned", "a", "done", "b") if store.get(name, "t")] == [
        *("a", "done", "b")
    ]
    assert not store.put("c", "t", running)
    assert not store.put("d", "t", StoredResponse(b"r" * 30, b""))
    assert store.get("done", "t")  # nothing is dropped for what does not fit
    assert store.replace_running("a", "t", b"r" * 70)  # an answer is kept
    assert [name for name in ("a", "done", "b") if store.get(name, "t")] == ["a", "b"]
    assert store.put("c", "t", running)
    assert [name for name in "abc" if store.get(name, "t")] == ["b", "c"]


def test_a_store_full_of_running_responses_refuses_the_next(
    app: Starlette, engine: FakeEngine, monkeypatch: Any
) -> None:
    monkeypatch.setattr("quire.server.api.openai.response_store.MAX_RESPONSES", 1)

    async def main() -> None:
        engine.wait_at = 2
        response_id, task = await begin(app)
        await until_called(engine)
        async with asyncio.timeout(5):
            refused = await request(app, PATH, {"input": "hi", "background": True})
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        engine.go.set()
        await task
        assert (await read(app, response_id))["status"] == "completed"

    asyncio.run(main())


def test_a_store_that_is_locked_loses_no_answer(
    engine: FakeEngine, tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("quire.server.api.openai.response_store._WAIT_SECONDS", 0.0)
    monkeypatch.setattr("quire.server.api.openai.background_responses._RETRY_SECONDS", 0.001)

    async def main() -> None:
        engine.wait_at = 2
        app = build_app(engine, ServerSettings(), tmp_path)
        response_id, task = await begin(app)
        await until_called(engine)
        other = sqlite3.connect(tmp_path / "responses.sqlite")
        for lock, problem in [("EXCLUSIVE", "read"), ("IMMEDIATE", "updated")]:
            other.execute(f"BEGIN {lock}")
            refused = await request(app, f"{PATH}/{response_id}/cancel", method="POST")
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert f"could not be {problem}" in refused.error["message"]
            other.rollback()
        other.execute("BEGIN IMMEDIATE")
        caplog.clear()
        engine.go.set()
        while caplog.text.count("could not be updated") < 2:
            assert not task.done()
            await asyncio.sleep(0.001)
        other.close()
        await task
        assert (await read(app, response_id))["status"] == "completed"

    asyncio.run(main())


def test_a_client_may_leave_before_its_response_is_stored(
    app: Starlette, engine: FakeEngine, monkeypatch: Any
) -> None:
    watches: list[DisconnectWatch] = []
    stored: list[str] = []
    run, put = DisconnectWatch.run, ResponseStore.put

    def watched(watch: DisconnectWatch, *args: Any) -> Any:
        watches.append(watch)
        return run(watch, *args)

    monkeypatch.setattr(DisconnectWatch, "run", watched)

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def leave() -> None:
            watches[-1].disconnect()

        def put_after_leaving(store: ResponseStore, response_id: str, *rest: Any) -> bool:
            asyncio.run_coroutine_threadsafe(leave(), loop).result(5)
            stored.append(response_id)
            return put(store, response_id, *rest)

        monkeypatch.setattr(ResponseStore, "put", put_after_leaving)
        await request(app, PATH, {"input": "hi", "background": True})
        while not stored:
            await asyncio.sleep(0.001)
        assert (await read(app, stored[0]))["status"] == "completed"
        assert len(engine.calls) == 1

    asyncio.run(main())


def test_messages_as_token_ids(app: Starlette) -> None:
    reply = call(app, PATH, {"input": "hi", "enable_response_messages": True}).json()
    assert reply["output_messages"] == [
        {"type": "raw_message_tokens", "message": "Hello!</s>", "tokens": [*map(ord, "Hello!")]}
    ]
    (prompt,) = reply["input_messages"]
    assert "".join(map(chr, prompt["tokens"])) == "<user>hi<assistant>"
    assert prompt["message"] == "<user>hi<assistant></s>"  # as the fake tokenizer ends all texts
    assert "input_messages" not in call(app, PATH, {"input": "hi"}).json()
    asked = {"input": "hi", "enable_response_messages": True, "stream": True}
    last = call(app, PATH, asked).body.rsplit(b"data: ", 1)[1]
    assert json.loads(last)["response"]["output_messages"] == reply["output_messages"]
