"""Eight clients that do nothing wrong, and what they and newcomers notice of a fault.

Each asks for the same greedy answer again and again on its own kept-alive connection. Compared with
the answers of a quiet server are text, reason of the end and number of tokens; how many tokens
share an event depends on time, and ids and dates differ anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from reliability.served import Server, paused, until
from reliability.wire import Answer, Connection, ask

PATH = "/v1/completions"
NUM_STREAMS = 8
LENGTH = 200
PROMPTS = [f"Chapter {number}. The story of a" for number in range(NUM_STREAMS)]
PROBE_SECONDS = 0.25


def completion(prompt: object, length: int, **fields: object) -> dict[str, Any]:
    """A greedy completion that runs to its last token."""
    return {
        "prompt": prompt,
        "max_tokens": length,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | fields


@dataclass
class Watch:
    """Bystanders' answers. gaps: seconds between events; statuses: of newcomers' requests."""

    answers: list[tuple[int, Answer]] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    unready_seconds: float = 0.0

    @property
    def gaps(self) -> list[float]:
        """Seconds between two events, of all answers."""
        return [gap for _, answer in self.answers for gap in answer.gaps]

    def p99(self) -> float:
        """The 99th percentile of gaps between tokens, in seconds."""
        gaps = sorted(self.gaps)
        return gaps[max(0, math.ceil(0.99 * len(gaps)) - 1)]

    def contents(self) -> list[set[tuple[str, str | None, int]]]:
        """The different answers to each of the prompts."""
        found: list[set[tuple[str, str | None, int]]] = [set() for _ in PROMPTS]
        for index, answer in self.answers:
            found[index].add(answer.content)
        return found


class Bystanders:
    """Eight connections, all to the first API process."""

    def __init__(self, connections: list[Connection], server: Server) -> None:
        self._connections = connections
        self._server = server

    @classmethod
    @asynccontextmanager
    async def connected(cls, server: Server) -> AsyncIterator[Bystanders]:
        """Connect all of them."""
        with paused(server.workers[1:]):
            connections = [await Connection.open(server.url) for _ in PROMPTS]
            for connection in connections:
                await connection.ask("/ready")  # now they are accepted
        try:
            yield cls(connections, server)
        finally:
            for connection in connections:
                connection.close()

    @asynccontextmanager
    async def watching(self, length: int = LENGTH) -> AsyncIterator[Watch]:
        """All clients stream inside the context; at its end they finish what they have begun."""
        watch, stop = Watch(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for index, connection in enumerate(self._connections):
                group.create_task(_repeat(index, connection, length, watch, stop))
            group.create_task(_probe(self._server.url, watch, stop))
            group.create_task(_look_at_readiness(self._server, watch, stop))
            with contextlib.suppress(TimeoutError):
                await until(lambda: _all_stream(watch))
            try:
                yield watch
            finally:
                stop.set()


def _all_stream(watch: Watch) -> bool:
    return len({index for index, answer in watch.answers if answer.num_events > 2}) == NUM_STREAMS


async def _repeat(
    index: int, connection: Connection, length: int, watch: Watch, stop: asyncio.Event
) -> None:
    while not stop.is_set():
        answer = Answer()
        watch.answers.append((index, answer))
        try:
            async with asyncio.timeout(120):
                await connection.stream(PATH, completion(PROMPTS[index], length), answer)
        except (OSError, EOFError) as error:
            answer.error = repr(error)
            return
        if answer.status != 200:  # a new request while the engine is away
            await asyncio.sleep(PROBE_SECONDS)


async def _probe(url: str, watch: Watch, stop: asyncio.Event) -> None:
    """Newcomers: one short request at a time, each on a connection of its own."""
    body = completion("hello", 2, stream=False, stream_options=None)
    while not stop.is_set():
        watch.statuses[(await ask(url, PATH, body)).status] += 1
        await asyncio.sleep(PROBE_SECONDS)


async def _look_at_readiness(server: Server, watch: Watch, stop: asyncio.Event) -> None:
    last = time.monotonic()
    while not stop.is_set():
        await asyncio.sleep(0.05)
        is_ready = await server.is_ready()
        now = time.monotonic()
        if not is_ready:
            watch.unready_seconds += now - last
        last = now
