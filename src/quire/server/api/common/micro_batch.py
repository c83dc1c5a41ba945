"""Micro-batches: requests that came together are all read, then all rendered, then all encoded.

The code of a whole request is larger than a processor's nearer caches. If each stage serves all
requests of one turn of the event loop, its code stays there (docs/decisions/server.md).
A preparation is a generator that yields where a stage ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
Steps = Generator[None, None, T]


class _Work(msgspec.Struct, eq=False):
    """A preparation whose caller waits for `done`. result or error: how it ended."""

    steps: Steps[Any]
    done: asyncio.Future[None]
    result: Any = None
    error: Exception | None = None


class MicroBatch:
    """Runs what comes in one turn of the event loop together, when the turn ends."""

    def __init__(self) -> None:
        self._waiting: list[_Work] = []
        self._loop: asyncio.AbstractEventLoop  # of those who wait

    async def run(self, steps: Steps[T]) -> T:
        """What a preparation returns; raises what it raises."""
        if not self._waiting:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._run_all)
        work = _Work(steps, self._loop.create_future())
        self._waiting.append(work)
        await work.done
        if work.error is not None:
            raise work.error
        result: T = work.result
        return result

    def _run_all(self) -> None:
        running, self._waiting = self._waiting, []
        while running:
            running = [work for work in running if _goes_on(work)]


def _goes_on(work: _Work) -> bool:
    """Run its next stage. Returns whether there are more."""
    try:
        next(work.steps)
        return True
    except StopIteration as end:
        work.result = end.value
    except Exception as error:
        work.error = error
    if not work.done.done():  # else its caller has left meanwhile
        work.done.set_result(None)
    return False


def at_once(steps: Steps[T]) -> T:
    """Run a preparation alone, in any thread."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
