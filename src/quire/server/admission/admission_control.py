"""Admission control: bounds how many answers are in flight, each counted in and out exactly once.

An answer is in flight from its request's first byte to its last. As many run as the engine has
rows; a bounded number of others wait. Checking and counting is one step without an await, so no
burst can slip in between. Owns the completion rate, which gives the Retry-After of a refused
client; the counts themselves are in in_flight.py. Used by one event loop.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import msgspec

from quire.errors import QueueFullError
from quire.server.admission.in_flight import InFlightCounter

# What Retry-After may say, in seconds, and by how much it varies so that not all return at once.
MIN_RETRY, MAX_RETRY, JITTER = 1.0, 30.0, 0.25
MEMORY = 64  # completions that the rate averages over, roughly


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The most that may be in flight, over all API processes.

    max_running: answers that the engine runs at once. max_waiting: answers besides those.
    max_prompt_tokens: of all answers in flight; None for any number.
    """

    max_running: int
    max_waiting: int
    max_prompt_tokens: int | None = None


class Admission:
    """Admits requests while there is capacity.

    in_flight: the counts; those of all processes count against the capacity. parent: the admission
    of the whole server, which counts everything too; None for that one itself. clock: monotonic
    seconds. jitter: returns numbers between -1 and 1. waiters: subject of the error message.
    """

    def __init__(
        self,
        capacity: Capacity,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(-1.0, 1.0),
        in_flight: InFlightCounter | None = None,
        parent: Admission | None = None,
        waiters: str = "answers wait",
    ) -> None:
        self._waiters = waiters
        self.capacity = capacity
        self.in_flight = in_flight or InFlightCounter.alone()
        self._parent = parent
        self.num_refused = 0
        self._jitter = jitter
        self._rate = CompletionRate(clock)

    @property
    def num_waiting(self) -> int:
        """Answers in flight beyond those that the engine runs at once."""
        return max(0, self.in_flight.num_answers - self.capacity.max_running)

    def retry_after(self) -> float:
        """Seconds until the requests that wait now will have started, at the recent rate.

        This process's share of the waiting requests is taken as its share of all in flight.
        """
        own = (
            self.num_waiting * self.in_flight.num_own_answers // max(1, self.in_flight.num_answers)
        )
        wait = self._rate.seconds_for(max(1, own))
        return min(MAX_RETRY, max(MIN_RETRY, wait * (1.0 + JITTER * self._jitter())))

    def check(self, num_answers: int = 1, num_prompt_tokens: int = 0) -> None:
        """Raise QueueFullError if this does not fit now. With nothing in flight, anything fits."""
        in_flight, capacity = self.in_flight.num_answers, self.capacity
        if in_flight == 0:
            return
        if in_flight + num_answers > capacity.max_running + capacity.max_waiting:
            self._refuse(f"{self.num_waiting} {self._waiters} already")
        limit = capacity.max_prompt_tokens
        if limit is None:
            return
        num_tokens = self.in_flight.num_prompt_tokens
        if num_tokens + num_prompt_tokens > limit:
            self._refuse(f"{num_tokens} prompt tokens are being served already")

    def take(self, num_answers: int, num_prompt_tokens: int) -> None:
        """Count in; raises QueueFullError with nothing counted."""
        self.check(num_answers, num_prompt_tokens)
        if self._parent is not None:
            self._parent.take(num_answers, num_prompt_tokens)
        if self.in_flight.num_own_answers == 0:
            self._rate.resume()
        self.in_flight.add(num_answers, num_prompt_tokens)

    def release(
        self, num_answers: int, num_prompt_tokens: int, *, are_complete: bool = False
    ) -> None:
        """Subtract a request from the counts in flight; its complete answers make up the rate."""
        if self._parent is not None:
            self._parent.release(num_answers, num_prompt_tokens, are_complete=are_complete)
        self.in_flight.add(-num_answers, -num_prompt_tokens)
        if are_complete:
            self._rate.add(num_answers)

    def _refuse(self, reason: str) -> None:
        self.num_refused += 1
        text = f"the server is full: {reason}; send the request again later"
        raise QueueFullError(text, retry_after=self.retry_after())


class Ticket:
    """In-flight count of one request, at first of one answer; its `with` block counts it out, once.

    Raises QueueFullError.
    """

    def __init__(self, admission: Admission) -> None:
        admission.take(1, 0)
        self.admission = admission
        self._num_answers, self._num_prompt_tokens = 1, 0
        self._is_charged = False

    def charge(
        self, num_answers: int, num_prompt_tokens: int, *, at: Admission | None = None
    ) -> None:
        """Count what the parsed request asks for. Raises QueueFullError.

        at: where it counts from now on; None for where it counts already.
        """
        self._count_out()
        self.admission = at or self.admission
        self.admission.take(num_answers, num_prompt_tokens)
        self._num_answers, self._num_prompt_tokens = num_answers, num_prompt_tokens
        self._is_charged = True

    def move(self, at: Admission) -> None:
        """Count as one answer in another admission from now on. Raises QueueFullError."""
        if at is self.admission:
            return
        self._count_out()
        self.admission = at
        at.take(1, 0)
        self._num_answers = 1

    def _count_out(self, *, are_complete: bool = False) -> None:
        self.admission.release(
            self._num_answers, self._num_prompt_tokens, are_complete=are_complete
        )
        self._num_answers = self._num_prompt_tokens = 0

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *_: object) -> None:
        # refused and malformed requests say nothing about the engine's speed
        self._count_out(are_complete=self._is_charged)


class CompletionRate:
    """Completed answers per busy second, over about the last MEMORY; idle time does not count."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self._num_completed = 0.0
        self._seconds = 0.0

    def resume(self) -> None:
        """Restart the clock after idle time, which does not count."""
        self._last = self._clock()

    def add(self, count: int) -> None:
        """Count completed answers in the rate."""
        if not count:
            return
        now = self._clock()
        decay = (1.0 - 1.0 / MEMORY) ** count
        self._num_completed = self._num_completed * decay + count
        self._seconds = self._seconds * decay + now - self._last
        self._last = now

    def seconds_for(self, count: int) -> float:
        """Seconds that `count` completions will take; time since the last one counts as busy."""
        if not self._num_completed:
            return MIN_RETRY
        busy = self._seconds + self._clock() - self._last
        return count * busy / self._num_completed
