"""When a request must have ended, whatever it is doing. On the monotonic clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from quire.errors import DeadlineError

_ENDLESS = nullcontext()


class Deadline:
    """Begins with the request; None seconds: it may take for ever."""

    def __init__(self, seconds: float | None) -> None:
        self._begin = time.monotonic()
        self._seconds = seconds

    def shorten(self, seconds: float | None) -> None:
        """The request itself gives so many seconds, counted from its beginning."""
        if seconds is not None:
            self._seconds = seconds if self._seconds is None else min(seconds, self._seconds)

    @property
    def left(self) -> float | None:
        """Seconds until then, None for ever."""
        if self._seconds is None:
            return None
        return max(0.0, self._begin + self._seconds - time.monotonic())

    def kept(self) -> AbstractAsyncContextManager[None]:
        """Cancel what runs inside when the time is over. Raises DeadlineError."""
        return _ENDLESS if self._seconds is None else self._kept(self._seconds)

    @asynccontextmanager
    async def _kept(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.left):
                yield
        except TimeoutError:
            text = f"the request did not end within {seconds:g} s; give it more time, "
            raise DeadlineError(text + "or ask for a shorter answer") from None
