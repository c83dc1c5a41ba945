"""Request ids, keys, and the small routes."""

from __future__ import annotations

import asyncio

import pytest
from asgi_client import JSON, call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.errors import CallerLimitError, QueueFullError
from quire.server.app import build_app
from quire.server.http.envelope import REFUSAL_SECONDS
from quire.server.settings import ServerSettings
from quire.version import __version__


@pytest.mark.parametrize("label", ["a", "req-1.2:3_X", "x" * 128])
def test_plain_labels_come_back(app: Starlette, label: str) -> None:
    assert call(app, "/health", headers={"x-request-id": label}).headers["x-request-id"] == label


@pytest.mark.parametrize("label", ["", "x" * 129, "a b", "a\r\nx: y", "é", "a/b", "\x00"])
def test_other_labels_are_replaced(app: Starlette, label: str) -> None:
    found = call(app, "/health", headers={"x-request-id": label}).headers["x-request-id"]
    assert found != label
    assert len(found) == 32


def test_every_answer_but_a_probes_has_an_id(app: Starlette) -> None:
    ids = {
        call(app, "/v1/completions", {"prompt": "a", "stream": True}).headers["x-request-id"],
        call(app, "/v1/completions", b"{").headers["x-request-id"],
        call(app, "/nowhere").headers["x-request-id"],
    }
    assert len(ids) == 3
    for probe in ("/health", "/ping", "/ready"):
        assert "x-request-id" not in call(app, probe).headers
        named = build_app(FakeEngine(), ServerSettings(enable_request_id_headers=True))
        assert len(call(named, probe).headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v1/completions", "GET", 405),
        ("/v1/chat/completions", "PUT", 405),
        ("/v1/models", "POST", 405),
        ("/nowhere", "GET", 404),
        ("/v1/completions/", "POST", 404),
        ("/v1", "GET", 404),
        ("/", "POST", 405),
        ("/v1/models/other", "GET", 404),
    ],
)
def test_wrong_paths(app: Starlette, path: str, method: str, status: int) -> None:
    reply = call(app, path, method=method)
    assert reply.status == status
    assert reply.error["type"] == "invalid_request_error"
    if status == 405:
        assert reply.headers["allow"].split(", ")


@pytest.mark.parametrize(
    ("failure", "waits"),
    [(CallerLimitError("a; b"), [REFUSAL_SECONDS]), (QueueFullError("a; b"), [])],
)
def test_a_caller_beyond_its_limit_is_answered_later(
    app: Starlette,
    engine: FakeEngine,
    failure: Exception,
    waits: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, sleep = list[float](), asyncio.sleep

    async def counted(seconds: float) -> None:
        found.extend([seconds] * (seconds > 0.0))
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", counted)
    engine.failure, engine.fail_at = failure, 0
    reply = call(app, "/v1/completions", {"prompt": "a"})
    assert (reply.status, found) == (429, waits)


def test_unknown_model(app: Starlette) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "a", "model": "gpt"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "model": "gpt"}),
    ):
        reply = call(app, path, body)
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
        assert reply.error["param"] == "model"
        assert "'fake'" in reply.error["message"]


def test_models(app: Starlette) -> None:
    (card,) = call(app, "/v1/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("fake", "model", 1024)
    assert call(app, "/v1/models/fake").json() == card


ANTHROPIC = {"anthropic-version": "2023-06-01"}


def test_models_in_anthropics_words(app: Starlette) -> None:
    page = call(app, "/v1/models", headers=ANTHROPIC).json()
    (model,) = page.pop("data")
    assert page == {"has_more": False, "first_id": "fake", "last_id": "fake"}
    assert (model["type"], model["id"], model["lifecycle"]) == ("model", "fake", "active")
    assert (model["max_input_tokens"], model["max_tokens"]) == (1024, 1023)
    assert call(app, "/v1/models/fake", headers=ANTHROPIC).json() == model
    for path, query in (("/v1/models/x", ""), ("/v1/models", "limit=0"), ("/v1/models", "limit=a")):
        refused = call(app, path, headers=ANTHROPIC, query=query)
        assert (refused.status, refused.json()["type"]) == (400 if query else 404, "error")


def test_model_names_with_a_slash(engine: FakeEngine) -> None:
    engine.info.model_name = "org/model"
    app = build_app(engine, ServerSettings())
    assert call(app, "/v1/models/org/model").json()["id"] == "org/model"


def test_version(app: Starlette) -> None:
    assert call(app, "/version").json() == {"version": __version__}


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_health_follows_the_engine(app: Starlette, engine: FakeEngine, path: str) -> None:
    assert call(app, path).status == 200
    engine.is_alive = False
    reply = call(app, path)
    assert (reply.status, reply.headers["retry-after"]) == (503, "5")


def test_lifespan_closes_the_engine(app: Starlette, engine: FakeEngine) -> None:
    import asyncio

    async def start_and_stop() -> None:
        async with app.router.lifespan_context(app):
            assert not engine.closed

    asyncio.run(start_and_stop())
    assert engine.closed


KEY = "sesame"


@pytest.fixture
def locked(engine: FakeEngine) -> Starlette:
    return build_app(engine, ServerSettings(api_key=KEY))


WRONG_KEYS = ["", KEY, f"Basic {KEY}", "Bearer", "Bearer ", "Bearer wrong", f"Bearer {KEY}x"]


@pytest.mark.parametrize("header", WRONG_KEYS)
@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/completions", "/version", "/nowhere", "/page/"]
)
def test_wrong_key_is_refused_everywhere(
    locked: Starlette, engine: FakeEngine, path: str, header: str
) -> None:
    reply = call(locked, path, {"prompt": "a"}, headers=JSON | {"authorization": header})
    assert reply.status == 401
    assert reply.error["type"] == "authentication_error"
    assert reply.error["code"] == "invalid_api_key"
    assert engine.calls == []


@pytest.mark.parametrize("host", ["test/health", "test/health?", "evil#/ping", "[::1", "/ping", ""])
def test_host_header_opens_no_door(locked: Starlette, host: str) -> None:
    assert call(locked, "/v1/models", headers={"host": host}).status == 401


@pytest.mark.parametrize("header", [f"Bearer {KEY}", f"bearer {KEY}", f"Bearer  {KEY} "])
def test_right_key(locked: Starlette, header: str) -> None:
    assert call(locked, "/v1/models", headers={"authorization": header}).status == 200


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_health_needs_no_key(locked: Starlette, path: str) -> None:
    assert call(locked, path).status == 200


def test_every_route_is_locked(locked: Starlette) -> None:
    paths = {route.path for route in locked.routes}  # type: ignore[attr-defined]
    opened = {path for path in paths if call(locked, path).status != 401}
    assert opened == {"/", "/docs", "/health", "/ping", "/ready"}
