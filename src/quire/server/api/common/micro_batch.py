"""MicroBatch: requests that arrive together are prepared stage by stage instead of one by one.

All requests of one turn of the event loop are parsed, then all rendered, then all tokenized. The
code of a request's way through the server is larger than a processor's inner caches. One request
after another would load all of it each time; stage by stage, the code of a stage is loaded once
for all of them. This saves 13 to 20 % of the API process's CPU time under load
(docs/decisions/server.md).

A preparation is a generator that yields where a stage ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, TypeVar

import msgspec

from quire.background import hurry
from quire.errors import is_failure

T = TypeVar("T")
Stages = Generator[None, None, T]


class _Work(msgspec.Struct, eq=False):
    """A preparation whose caller waits for `done`. result or error: how it ended."""

    stages: Stages[Any]
    done: asyncio.Future[None]
    result: Any = None
    error: BaseException | None = None


class MicroBatch:
    """Runs the preparations of one turn of the event loop together, at the end of the turn."""

    def __init__(self) -> None:
        self._waiting: list[_Work] = []
        self._loop: asyncio.AbstractEventLoop  # of the waiting callers

    async def run(self, stages: Stages[T]) -> T:
        """Run a preparation with all others; returns its result or raises its error.

        Raises TooLongError if it is for a thread.
        """
        if not self._waiting:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._run_all)
        work = _Work(stages, self._loop.create_future())
        self._waiting.append(work)
        await work.done
        if work.error is not None:
            raise work.error
        result: T = work.result
        return result

    def _run_all(self) -> None:
        running, self._waiting = self._waiting, []
        with hurry():
            while running:
                running = [work for work in running if _run_stage(work)]


def _run_stage(work: _Work) -> bool:
    """Run the next stage of a preparation. Returns whether there are more."""
    try:
        next(work.stages)
        return True
    except StopIteration as end:
        work.result = end.value
    except BaseException as error:
        if not is_failure(error):
            raise
        work.error = error
    if not work.done.done():  # else its client has disconnected meanwhile
        work.done.set_result(None)
    return False


def run_stages(stages: Stages[T]) -> T:
    """Run all stages of one preparation, in any thread."""
    try:
        while True:
            next(stages)
    except StopIteration as end:
        result: T = end.value
        return result
