"""Server: uvicorn with our settings, on sockets bound before the model was loaded.

The admin endpoints have a server of their own, on the same event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from asyncio import Protocol
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from quire.server.admission.drain import Drain
from quire.server.http.http_framing import ConnectionLimits
from quire.server.http.http_protocol import BoundedProtocol
from quire.server.settings import ServerSettings

KEEP_ALIVE_SECONDS = 75  # longer than usual proxies, so that the proxy closes idle connections
CLOSE_SECONDS = 1  # for connections to close after the drain


class Server(uvicorn.Server):
    """A uvicorn server that reports when it is ready, and drains before it stops.

    `await serve(sockets=[...])` runs until a signal comes. Then running requests have the shutdown
    timeout to finish while new ones are refused; a second signal cuts them. app: made by
    build_server. on_ready: called once it accepts connections. admin: the bound socket of the
    admin endpoints, or None.
    """

    def __init__(
        self,
        app: Starlette,
        settings: ServerSettings,
        on_ready: Callable[[], None],
        limits: ConnectionLimits | None = None,
        admin: socket.socket | None = None,
    ) -> None:
        limits = limits or ConnectionLimits(stall_seconds=settings.slow_reader_timeout)
        protocol = partial(BoundedProtocol, limits, app.state.note_end)
        super().__init__(
            _config(app, protocol, lifespan="on", timeout_keep_alive=KEEP_ALIVE_SECONDS)
        )
        self._on_ready = on_ready
        self._grace = settings.shutdown_timeout
        self._drain: Drain = app.state.drain
        self._admin_app: ASGIApp = app.state.admin
        self._admin_socket = admin
        self._admin: tuple[uvicorn.Server, asyncio.Task[None]] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        if self._admin_socket is not None:
            protocol = partial(BoundedProtocol, ConnectionLimits())
            admin = _AdminServer(_config(self._admin_app, protocol, lifespan="off"))
            task = asyncio.create_task(admin.serve(sockets=[self._admin_socket]))
            self._admin = admin, task
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Start the drain on a signal. Only Ctrl-C is raised again afterwards, as shells expect."""
        if self.should_exit:
            self._drain.hurry()
        elif sig == signal.SIGINT:
            self._captured_signals.append(sig)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish running requests while new ones are refused; then close."""
        await self._drain.run(self._grace)
        if self._admin is not None:
            admin, task = self._admin
            admin.should_exit = True
            await task
        await super().shutdown(sockets=sockets)


class _AdminServer(uvicorn.Server):
    """A server without signal handlers: those are the public server's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(
    app: ASGIApp, protocol: Callable[..., BoundedProtocol], **options: Any
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=cast(type[Protocol], protocol),
        ws="none",
        access_log=False,
        proxy_headers=False,  # nothing here depends on the address that a client claims
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        **options,
    )
