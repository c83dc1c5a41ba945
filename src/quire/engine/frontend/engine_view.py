"""Fetches the engine's state for a live view: one request at a time, shared by all who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.core.messages import EngineView, GetEngineView

TIMEOUT_SECONDS = 0.25  # a long step answers late; after this the previous view is returned


class EngineViewClient:
    """Sends GetEngineView when a view is wanted and none is on its way. On one event loop."""

    def __init__(self, send: Callable[[GetEngineView], None]) -> None:
        self._send = send
        self._latest: EngineView | None = None
        self._reply: asyncio.Future[None] | None = None

    async def fetch(self) -> EngineView | None:
        """The current view, or the previous one if the engine is slow; None if there is none."""
        if self._reply is None or self._reply.done():
            self._reply = asyncio.get_running_loop().create_future()
            self._send(GetEngineView())
        await asyncio.wait((self._reply,), timeout=TIMEOUT_SECONDS)
        return self._latest

    def put(self, view: EngineView) -> None:
        """Store a view from the engine, for all who wait for one."""
        self._latest = view
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(None)

    def reset(self) -> None:
        """Forget the pending request: the engine process that got it has died."""
        self._reply = None
