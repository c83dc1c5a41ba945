"""News of one request on their way from the engine's steps to whoever asked. On one event loop."""

from __future__ import annotations

import asyncio

from quire.core.request_output import RequestOutput
from quire.errors import QuireError


class OutputQueue:
    """One caller's unread news. What a slow reader has not taken is joined, so it stays bounded.

    loop: the caller's. whole: all news are wanted together, and nobody is woken before the last.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, whole: bool = False) -> None:
        self._loop = loop  # to look for it costs a system call
        self._whole = whole
        self._unread: RequestOutput | None = None
        self._failure: QuireError | None = None
        self._reader: asyncio.Future[None] | None = None

    def put(self, news: RequestOutput | QuireError) -> None:
        """Add news; never blocks."""
        if isinstance(news, QuireError):
            self._failure = news
        elif self._unread is None:
            self._unread = news
        else:
            self._unread.append(news)
        if self._reader is not None and not self._reader.done() and self._has_enough:
            self._reader.set_result(None)

    async def take(self) -> RequestOutput:
        """Wait for news and take all of it. Raises the error that ended the request."""
        if not self._has_enough:
            self._reader = self._loop.create_future()
            await self._reader
        if self._failure is not None:
            raise self._failure
        assert self._unread is not None
        news, self._unread = self._unread, None
        return news

    @property
    def _has_enough(self) -> bool:
        if self._unread is None:
            return self._failure is not None
        return not self._whole or self._unread.finished or self._failure is not None
