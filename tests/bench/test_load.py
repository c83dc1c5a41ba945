"""The closed loop: requests keep their order, concurrency is bounded, each is sent once."""

from __future__ import annotations

import asyncio
import json

import pytest
from scripted_server import Seen, chat_events, chunked, scripted_server

from quire.bench.client import RequestResult
from quire.bench.load import closed_loop


@pytest.mark.parametrize(("count", "concurrency"), [(0, 3), (1, 4), (20, 4), (5, 1), (2, 1 << 40)])
def test_closed_loop(count: int, concurrency: int) -> None:
    seen = Seen()
    done: list[RequestResult] = []

    async def run() -> list[RequestResult]:
        bodies = [json.dumps({"n": n}).encode() for n in range(count)]
        async with scripted_server(chunked(chat_events("ab"), delay=0.002), seen) as url:
            return await closed_loop(f"{url}/x", bodies, concurrency, done.append)

    results = asyncio.run(run())
    assert [result.error for result in results] == [None] * count
    assert sorted(body["n"] for body in seen.bodies) == list(range(count))
    assert seen.most_open <= concurrency
    assert sorted(map(id, done)) == sorted(map(id, results))
    assert [result.sent for result in results] == sorted(e.sent for e in results)
