"""Stored responses: what is kept, for whom, how a conversation goes on, and what is dropped."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from asgi_client import JSON, Reply, call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.errors import OverloadedError
from quire.server.api.openai.response_store import ResponseStore, StoredResponse
from quire.server.app import build_app
from quire.server.http.body_memory import BodySpace
from quire.server.settings import ServerSettings

PATH = "/v1/responses"


def ask(app: Starlette, **fields: Any) -> dict[str, Any]:
    reply = call(app, PATH, {"input": "hi"} | fields)
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json()
    return found


def read(app: Starlette, response_id: str, tail: str = "", **options: Any) -> Reply:
    return call(app, f"{PATH}/{response_id}{tail}", **options)


def test_a_response_is_read_and_deleted(app: Starlette) -> None:
    whole = ask(app, metadata={"a": "b"})
    assert whole["store"] is True
    assert read(app, whole["id"]).json() == whole
    deleted = read(app, whole["id"], method="DELETE").json()
    assert deleted == {"id": whole["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        gone = read(app, whole["id"], method=method)
        assert (gone.status, gone.error["code"]) == (404, "not_found")
        assert gone.error["message"] == f"Response with id '{whole['id']}' not found."


def test_the_end_of_a_stream_is_stored(app: Starlette) -> None:
    body = call(app, PATH, {"input": "hi", "stream": True}).body
    response_id = body.split(b'"id":"')[1].split(b'"')[0].decode()
    stored = read(app, response_id).json()
    assert (stored["status"], stored["output"][0]["content"][0]["text"]) == ("completed", "Hello!")


@pytest.mark.parametrize("fields", [{"store": False}, {}])
def test_what_is_not_stored(engine: FakeEngine, fields: dict[str, Any]) -> None:
    settings = ServerSettings() if fields else ServerSettings(response_store_bytes=0)
    app = build_app(engine, settings)
    whole = ask(app, **fields)
    assert whole["store"] is False
    assert read(app, whole["id"]).status == 404


def test_a_conversation_goes_on(app: Starlette, engine: FakeEngine) -> None:
    first = ask(app, instructions="be kind")
    second = ask(app, input=[{"role": "user", "content": "and?"}], previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    read(app, first["id"], method="DELETE")  # later turns have what they need
    ask(app, input="so?", previous_response_id=second["id"])
    rendered = "<user>hi<assistant>Hello!<user>and?<assistant>Hello!<user>so?<assistant>"
    assert engine.last_prompt == rendered
    body = {"input": "so?", "previous_response_id": second["id"]}
    for prefix in ("/v1", ""):  # counted as it is answered
        counted = call(app, f"{prefix}/responses/input_tokens", body).json()
        assert counted == {"object": "response.input_tokens", "input_tokens": len(rendered)}
    error = call(app, PATH, {"input": "a", "previous_response_id": first["id"]}).error
    assert error["message"] == f"Previous response with id '{first['id']}' not found."
    assert (error["param"], error["code"]) == (
        "previous_response_id",
        "previous_response_not_found",
    )


def test_input_items_are_listed_in_pages(app: Starlette) -> None:
    first = ask(app)
    call_item = {"type": "function_call_output", "call_id": "c", "output": "x"}
    items = [call_item, {"role": "assistant", "content": "ok", "id": "mine"}]
    second = ask(app, input=items, previous_response_id=first["id"])
    page = read(app, second["id"], "/input_items", query="order=asc&limit=2").json()
    assert [item["type"] for item in page["data"]] == ["message", "message"]
    assert page["data"][0]["content"] == [{"type": "input_text", "text": "hi"}]
    assert page["data"][1]["content"][0]["text"] == "Hello!"
    assert (page["has_more"], page["last_id"]) == (True, page["data"][1]["id"])
    query = f"order=asc&after={page['last_id']}"
    rest = read(app, second["id"], "/input_items", query=query).json()
    assert [item["type"] for item in rest["data"]] == ["function_call_output", "message"]
    assert rest["data"][1] == {
        "type": "message", "role": "assistant", "id": "mine", "status": "completed",
        "content": [{"type": "output_text", "text": "ok", "annotations": []}],
    }  # fmt: skip
    latest = read(app, second["id"], "/input_items").json()["data"]
    assert latest == [*rest["data"][::-1], *page["data"][::-1]]
    for query in ("limit=0", "limit=x", "order=up", "after=nobody"):
        refused = read(app, second["id"], "/input_items", query=query)
        assert (refused.status, refused.error["param"]) == (400, query.split("=")[0])


def test_only_background_responses_could_be_cancelled(app: Starlette) -> None:
    reply = read(app, ask(app)["id"], "/cancel", method="POST")
    assert (reply.status, reply.error["message"]) == (400, "Cannot cancel a synchronous response.")
    assert read(app, "resp_0", "/cancel", method="POST").status == 404
    assert read(app, ask(app)["id"], query="stream=true").status == 400


@pytest.mark.parametrize("shares", [False, True])
def test_responses_belong_to_their_key(engine: FakeEngine, shares: bool) -> None:
    app = build_app(engine, ServerSettings(api_key="one,two", share_prefix_cache=shares))
    keys = [JSON | {"authorization": f"Bearer {key}"} for key in ("one", "two")]
    response_id = call(app, PATH, {"input": "hi"}, headers=keys[0]).json()["id"]
    assert read(app, response_id, headers=keys[1]).status == 404
    assert read(app, response_id, method="DELETE", headers=keys[1]).status == 404
    body = {"input": "a", "previous_response_id": response_id}
    assert call(app, PATH, body, headers=keys[1]).status == 400
    assert call(app, f"{PATH}/input_tokens", body, headers=keys[1]).status == 400
    assert call(app, PATH, body, headers=keys[0]).status == 200
    assert call(app, f"{PATH}/input_tokens", body, headers=keys[0]).status == 200
    assert read(app, response_id, headers=keys[0]).status == 200


def test_api_processes_share_what_they_store(tmp_path: Path) -> None:
    first, second = (ResponseStore(tmp_path, 1000) for _ in range(2))
    assert first.put("a", "t", StoredResponse(b"reply", b"items"))
    assert second.get("a", "t") == (b"reply", b"items", 0)
    assert second.delete("a", "t")
    assert first.get("a", "t") is None


@pytest.mark.parametrize("step", [-3600.0, 0.0, 3600.0])
def test_the_newest_stays_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    now = itertools.count(2_000_000_000, step)
    monkeypatch.setattr("time.time", lambda: next(now))
    monkeypatch.setattr("time.time_ns", lambda: int(next(now)) * 10**9)
    stores = [ResponseStore(tmp_path, 100) for _ in range(2)]
    for number in range(20):
        store = stores[number % 2]
        assert store.put(str(number), "", StoredResponse(b"r" * 30, b""))
        assert store.get("0", "") is not None
        if number % 3 == 0:
            store.delete(str(max(1, number - 1)), "")
    assert [n for n in range(20) if stores[0].get(str(n), "")] == [0, 18, 19]


def test_the_least_recently_used_are_dropped(tmp_path: Path, monkeypatch: Any) -> None:
    store = ResponseStore(tmp_path, 100)
    for name in "abc":
        assert store.put(name, "", StoredResponse(b"r" * 20, b"i" * 10))
    assert store.get("a", "") is not None
    assert store.put("d", "", StoredResponse(b"r" * 20, b"i" * 20))
    assert [name for name in "abcd" if store.get(name, "")] == ["a", "c", "d"]
    assert not store.put("e", "", StoredResponse(b"r" * 101, b""))
    monkeypatch.setattr("quire.server.api.openai.response_store.MAX_RESPONSES", 2)
    store.put("f", "", StoredResponse(b"", b""))
    assert [name for name in "abcdf" if store.get(name, "")] == ["d", "f"]


def test_an_answer_outlives_a_store_that_fails(
    engine: FakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "responses.sqlite").write_bytes(b"no database" * 100)
    whole = ask(build_app(engine, ServerSettings(), tmp_path))
    assert (whole["status"], whole["store"]) == ("completed", False)
    assert "a response could not be stored" in caplog.text
    store = ResponseStore(tmp_path / "missing", 1000)
    with pytest.raises(OverloadedError, match="could not be read"):
        store.get("a", "")
    with pytest.raises(OverloadedError, match="could not be deleted"):
        store.delete("a", "")


def test_a_locked_file_is_not_waited_for_long(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path, 1000)
    assert store.put("a", "", StoredResponse(b"", b""))
    other = sqlite3.connect(tmp_path / "responses.sqlite")
    other.execute("BEGIN EXCLUSIVE")
    assert not store.put("b", "", StoredResponse(b"", b""))
    with pytest.raises(OverloadedError):  # else the client would think that it is gone
        store.delete("a", "")
    other.rollback()
    assert store.put("b", "", StoredResponse(b"", b""))
    other.execute("BEGIN IMMEDIATE")
    assert store.get("a", "") is not None  # read, though its use cannot be noted
    other.rollback()


def test_parts_without_effect_are_not_stored(app: Starlette) -> None:
    part = {"type": "output_text", "text": "ok", "annotations": ["a" * 9], "logprobs": [[1] * 9]}
    items = [
        {"role": "assistant", "content": [part]},
        {"type": "function_call_output", "call_id": "c", "output": [part]},
    ]
    found = ask(app, input=items, include=["message.output_text.logprobs"])
    found = ask(app, previous_response_id=found["id"])
    data = read(app, found["id"], "/input_items", query="order=asc").json()["data"]
    parts = [part for item in data for part in item.get("content", item.get("output"))]
    assert [part["text"] for part in parts] == ["ok", "ok", "Hello!", "hi"]
    assert not any(part.get("annotations") or part.get("logprobs") for part in parts)


def test_a_conversation_is_stored_up_to_the_size_of_a_body(engine: FakeEngine) -> None:
    app = build_app(engine, ServerSettings(max_body_bytes=2000))
    first = ask(app, input="a" * 300)
    second = ask(app, input="a" * 600, previous_response_id=first["id"])
    assert (first["store"], second["store"]) == (True, False)


def test_stored_messages_count_as_bytes_of_the_body(engine: FakeEngine, monkeypatch: Any) -> None:
    held: list[int] = []
    monkeypatch.setattr(BodySpace, "hold", lambda _, num_bytes: held.append(num_bytes))
    app = build_app(engine, ServerSettings())
    first = ask(app, input="a" * 800)
    ask(app, previous_response_id=first["id"])
    body_bytes, with_stored = held[-2:]
    assert with_stored > body_bytes + 800


NAMES = [b"previous_response_id", rb"previous\u005fresponse_id"]


@pytest.mark.parametrize("name", NAMES)
def test_the_store_is_used_in_threads(app: Starlette, monkeypatch: Any, name: bytes) -> None:
    threads: list[int] = []
    opened = ResponseStore._opened

    def noted(store: ResponseStore) -> sqlite3.Connection:
        threads.append(threading.get_ident())
        return opened(store)

    monkeypatch.setattr(ResponseStore, "_opened", noted)
    first = ask(app)["id"].encode()
    assert call(app, PATH, b'{"input":"a","' + name + b'":"' + first + b'"}').status == 200
    assert call(app, PATH, {"input": "hi", "stream": True}).status == 200
    assert read(app, first.decode()).status == 200
    assert len(threads) == 7  # each read also notes the use
    assert threading.get_ident() not in threads
