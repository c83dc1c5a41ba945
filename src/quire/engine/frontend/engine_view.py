"""Asking the engine what a live view shows: one question at a time, shared by all who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.core.messages import EngineView, Watch

PATIENCE_SECONDS = 0.25  # a long step answers late; until then the last answer has to do


class Watcher:
    """Sends a Watch when somebody looks and none is on its way. Lives on one event loop."""

    def __init__(self, send: Callable[[Watch], None]) -> None:
        self._send = send
        self._latest: EngineView | None = None
        self._answer: asyncio.Future[None] | None = None

    async def look(self) -> EngineView | None:
        """The engine as of now, or as it was when it last answered; None: it never has."""
        if self._answer is None or self._answer.done():
            self._answer = asyncio.get_running_loop().create_future()
            self._send(Watch())
        await asyncio.wait((self._answer,), timeout=PATIENCE_SECONDS)
        return self._latest

    def put(self, view: EngineView) -> None:
        """The engine's answer, asked for here or by another front."""
        self._latest = view
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def ask_again(self) -> None:
        """The engine that was asked is gone: the next look asks its successor."""
        self._answer = None
