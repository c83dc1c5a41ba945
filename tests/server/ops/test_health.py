"""Liveness and readiness differ exactly where a restart from outside would do harm."""

from __future__ import annotations

import asyncio

import pytest
from asgi_client import call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.core.messages import EngineStats
from quire.server.app import build_app
from quire.server.settings import ServerSettings


def statuses(app: Starlette) -> tuple[int, int, int]:
    health, ping, ready = (call(app, path).status for path in ("/health", "/ping", "/ready"))
    return health, ping, ready


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, (200, 200, 200)),
        ({"seconds_since_heartbeat": 30.0}, (200, 200, 200)),  # a slow layer
        ({"seconds_since_heartbeat": 61.0}, (503, 503, 503)),
        ({"is_alive": False}, (503, 503, 503)),
        ({"is_alive": False, "is_restarting": True}, (200, 200, 503)),
    ],
)
def test_each_state_of_the_engine(
    app: Starlette, engine: FakeEngine, state: dict[str, object], expected: tuple[int, int, int]
) -> None:
    for name, value in state.items():
        setattr(engine, name, value)
    assert statuses(app) == expected


def test_an_engine_that_goes_on_with_this_process_is_healthy(
    app: Starlette, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When all were stopped for an hour, the first look finds an old heartbeat."""
    monkeypatch.setattr(
        FakeEngine, "seconds_since_heartbeat", property(lambda _: ages.pop()), raising=False
    )
    vars(engine).pop("seconds_since_heartbeat", None)
    ages = [0.1, 3600.0]
    assert call(app, "/health").status == 200
    assert not ages


def test_a_server_that_drains_is_healthy_but_not_ready(app: Starlette) -> None:
    asyncio.run(app.state.drain.run(0))
    assert statuses(app) == (200, 200, 503)
    reply = call(app, "/ready")
    assert reply.json()["reason"] == "draining"
    assert reply.headers["retry-after"] == "5"


def test_a_weight_that_is_not_finite_is_named_by_a_server_that_works_on(
    app: Starlette, engine: FakeEngine
) -> None:
    engine.stats = EngineStats(weight_fault="the weight w has numbers that are not finite")
    reply = call(app, "/health")
    assert (reply.status, reply.json()["status"]) == (200, "ok")
    assert "the weight w" in reply.json()["reason"]
    assert call(app, "/ready").status == 200


def test_no_key_is_asked_for(engine: FakeEngine) -> None:
    assert statuses(build_app(engine, ServerSettings(api_key="k"))) == (200, 200, 200)


def test_load_counts_answers(app: Starlette) -> None:
    def load() -> int:
        count: int = call(app, "/load").json()["server_load"]
        return count

    assert load() == 0
    app.state.models.find(None).admission.in_flight.add(3, 100)
    assert load() == 3
    app.state.models.find(None).admission.in_flight.add(-3, -100)
    assert load() == 0
