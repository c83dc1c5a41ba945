"""When a request must have ended, whatever it is doing. On the event loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quire.errors import DeadlineError


class Deadline:
    """Begins with the request; None seconds: it may take for ever."""

    def __init__(self, seconds: float | None) -> None:
        self._begin = asyncio.get_running_loop().time()
        self._seconds = seconds

    def shorten(self, seconds: float | None) -> None:
        """The request itself gives so many seconds, counted from its beginning."""
        if seconds is not None:
            self._seconds = seconds if self._seconds is None else min(seconds, self._seconds)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Cancel what runs inside when the time is over. Raises DeadlineError."""
        if self._seconds is None:
            yield
            return
        try:
            async with asyncio.timeout_at(self._begin + self._seconds):
                yield
        except TimeoutError:
            text = f"the request did not end within {self._seconds:g} s; give it more time, "
            raise DeadlineError(text + "or ask for a shorter answer") from None
