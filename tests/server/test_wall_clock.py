"""A clock that jumps by hours, both ways, while the server works: only shown dates move."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from asgi_client import JSON, request
from fake_engine import FakeEngine

from quire.server.app import build_app
from quire.server.settings import ServerSettings

HOUR = 3600.0
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
SLOW = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True}


@pytest.fixture
def jumps(monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """Each look at the clock on the wall finds another time, by up to ten hours."""
    rng, real = random.Random(20), time.time
    monkeypatch.setattr(time, "time", lambda: real() + rng.uniform(-10 * HOUR, 10 * HOUR))
    return rng


def test_no_answer_timeout_or_figure_depends_on_the_date(jumps: random.Random) -> None:
    engine = FakeEngine(delay=0.002)
    app = build_app(engine, ServerSettings(gpu_hour_cost=3600.0))
    begin = time.monotonic()

    async def cost() -> float:
        text = (await request(app, "/metrics")).body.decode()
        (line,) = [line for line in text.splitlines() if line.startswith("quire:cost_total")]
        return float(line.split()[-1])

    async def scenario() -> None:
        for _ in range(5):
            reply = await request(app, "/v1/chat/completions", CHAT)
            assert reply.status == 200
            assert abs(reply.json()["created"] - time.time()) < 21 * HOUR
            header = JSON | {"x-request-timeout": "0.05"}
            assert (await request(app, "/v1/completions", SLOW, headers=header)).status == 408
            assert (await request(app, "/health")).status == 200
            assert 0.0 <= await cost() <= time.monotonic() - begin + 0.5
        assert (await request(app, "/v1/models")).status == 200

    asyncio.run(scenario())
    assert 0.25 < time.monotonic() - begin < 10.0
    assert jumps.random() < 1.0
