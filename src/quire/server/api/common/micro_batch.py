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

from quire.background import check_caller, hurry
from quire.errors import is_failure

T = TypeVar("T")
Stages = Generator[None, None, T]


class _Work(msgspec.Struct, eq=False):
    """A preparation whose caller waits for its result."""

    stages: Stages[Any]
    result: asyncio.Future[Any]


class MicroBatch:
    """Runs the preparations of one turn of the event loop together, at the end of the turn."""

    def __init__(self) -> None:
        self._waiting: list[_Work] = []
        self._loop: asyncio.AbstractEventLoop  # of the waiting callers

    def run(self, stages: Stages[T]) -> asyncio.Future[T]:
        """Run a preparation with all others; returns the future of its result.

        Its error is TooLongError if it is for a thread.
        """
        if not self._waiting:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._run_all)
        work = _Work(stages, self._loop.create_future())
        self._waiting.append(work)
        return work.result

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
        if not work.result.done():  # else its client has disconnected meanwhile
            work.result.set_result(end.value)
    except BaseException as error:
        if not is_failure(error):
            raise
        if not work.result.done():
            work.result.set_exception(error)
    return False


def run_stages(stages: Stages[T]) -> T:
    """Run all stages of one preparation, in any thread, while its caller waits."""
    try:
        while True:
            check_caller()
            next(stages)
    except StopIteration as end:
        result: T = end.value
        return result
