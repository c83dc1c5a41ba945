"""When a request must have ended, whatever it is doing. On the monotonic clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from quire.errors import DeadlineError, OwnDeadlineError

_ENDLESS = nullcontext()


class Deadline:
    """Begins with the request. seconds: the server's limit; None: it may take for ever."""

    def __init__(self, seconds: float | None) -> None:
        self._begin = time.monotonic()
        self._seconds = seconds
        self._owner: str | None = None  # the request's field that set the limit

    def shorten(self, seconds: float | None, owner: str) -> None:
        """The request itself gives so many seconds, counted from its beginning, in this field."""
        if seconds is not None and (self._seconds is None or seconds < self._seconds):
            self._seconds, self._owner = seconds, owner

    @property
    def left(self) -> float | None:
        """Seconds until then, None for ever."""
        if self._seconds is None:
            return None
        return max(0.0, self._begin + self._seconds - time.monotonic())

    def enforced(self) -> AbstractAsyncContextManager[None]:
        """Cancel what runs inside when the time is over.

        Raises OwnDeadlineError if the limit was the request's own, else DeadlineError.
        """
        return _ENDLESS if self._seconds is None else self._enforced(self._seconds)

    @asynccontextmanager
    async def _enforced(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.left):
                yield
        except TimeoutError:
            raise _passed(seconds, self._owner) from None


def _passed(seconds: float, owner: str | None) -> DeadlineError | OwnDeadlineError:
    text = f"the request did not end within {seconds:g} s"
    if owner is None:
        return DeadlineError(f"{text}, the server's limit; ask for a shorter answer")
    text = f"{owner}: {text}; give it more time, or ask for a shorter answer"
    return OwnDeadlineError(text, param=owner)
