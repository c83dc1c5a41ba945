"""Listening: a socket taken before the model is loaded, and uvicorn run on it."""

from __future__ import annotations

import errno
import ipaddress
import signal
import socket
import sys
from asyncio import Protocol
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import cast

import uvicorn
from starlette.applications import Starlette

from quire.errors import ConfigError
from quire.server.admin_listener import AdminListener
from quire.server.drain import Drain
from quire.server.http_protocol import BoundedProtocol, WireLimits
from quire.server.settings import ServerSettings

KEEP_ALIVE_SECONDS = 75  # longer than usual proxies keep a connection, so that they end it
UNSENT_BYTES = 16 << 10  # that the kernel takes of a connection before it can send them
LAST_SECONDS = 1  # for connections to close after the drain


def bind(host: str, port: int) -> socket.socket:
    """Take the address, so that a port in use is said before any work. Raises ConfigError."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.create_server(address[:2], family=family, backlog=2048)
    except (socket.gaierror, UnicodeError):
        raise ConfigError(_not_ours(host)) from None
    except OSError as error:
        raise ConfigError(_why_not(error, host, port)) from None
    if sys.platform == "linux":  # what a slow client has not read waits here, and can be joined
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return sock


def base_url(sock: socket.socket) -> str:
    """The address that clients of this machine use, such as "http://127.0.0.1:8000"."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(sock: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(sock.getsockname()[0]).is_loopback


class Server(uvicorn.Server):
    """Uvicorn with our settings, that says when it is ready and leaves in good order.

    `await serve(sockets=[...])` runs until a signal comes; then running requests get their time
    while new ones are refused. A second signal ends that time. app: made by build_app.
    """

    def __init__(
        self,
        app: Starlette,
        settings: ServerSettings,
        on_ready: Callable[[], None],
        limits: WireLimits | None = None,
    ) -> None:
        limits = limits or WireLimits(stall_seconds=settings.slow_reader_timeout)
        config = uvicorn.Config(
            app,
            http=cast(type[Protocol], partial(BoundedProtocol, limits, app.state.note_end)),
            lifespan="on",
            ws="none",
            access_log=False,
            proxy_headers=False,  # nothing here depends on who the client says that it is
            log_config=None,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=LAST_SECONDS,
        )
        super().__init__(config)
        self._on_ready = on_ready
        self._grace = settings.shutdown_timeout
        self._drain: Drain = app.state.drain
        self._admin = AdminListener(app.state.admin, settings)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections. Raises ConfigError for an admin address in use."""
        await self._admin.start()
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """A signal came. Only Ctrl-C is raised again afterwards, as shells expect."""
        if self.should_exit:
            self._drain.hurry()
        elif sig == signal.SIGINT:
            self._captured_signals.append(sig)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what runs, still telling new requests that they come too late; then close."""
        await self._drain.run(self._grace)
        await self._admin.stop()
        await super().shutdown(sockets=sockets)


def _not_ours(host: str) -> str:
    return f"host {host!r} is no address of this machine; give one, such as 127.0.0.1 or 0.0.0.0"


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; stop what uses it, or give another --port"
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights than this user has; give a --port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return _not_ours(host)
    return f"cannot listen on {host}:{port} ({error.strerror}); give another --host or --port"
