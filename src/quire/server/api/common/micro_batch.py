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
import math
import time
from collections.abc import Generator
from functools import partial
from typing import Any, TypeVar

import msgspec

from quire.background import check_caller, hurry
from quire.errors import is_failure
from quire.fair_queue import FairExecutor

SLICE_SECONDS = 0.05  # of a thread for one preparation, beside the rest of a stage

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
                running = list(filter(_run_stage, running))  # a comprehension would hold the last


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
        del work  # else its result, the error and this frame would be a cycle
    return False


async def run_in_slices(stages: Stages[T], threads: FairExecutor, caller: str) -> T:
    """Run one preparation in threads, in time slices: other work waits for one, not for all of it.

    Raises what the preparation does, and as `FairExecutor.run`.
    """
    while True:
        found = await threads.run(caller, partial(run_stages, stages, SLICE_SECONDS))
        if found is not None:
            return found[0]


def run_stages(stages: Stages[T], seconds: float = math.inf) -> tuple[T] | None:
    """Run stages in any thread, while their caller waits; None: some are left after the time."""
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            check_caller()
            next(stages)
    except StopIteration as stop:
        return (stop.value,)
    return None
