"""The load of an engine in a header of its answers, where a request asks for it."""

from __future__ import annotations

import json

import pytest
from asgi_client import JSON, call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.core.messages import EngineStats


def report(app: Starlette, route: str, asked: str | None, *, stream: bool = False) -> str | None:
    fields = (
        {"prompt": "a"}
        if route == "completions"
        else {"messages": [{"role": "user", "content": "a"}]}
    )
    headers = JSON if asked is None else JSON | {"endpoint-load-metrics-format": asked}
    reply = call(app, f"/v1/{route}", fields | {"stream": stream}, headers=headers)
    assert reply.status == 200
    return reply.headers.get("endpoint-load-metrics")


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_the_load_is_in_the_format_that_is_asked_for(
    app: Starlette, engine: FakeEngine, route: str
) -> None:
    engine.stats = EngineStats(
        num_waiting=3, num_blocks=256, num_free_blocks=128, num_cached_blocks=64
    )
    text = "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3.0"
    assert report(app, route, "TEXT") == report(app, route, "text") == text
    kind, _, data = (report(app, route, "JSON") or "").partition(" ")
    named = {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 3.0}
    assert (kind, json.loads(data)) == ("JSON", {"named_metrics": named})


@pytest.mark.parametrize("asked", [None, "", "BIN"])
def test_nobody_else_gets_it(app: Starlette, asked: str | None) -> None:
    assert report(app, "completions", asked) is None
    assert report(app, "completions", "TEXT", stream=True) is None
