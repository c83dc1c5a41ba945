"""Who may enter: so many answers at once and no more, each counted in and out exactly once.

An answer is in the house from its request's first byte to its last. As many run as the engine has
rows; the others wait, and only a bounded number of them. Checking and counting is one step without
an await, so no burst can slip in between. Owns the measured rate of departures, from which a
refused client is told when to come back; counts are in_flight.py's. Lives on one event loop.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from quire.errors import QueueFullError
from quire.server.admission.in_flight import InFlightCounter

# What Retry-After may say, in seconds, and by how much it varies so that not all return at once.
MIN_RETRY, MAX_RETRY, JITTER = 1.0, 30.0, 0.25
MEMORY = 64  # departures that the rate looks back on, roughly


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """What a server takes in, over all its processes.

    max_running: answers that the engine runs at once. max_waiting: besides those.
    max_prompt_tokens: of all answers in the house, or None for any number.
    """

    max_running: int
    max_waiting: int
    max_prompt_tokens: int | None = None


class Admission:
    """Counts what is in the house.

    heads: where; those of all processes count for the capacity. house: what it is a part of, if it
    is: there everything is counted, too. clock: seconds that only go forward. jitter: numbers
    between -1 and 1. waiters: who is told to wait, "answers wait".
    """

    def __init__(
        self,
        capacity: Capacity,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(-1.0, 1.0),
        heads: InFlightCounter | None = None,
        house: Admission | None = None,
        waiters: str = "answers wait",
    ) -> None:
        self._waiters = waiters
        self.capacity = capacity
        self.heads = heads or InFlightCounter.alone()
        self._house = house
        self.num_refused = 0
        self._jitter = jitter
        self._rate = CompletionRate(clock)

    @property
    def num_waiting(self) -> int:
        """Answers that are more than the engine runs at once."""
        return max(0, self.heads.num_answers - self.capacity.max_running)

    def enter(self) -> Ticket:
        """Count a request in, as one answer. Raises QueueFullError."""
        return Ticket(self)

    def retry_after(self) -> float:
        """Seconds until those who wait now will have begun, at the rate of late.

        Of those who wait, this process has the part that it has of all.
        """
        own = self.num_waiting * self.heads.num_own_answers // max(1, self.heads.num_answers)
        wait = self._rate.seconds_for(max(1, own))
        return min(MAX_RETRY, max(MIN_RETRY, wait * (1.0 + JITTER * self._jitter())))

    def check(self, num_answers: int = 1, num_prompt_tokens: int = 0) -> None:
        """Raises QueueFullError if so much has no place now. Alone, anything may enter."""
        in_house, capacity = self.heads.num_answers, self.capacity
        if in_house == 0:
            return
        if in_house + num_answers > capacity.max_running + capacity.max_waiting:
            self._refuse(f"{self.num_waiting} {self._waiters} already")
        num_tokens, limit = self.heads.num_prompt_tokens, capacity.max_prompt_tokens
        if limit is not None and num_tokens + num_prompt_tokens > limit:
            self._refuse(f"{num_tokens} prompt tokens are being served already")

    def take(self, num_answers: int, num_prompt_tokens: int) -> None:
        """Count in, or raise QueueFullError with nothing counted."""
        self.check(num_answers, num_prompt_tokens)
        if self._house is not None:
            self._house.take(num_answers, num_prompt_tokens)
        if self.heads.num_own_answers == 0:
            self._rate.resume()
        self.heads.add(num_answers, num_prompt_tokens)

    def give_back(self, num_answers: int, num_prompt_tokens: int) -> None:
        """Count out."""
        if self._house is not None:
            self._house.give_back(num_answers, num_prompt_tokens)
        self.heads.add(-num_answers, -num_prompt_tokens)

    def has_served(self, num_answers: int) -> None:
        """So many answers are done: places become free at this rate."""
        self._rate.depart(num_answers)
        if self._house is not None:
            self._house.has_served(num_answers)

    def _refuse(self, why: str) -> None:
        self.num_refused += 1
        text = f"the server is full: {why}; send the request again later"
        raise QueueFullError(text, retry_after=self.retry_after())


class Ticket:
    """What one request has been counted as. Leaving its `with` block counts it out, once."""

    def __init__(self, admission: Admission) -> None:
        admission.take(1, 0)
        self.admission = admission
        self._num_answers, self._num_prompt_tokens = 1, 0
        self._is_charged = False

    def charge(
        self, num_answers: int, num_prompt_tokens: int, *, at: Admission | None = None
    ) -> None:
        """The request is known now: it wants so much in all. Raises QueueFullError.

        at: where it counts from now on, if not where it has entered.
        """
        self._count_out()
        self.admission = at or self.admission
        self.admission.take(num_answers, num_prompt_tokens)
        self._num_answers, self._num_prompt_tokens = num_answers, num_prompt_tokens
        self._is_charged = True

    def move(self, at: Admission) -> None:
        """Count there from now on, still as one answer. Raises QueueFullError."""
        self._count_out()
        self.admission = at
        at.take(1, 0)
        self._num_answers = 1

    def _count_out(self) -> None:
        self.admission.give_back(self._num_answers, self._num_prompt_tokens)
        self._num_answers = self._num_prompt_tokens = 0

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_charged:  # refused and malformed requests say nothing of the engine's speed
            self.admission.has_served(self._num_answers)
        self._count_out()


class CompletionRate:
    """Departures per busy second, over about the last MEMORY of them; idle time does not count."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self._num_departed = 0.0
        self._seconds = 0.0

    def resume(self) -> None:
        """The house was empty until now."""
        self._last = self._clock()

    def depart(self, count: int) -> None:
        """So many have left."""
        if not count:
            return
        now = self._clock()
        kept = (1.0 - 1.0 / MEMORY) ** count
        self._num_departed = self._num_departed * kept + count
        self._seconds = self._seconds * kept + now - self._last
        self._last = now

    def seconds_for(self, count: int) -> float:
        """How long so many departures will take. A standstill since the last one counts."""
        if not self._num_departed:
            return MIN_RETRY
        busy = self._seconds + self._clock() - self._last
        return count * busy / self._num_departed
