"""AdminListener: the admin endpoints' own uvicorn server, on the public server's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from quire.server.http.http_framing import ConnectionLimits
from quire.server.http.http_protocol import BoundedProtocol


class AdminListener:
    """Serves `app` between `start` and `stop`. sock: bound; None: does nothing."""

    def __init__(self, app: ASGIApp, sock: socket.socket | None) -> None:
        self._app = app
        self._sock = sock
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to accept connections for the admin endpoints."""
        if self._sock is None:
            return
        config = uvicorn.Config(
            self._app,
            http=cast(type[asyncio.Protocol], partial(BoundedProtocol, ConnectionLimits())),
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._sock]))

    async def stop(self) -> None:
        """Stop serving and close the socket."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task


class _Server(uvicorn.Server):
    """A server without signal handlers: those are the public server's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
