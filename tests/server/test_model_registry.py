"""Several models behind one application, and how they come and go under an API process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgi_client import JSON, Reply, call, request, run_leaping
from model_house import House, model_status
from msgspec.structs import replace
from starlette.applications import Starlette

from quire.engine.processes.control_channel import (
    ControlMessage,
    LoadModel,
    ModelReleased,
    ReleaseModel,
    UnloadModel,
)
from quire.errors import OverloadedError
from quire.server.settings import ServerSettings

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc"},
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "hi"},
    "/v1/messages": CHAT | {"max_tokens": 9},
    "/v1/embeddings": {"input": "hi"},
    "/v1/messages/count_tokens": CHAT,
    "/tokenize": {"prompt": "abc"},
    "/detokenize": {"tokens": [97]},
}


def test_a_process_that_has_not_met_a_loaded_engine_says_so() -> None:
    quality = {"passed": True, "same_top_1": 0.99}
    house = House(model_status("a", "loading", quality=quality))
    house.loader.set_status(
        model_status("a", quality=quality)
    )  # told before the engine is attached
    for path in ("/live", "/ready"):
        reply = call(house.app, path)
        assert (reply.status, b"model a is loading" in reply.body) == (503, True)
    [card] = call(house.app, "/v1/models").json()["data"]
    assert (card["state"], card["max_model_len"]) == ("loading", None)
    assert card["quality"] == quality  # which the parent process has read
    house.become("a", "loaded")
    [card] = call(house.app, "/v1/models").json()["data"]
    assert card["state"] == "loaded"
    assert card["max_model_len"] > 0


def on_demand(**settings: Any) -> House:
    """Model `a` is loaded; `b` is loaded when a request names it."""
    house = House(model_status("a"), model_status("b", "unloaded", at_start=False), **settings)
    house.parent = lambda message: (
        house.later("b", "loading", "loaded") if isinstance(message, LoadModel) else None
    )
    return house


def test_a_server_sleeps_and_wakes_up_under_vllms_names() -> None:
    house = on_demand()
    house.become("b", "loaded")

    def play(message: ControlMessage) -> None:
        loads = isinstance(message, LoadModel)
        assert isinstance(message, LoadModel | UnloadModel)
        house.later(message.name, *(("loading", "loaded") if loads else ("unloaded",)))

    house.parent = play
    admin = house.app.state.admin
    assert call(admin, "/is_sleeping").json() == {"is_sleeping": False}
    slept = call(admin, "/sleep", method="POST", query="level=2&mode=wait")
    assert slept.json() == {"level": 2, "status": "sleeping"}
    graces = {m.name: m.grace for m in house.asked if isinstance(m, UnloadModel)}
    assert graces == dict.fromkeys("ab", ServerSettings().shutdown_timeout)
    assert call(admin, "/is_sleeping").json() == {"is_sleeping": True}
    assert call(admin, "/sleep", method="POST").json() == {"level": 1, "status": "sleeping"}
    awake = call(admin, "/wake_up", method="POST", query="tags=weights&tags=kv_cache").json()
    assert awake == {"tags": ["weights", "kv_cache"], "status": "awake"}
    assert [e.status.state for e in house.models.entries()] == ["loaded", "unloaded"]
    assert text_of(call(house.app, "/v1/completions", {"prompt": "abc"})) == "I am a."


def test_a_server_with_models_on_demand_alone_does_not_sleep() -> None:
    """A client that polls after /wake_up, which loads none of them, goes on."""
    admin = House(model_status("a", "unloaded", at_start=False)).app.state.admin
    assert call(admin, "/wake_up", method="POST").status == 200
    assert call(admin, "/is_sleeping").json() == {"is_sleeping": False}


def test_nothing_is_put_to_sleep_while_a_model_is_loading() -> None:
    house = House(model_status("a"), model_status("b", "loading"))
    reply = call(house.app.state.admin, "/sleep", method="POST")
    assert (reply.status, reply.error["code"]) == (409, "model_is_loading")
    assert not house.asked


def test_sleep_waits_for_the_others_where_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    house, ended = House(), []

    async def unload(name: str, grace: float) -> None:
        if name == "a":
            raise OverloadedError(f"model a, {grace:g} s", retry_after=1.0)
        await asyncio.sleep(0.01)
        ended.append(name)

    monkeypatch.setattr(house.loader, "unload", unload)
    reply = call(house.app.state.admin, "/sleep", method="POST")
    assert (reply.status, reply.error["message"], ended) == (503, "model a, 0 s", ["b"])


@pytest.mark.parametrize(
    ("path", "query", "message"),
    [
        ("/sleep", "level=0", "level: must be 1 or 2, and both free weights and KV cache"),
        ("/sleep", "level=x", "level: must be 1 or 2, and both free weights and KV cache"),
        ("/sleep", "mode=keep", "mode: must be abort or wait; requests are not kept"),
        ("/wake_up", "tags=all", "tags: must be weights or kv_cache, not 'all'"),
    ],
)
def test_levels_and_tags_that_are_none(path: str, query: str, message: str) -> None:
    reply = call(House().app.state.admin, path, method="POST", query=query)
    assert (reply.status, reply.error["message"]) == (400, message)


def text_of(reply: Reply) -> str:
    assert reply.status == 200, reply.body
    text = reply.json()["choices"][0]["text"]
    assert isinstance(text, str)
    return text


def test_a_name_with_the_tag_goes_before_one_without() -> None:
    house = House(model_status("a"), model_status("b", aliases=["a:latest"]))
    for name, model in (("a", "a"), ("a:latest", "b"), ("b:latest", "b"), (":latest", None)):
        reply = call(house.app, "/v1/completions", {"prompt": "abc", "model": name})
        assert (reply.status, reply.json().get("model")) == ((200, model) if model else (404, None))
    assert "model: ':latest' is not served here" in reply.error["message"]
    assert call(house.app, "/v1/models/b:latest").json()["root"] == "b"
    assert call(house.app, "/api/pull", {"model": "c:latest"}).status == 404


@pytest.mark.parametrize("path", BODIES)
def test_every_body_names_its_model(path: str) -> None:
    house = House()
    for name in ("a", "b", "b:latest", None):
        reply = call(house.app, path, BODIES[path] | ({} if name is None else {"model": name}))
        assert reply.status == 200, reply.body
        own, answered = (name or "a")[:1], reply.json().get("model")
        assert answered in (own, None)
        if "choices" in reply.json():
            assert f"I am {own}." in reply.body.decode()
    missing = call(house.app, path, BODIES[path] | {"model": "c"})
    assert missing.status == 404
    assert "'c' is not served here; use 'a' or 'b'" in missing.body.decode()


def test_each_model_has_its_own_tokenizer_and_limits() -> None:
    house = House()
    limits = house.engines["b"].info.limits
    house.engines["b"].info.limits = replace(limits, max_model_len=77)
    house.engines["b"].tokenizer.encode = lambda *_, **__: [1, 2]
    first, second = (
        call(house.app, "/tokenize", {"prompt": "abc", "model": name}).json() for name in "ab"
    )
    assert (first["count"], first["max_model_len"]) == (3, 1024)
    assert (second["count"], second["max_model_len"]) == (2, 77)


def test_the_queue_of_one_model_does_not_fill_the_others() -> None:
    house = House(max_queued_requests=0)
    house.engines["a"].delay = 0.05

    async def crowd() -> list[Reply]:
        names = ["a"] * 12 + ["b"] * 2
        body = BODIES["/v1/completions"]
        sent = [request(house.app, "/v1/completions", body | {"model": name}) for name in names]
        return await asyncio.gather(*sent)

    statuses = [reply.status for reply in run_leaping(crowd())]
    assert sorted(statuses[:12]) == [200] * 8 + [429] * 4
    assert statuses[12:] == [200, 200]
    assert house.models.entrance.in_flight.num_answers == 0
    assert [entry.admission.in_flight.num_answers for entry in house.models.entries()] == [0, 0]


def test_models_and_live_views_by_name() -> None:
    house = on_demand()
    cards = call(house.app, "/v1/models").json()["data"]
    assert [(card["id"], card["state"]) for card in cards] == [("a", "loaded"), ("b", "unloaded")]
    assert call(house.app, "/v1/models/b").json()["max_model_len"] is None
    assert call(house.app, "/live").json()["model"] == "a"
    assert call(house.app, "/live", query="model=c").status == 404
    absent = call(house.app, "/live", query="model=b")
    assert (absent.status, absent.error["code"]) == (503, "model_not_loaded")


def test_ready_means_the_models_of_the_start() -> None:
    house = on_demand()
    assert call(house.app, "/ready").status == 200
    house = House(model_status("a"), model_status("b", "loading"))
    reply = call(house.app, "/ready")
    assert (reply.status, reply.json()["reason"]) == (503, "model b is loading")
    assert call(house.app, "/health").status == 200
    house.become("b", "loaded")
    assert call(house.app, "/ready").status == 200
    for state in ("unloading", "unloaded"):  # to make room, or by an administrator
        house.become("b", state)
        assert call(house.app, "/ready").status == 200
    house.become("b", "unloaded", failure="the engine died")
    assert call(house.app, "/ready").status == 503


# ---------------------------------------------------------------------- on demand


@pytest.mark.parametrize("path", BODIES)
def test_a_request_waits_for_its_model(path: str) -> None:
    house = on_demand()
    assert call(house.app, path, BODIES[path] | {"model": "b"}).status == 200
    assert house.asked == [LoadModel(name="b")]
    assert call(house.app, path, BODIES[path] | {"model": "b"}).status == 200
    assert len(house.asked) == 1


@pytest.mark.parametrize(
    ("path", "settings", "fields", "headers"),
    [
        ("/v1/completions", {"model_load_timeout": 0.03}, {}, {}),
        ("/v1/completions", {"request_timeout": 0.03}, {}, {}),
        ("/v1/completions", {}, {"timeout": 0.03}, {}),
        ("/v1/completions", {}, {}, {"x-request-timeout": "0.03"}),
        ("/tokenize", {"model_load_timeout": 0.03}, {}, {}),
        ("/tokenize", {"request_timeout": 0.03}, {}, {}),
        ("/detokenize", {}, {}, {"x-request-timeout": "0.03"}),
    ],
)
def test_a_model_that_does_not_come_in_time(
    path: str, settings: dict[str, float], fields: dict[str, float], headers: dict[str, str]
) -> None:
    house = on_demand(**settings)
    house.parent = lambda _: None
    reply = call(house.app, path, BODIES[path] | {"model": "b"} | fields, headers=JSON | headers)
    assert (reply.status, reply.error["code"]) == (503, "model_not_loaded")
    assert int(reply.headers["retry-after"]) >= 1
    entry = house.models.entry("b")
    assert (entry.num_waiting, entry.admission.in_flight.num_answers) == (0, 0)


def test_why_a_model_is_not_loaded_is_reported() -> None:
    house = on_demand()
    house.parent = lambda _: asyncio.get_running_loop().call_later(
        0.01, lambda: house.become("b", "unloaded", failure="no room", retry_after=7.0)
    )
    reply = call(house.app, "/v1/completions", BODIES["/v1/completions"] | {"model": "b"})
    assert (reply.status, reply.error["message"]) == (503, "no room")
    assert reply.headers["retry-after"] == "7"


def test_who_comes_while_a_model_leaves_waits_for_its_return() -> None:
    house = on_demand()
    house.parent = lambda _: (
        house.later("b", "unloaded") if len(house.asked) == 1 else house.later("b", "loaded")
    )
    house.become("b", "unloading")
    body = BODIES["/v1/completions"] | {"model": "b"}
    assert text_of(call(house.app, "/v1/completions", body)) == "I am b."
    assert house.asked == [LoadModel(name="b")] * 2


@pytest.mark.parametrize(("grace", "agreed"), [(0.0, False), (0.001, False), (5.0, True)])
def test_a_model_in_use_leaves_only_when_it_must(grace: float, agreed: bool) -> None:
    house = House()
    house.engines["b"].delay = 0.01
    order = ReleaseModel(name="b", number=3, grace=grace)

    async def both() -> Reply:
        body = BODIES["/v1/completions"] | {"model": "b"}
        running = asyncio.create_task(request(house.app, "/v1/completions", body))
        await asyncio.sleep(0.02)
        await house.loader.leave(order)
        assert running.done() == agreed
        return await running

    assert text_of(run_leaping(both())) == "I am b."
    assert house.asked == [ModelReleased(name="b", number=3, agreed=agreed)]


def test_a_model_that_nobody_uses_leaves_at_once() -> None:
    house = House()
    asyncio.run(house.loader.leave(ReleaseModel(name="b", number=3, grace=0.0)))
    assert house.asked == [ModelReleased(name="b", number=3, agreed=True)]


# ---------------------------------------------------------------------- administrators


def admin(house: House) -> Starlette:
    app = house.app.state.admin
    assert isinstance(app, Starlette)
    return app


def test_administrators_see_all_models() -> None:
    house = House(
        model_status("a", num_bytes=100),
        model_status("b", "unloaded", num_bytes=50, failure="no room"),
        model_memory_bytes=120,
    )
    found = call(admin(house), "/admin/models").json()
    assert (found["num_bytes"], found["limit_bytes"]) == (100, 120)
    assert [m["name"] for m in found["models"]] == ["a", "b"]
    assert found["models"][1]["failure"] == "no room"
    assert call(admin(house), "/stats", query="model=b").status == 503
    assert call(admin(house), "/stats", query="model=a").status == 200


def test_administrators_load_and_unload() -> None:
    house = on_demand()
    loaded = call(admin(house), "/admin/models/load", {"model": "b"})
    assert (loaded.status, loaded.json()["state"]) == (200, "loaded")
    house.parent = lambda _: house.later("b", "unloading", "unloaded")
    unloaded = call(admin(house), "/admin/models/unload", {"model": "b", "grace": 2.5})
    assert (unloaded.status, unloaded.json()["state"]) == (200, "unloaded")
    assert house.asked[-1] == UnloadModel(name="b", grace=2.5)
    assert call(admin(house), "/admin/models/unload", {"model": "b"}).json()["state"] == "unloaded"
    assert len(house.asked) == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("load", {"model": "c"}, 404, "'a' or 'b'"),
        ("load", {}, 400, "model"),
        ("load", {"model": "b", "grace": 1}, 400, "grace"),
        ("unload", {"model": "b", "grace": -1}, 400, "grace"),
        ("unload", {"model": "b", "mode": "x"}, 400, "mode"),
        ("unload", {"model": "b"}, 409, "being loaded"),
    ],
)
def test_wrong_orders(path: str, body: dict[str, Any], status: int, word: str) -> None:
    house = House(model_status("a"), model_status("b", "loading"))
    reply = call(admin(house), f"/admin/models/{path}", body)
    assert reply.status == status
    assert word in reply.error["message"]
    assert house.asked == []


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ("", "abc", False),
        ("limit=2", "ab", True),
        ("after_id=a&limit=1", "b", True),
        ("after_id=a", "bc", False),
        ("after_id=c", "", False),
        ("before_id=c&limit=1", "b", True),
        ("before_id=c", "ab", False),
        ("lifecycle[]=retired", "", False),
        ("lifecycle=retired&lifecycle=active", "abc", False),
    ],
)
def test_pages_of_models_for_anthropics_clients(query: str, ids: str, has_more: bool) -> None:
    house = House(*(model_status(name, "unloaded") for name in "abc"))
    headers = {"anthropic-version": "2023-06-01"}
    page = call(house.app, "/v1/models", headers=headers, query=query).json()
    assert "".join(model["id"] for model in page["data"]) == ids
    ends = (ids[0], ids[-1]) if ids else (None, None)
    assert (page["has_more"], page["first_id"], page["last_id"]) == (has_more, *ends)
    for wrong in ("after_id=x", "before_id=x", "after_id=a&before_id=b"):
        assert call(house.app, "/v1/models", headers=headers, query=wrong).status == 400


def test_each_name_is_a_display_name_of_its_own() -> None:
    house = House(model_status("a", "unloaded", aliases=["gpt"]))
    page = call(house.app, "/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert [model["display_name"] for model in page["data"]] == ["a", "gpt"]


def test_a_model_answers_to_all_its_names() -> None:
    house = House(model_status("a", aliases=["gpt", "b"]), model_status("b"))
    for name in ("a", "gpt"):
        reply = call(house.app, "/v1/completions", {"prompt": "x", "model": name}).json()
        assert (reply["model"], reply["choices"][0]["text"]) == ("a", "I am a.")
    body = {"prompt": "x", "model": "b"}  # a model's own name goes before an alias
    assert call(house.app, "/v1/completions", body).json()["model"] == "b"
    cards = call(house.app, "/v1/models").json()["data"]
    assert [(card["id"], card["root"]) for card in cards] == [("a", "a"), ("b", "b"), ("gpt", "a")]
    assert call(house.app, "/v1/models/gpt").json()["root"] == "a"
    house.become("a", "unloaded", aliases=["gpt"])
    assert len(house.models.loaded()) == 1
    error = call(house.app, "/v1/completions", {"prompt": "x", "model": "c"}).error
    assert "'a' or 'b' or 'gpt'" in error["message"]
