"""FairExecutor: threads for the work of several callers, none of whom delays another by much.

Each caller has used some seconds so far. A free slot goes to the waiting caller that has used the
fewest; one that comes anew starts with the fewest of those that wait, so nobody saves up time. A
caller with costly work in a loop delays another one by a single piece of it, or by nothing where a
caller may not have all slots. Of one caller's own work, as that of many clients behind one proxy,
what is expected to be quick goes first, within bounds.

Used on one event loop, without locks.
"""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from quire.background import BackgroundThreads, CancelFlag, working_for
from quire.errors import DrainingError

T = TypeVar("T")

MAX_CALLERS = 1024  # whose used seconds are remembered
PATIENCE = 4.0  # work waits for quicker work of its caller that comes in as many times its seconds


class FairExecutor:
    """Threads with FairSlots. name: of the threads."""

    def __init__(self, num_threads: int, name: str, *, most_each: int | None = None) -> None:
        self._pool = BackgroundThreads(num_threads, name)
        self._slots = FairSlots(num_threads, most_each)
        self._is_closed = False

    async def run(
        self,
        caller: str,
        work: Callable[[], T],
        max_wait: float | None = None,
        expected: float = 0.0,
    ) -> T:
        """The result of the work, once it was the caller's turn.

        Raises TimeoutError, DrainingError after `close`, and OverloadedError where no thread can be
        started.

        max_wait: seconds. expected: seconds that it may take; quicker work goes first. A
        cancellation does not interrupt work that has started, but `check_caller` raises in it.
        """
        async with asyncio.timeout(max_wait):
            await self._slots.enter(caller, expected)
        begin, cancel_flag = time.monotonic(), CancelFlag()
        try:
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._pool, _work_for, cancel_flag, work)
        except BaseException:  # the pool was closed, or there is no memory for a thread
            self._slots.leave(caller, 0.0)  # the next one's turn, to be refused as well
            if self._is_closed:
                raise DrainingError("the engine is shutting down; send it again later") from None
            raise
        future.add_done_callback(partial(self._end, caller, begin))
        try:
            return await asyncio.shield(future)
        finally:
            cancel_flag.is_set = True
            del future  # else an error, its traceback and the future would be a cycle

    @property
    def is_awaited(self) -> bool:
        """Whether some work waits for its turn."""
        return self._slots.is_awaited

    def close(self) -> None:
        """Begin no more work; from any thread.

        What has a thread is finished; those that wait get a DrainingError at their turn.
        """
        self._is_closed = True
        self._pool.shutdown(wait=False)

    def _end(self, caller: str, begin: float, future: asyncio.Future[Any]) -> None:
        if not future.cancelled():
            future.exception()  # its caller may have been cancelled
        self._slots.leave(caller, time.monotonic() - begin)


def _work_for(cancel_flag: CancelFlag, work: Callable[[], T]) -> T:
    with working_for(cancel_flag):
        return work()


class _Turn(msgspec.Struct, eq=False):
    """One that waits. rank: among those of its caller; expected: seconds of its work."""

    rank: float
    expected: float
    started: asyncio.Future[None]

    def __lt__(self, other: _Turn) -> bool:
        return self.rank < other.rank


class FairSlots:
    """Slots, each for one caller at a time. most_each: that one caller may have; None: all."""

    def __init__(self, num_slots: int, most_each: int | None = None) -> None:
        self._num_free = num_slots
        self._most_each = most_each or num_slots
        self._num_running: dict[str, int] = {}
        self._waiting: dict[str, list[_Turn]] = {}
        self._used: dict[str, float] = {}
        self._least = 0.0  # used seconds of the caller that began last

    async def enter(self, caller: str, expected: float = 0.0) -> None:
        """Wait until it is the caller's turn; each has to be left."""
        started = asyncio.get_running_loop().create_future()
        turn = _Turn(time.monotonic() + PATIENCE * expected, expected, started)
        if caller not in self._waiting and caller not in self._num_running:
            self._used[caller] = max(self._used.get(caller, 0.0), self._least)
        insort(self._waiting.setdefault(caller, []), turn)
        self._start_next()
        try:
            await started
        except asyncio.CancelledError:
            if not started.cancelled():  # it was its turn already
                self.leave(caller, 0.0)
            elif any(turn is other for other in self._waiting.get(caller, ())):
                self._forget(caller, turn)
            raise

    @property
    def is_awaited(self) -> bool:
        """Whether callers wait for a turn."""
        return bool(self._waiting)

    def _start_next(self) -> None:
        while self._num_free:
            ready = [c for c in self._waiting if self._num_running.get(c, 0) < self._most_each]
            if not ready:
                return
            caller = min(ready, key=self._rank)
            turn = self._waiting[caller][0]
            self._forget(caller, turn)
            if turn.started.cancelled():
                continue
            self._num_free -= 1
            self._num_running[caller] = self._num_running.get(caller, 0) + 1
            self._least = max(self._least, self._used[caller])
            turn.started.set_result(None)

    def _rank(self, caller: str) -> float:
        """Seconds used, with those of the next work: the lowest is next."""
        return self._used[caller] + self._waiting[caller][0].expected

    def _forget(self, caller: str, turn: _Turn) -> None:
        """Remove a turn from the queue."""
        self._waiting[caller] = [other for other in self._waiting[caller] if other is not turn]
        if not self._waiting[caller]:
            del self._waiting[caller]

    def leave(self, caller: str, seconds: float) -> None:
        """Free a slot that was held for this many seconds."""
        self._used[caller] += seconds
        self._num_free += 1
        self._num_running[caller] -= 1
        if not self._num_running[caller]:
            del self._num_running[caller]
        self._start_next()
        if len(self._used) > MAX_CALLERS:
            present = self._waiting.keys() | self._num_running.keys()
            self._used = {caller: self._used[caller] for caller in present}
