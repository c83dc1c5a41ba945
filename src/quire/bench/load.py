"""Driving load: a fixed number of requests in flight, each lane sending as soon as it is free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from quire.bench.client import RequestResult, stream_request


async def closed_loop(
    url: str,
    bodies: Sequence[bytes],
    concurrency: int,
    on_done: Callable[[RequestResult], None] = lambda _: None,
    api_key: str | None = None,
) -> list[RequestResult]:
    """Send every body, at most `concurrency` at once; results in the order of the bodies."""
    waiting = iter(enumerate(bodies))
    done: dict[int, RequestResult] = {}

    async def lane() -> None:
        for index, body in waiting:
            done[index] = await stream_request(url, body, api_key=api_key)
            on_done(done[index])

    await asyncio.gather(*(lane() for _ in range(min(concurrency, len(bodies)))))
    return [done[index] for index in range(len(bodies))]
