"""The admin endpoints' own listener, beside the public one on the same event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from quire.errors import ConfigError
from quire.server.http_protocol import BoundedProtocol, WireLimits
from quire.server.settings import ServerSettings


class AdminListener:
    """Serves `app` from `start` to `stop`."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take the address, if one was given. Raises ConfigError."""
        sock = bind_admin(self._settings)
        if sock is None:
            return
        config = uvicorn.Config(
            self._app,
            http=cast(type[asyncio.Protocol], partial(BoundedProtocol, WireLimits())),
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[sock]))

    async def stop(self) -> None:
        """Close it, and remove the socket's file."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
        if self._settings.admin_uds is not None:
            Path(self._settings.admin_uds).unlink(missing_ok=True)


class _Server(uvicorn.Server):
    """Signals are the public server's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind_admin(settings: ServerSettings) -> socket.socket | None:
    """The socket that the settings ask for: on loopback, or a file that only its owner can open.

    Raises ConfigError.
    """
    try:
        if settings.admin_port is not None:
            return socket.create_server(("127.0.0.1", settings.admin_port))
        if settings.admin_uds is not None:
            return _bind_file(settings.admin_uds)
    except OSError as error:
        where = settings.admin_uds or f"127.0.0.1:{settings.admin_port}"
        text = f"cannot listen for admin requests on {where} ({error.strerror}); give another "
        raise ConfigError(text + "admin_port or admin_uds") from None
    return None


def _bind_file(path: str) -> socket.socket:
    """A socket of a server that has died is replaced; any other file is an error."""
    file = Path(path)
    if file.is_socket() and not _is_answered(path):
        file.unlink()
    sock = socket.socket(socket.AF_UNIX)
    before = os.umask(stat.S_IRWXG | stat.S_IRWXO | stat.S_IXUSR)
    try:
        sock.bind(path)
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock


def _is_answered(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0
