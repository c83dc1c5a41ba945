"""Graceful shutdown (drain): running requests finish, new ones are refused.

Owns the drain state of this process. The signal that starts it and what is closed afterwards
(sockets, engines) are in uvicorn_server.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.errors import DrainingError
from quire.server.http.disconnect import TASK_KEY
from quire.server.http.envelope import OPEN_PATHS

logger = logging.getLogger(__name__)

CUT_SECONDS = 0.5  # for cut requests to send their clients the error
# seconds: another server takes the request at once, and this one ends with its last answer
RETRY_AFTER = 1.0

_TOO_LATE = "the server shuts down and the time to finish is over"


class Drain:
    """The running requests of this process, and when they are cut. Used by one event loop."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()
        self._is_over = False

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused."""
        return self._deadline is not None

    def enter(self) -> asyncio.Task[Any]:
        """Register the current task, returned, as serving a request. Raises DrainingError."""
        if self._deadline is not None:
            text = "the server is shutting down; send the request to another one, or again later"
            raise DrainingError(text, retry_after=RETRY_AFTER)
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        return task

    def leave(self, task: asyncio.Task[Any]) -> None:
        """The task's request has ended."""
        self._running.discard(task)
        self._changed.set()

    async def run(self, grace: float) -> None:
        """Refuse new requests, wait for the running ones, and cut them after `grace` seconds."""
        if self._running:
            text = "shutting down: %g s to finish for requests: %d"
            logger.info(text, grace, len(self._running))
        else:
            logger.info("shutting down: no request is running")
        self._deadline = time.monotonic() + grace
        await self._wait_idle(until_over=True)
        for _ in range(2):  # a second time for those whose clients do not read the error either
            for task in self._running:
                task.cancel(_TOO_LATE)
            self._deadline = time.monotonic() + CUT_SECONDS
            await self._wait_idle(until_over=False)

    def hurry(self) -> None:
        """Cut the running requests now. May be called by a signal handler."""
        self._is_over = True

    async def _wait_idle(self, *, until_over: bool) -> None:
        assert self._deadline is not None
        while self._running and time.monotonic() < self._deadline:
            if until_over and self._is_over:
                return
            self._changed.clear()
            left = min(0.1, self._deadline - time.monotonic())  # a signal sets no event
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()


def cut_error(cancelled: asyncio.CancelledError) -> DrainingError:
    """The error for a request that the drain cut. Raises `cancelled` if it was not the drain."""
    if cancelled.args != (_TOO_LATE,):
        raise cancelled
    text = "the server was shut down before the answer was complete; send the request again"
    return DrainingError(text, retry_after=RETRY_AFTER)


class DrainGate:
    """ASGI middleware: registers requests that do work (POST), and refuses them during a drain.

    OPEN_PATHS are always answered.
    """

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] != "POST" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, _closing(send) if self._drain.is_draining else send)
            return
        task = scope["state"][TASK_KEY] = self._drain.enter()
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError as cancelled:
            raise cut_error(cancelled) from None
        finally:
            self._drain.leave(task)


def _closing(send: Send) -> Send:
    """A `send` that asks the client not to use the connection again."""

    async def send_closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"connection", b"close")]
            message = {**message, "headers": headers}
        await send(message)

    return send_closing
