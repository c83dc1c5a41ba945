"""Deadline: when a request must have ended, on the monotonic clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import msgspec

from quire.errors import DeadlineError, OwnDeadlineError

_ENDLESS = nullcontext()


class Deadline(msgspec.Struct, eq=False):
    """Counts from its creation. _seconds: the server's limit; None for no limit."""

    _seconds: float | None
    _start: float = msgspec.field(default_factory=time.monotonic)
    _field: str | None = None  # of the request, that set the limit

    def shorten(self, seconds: float | None, field: str) -> None:
        """Apply a limit that the request sets itself, in this field or header."""
        if seconds is not None and (self._seconds is None or seconds < self._seconds):
            self._seconds, self._field = seconds, field

    @property
    def left(self) -> float | None:
        """Seconds until the deadline; None without one."""
        if self._seconds is None:
            return None
        return max(0.0, self._start + self._seconds - time.monotonic())

    def within(self, seconds: float) -> float:
        """That many seconds, or those that are left if they are fewer."""
        left = self.left
        return seconds if left is None else min(seconds, left)

    def enforced(self) -> AbstractAsyncContextManager[None]:
        """A context that cancels what runs inside it at the deadline.

        It raises OwnDeadlineError if the limit was the request's own, else DeadlineError.
        """
        return _ENDLESS if self._seconds is None else self._enforced(self._seconds)

    @asynccontextmanager
    async def _enforced(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.left):
                yield
        except TimeoutError:
            raise _passed(seconds, self._field) from None


def _passed(seconds: float, field: str | None) -> DeadlineError | OwnDeadlineError:
    text = f"the request did not end within {seconds:g} s"
    if field is None:
        return DeadlineError(f"{text}, the server's limit; request a shorter answer")
    text = f"{field}: {text}; raise it, or request a shorter answer"
    return OwnDeadlineError(text, param=field)
