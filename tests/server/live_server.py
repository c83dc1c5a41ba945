"""A real uvicorn on a loopback port, in a thread, for what only real sockets can show."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from fake_engine import FakeEngine

from quire.server.app import build_app
from quire.server.http.http_framing import ConnectionLimits
from quire.server.http.listen_address import bind, bind_admin
from quire.server.settings import ServerSettings
from quire.server.uvicorn_server import Server

PATIENCE = 30.0  # seconds that a busy machine may need for what an idle one does at once


class Running:
    """The server in a thread."""

    def __init__(
        self,
        engine: FakeEngine,
        settings: ServerSettings | None = None,
        limits: ConnectionLimits | None = None,
        keep_alive: float | None = None,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
        sock: socket.socket | None = None,
    ) -> None:
        self.sock = sock or bind("127.0.0.1", 0)
        self.port = self.sock.getsockname()[1]
        settings = settings or ServerSettings(shutdown_timeout=1)
        self._admin = bind_admin(settings.admin_port, settings.admin_uds)
        ready = threading.Event()
        app, admin = build_app(engine, settings), self._admin.__enter__()
        self._server = Server(app, settings, ready.set, limits, admin)
        if keep_alive is not None:
            self._server.config.timeout_keep_alive = keep_alive  # type: ignore[assignment]

        def serve() -> None:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(self._server.serve(sockets=[self.sock]))

        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()
        assert ready.wait(PATIENCE)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._admin.__exit__(None, None, None)
        self.sock.close()

    @property
    def num_connections(self) -> int:
        return len(self._server.server_state.connections)

    @contextmanager
    def post(self, **body: Any) -> Iterator[http.client.HTTPResponse]:
        with closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        ) as connection:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            with connection.getresponse() as response:
                yield response

    def connect(self, *, receive_buffer: int | None = None) -> socket.socket:
        """A plain socket; receive_buffer: bytes that the kernel keeps for it, roughly."""
        sock = socket.socket()
        sock.settimeout(PATIENCE)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect(("127.0.0.1", self.port))
        return sock


def as_new(running: Running, engine: FakeEngine) -> Running:
    """A server that tests share, since to start and stop one takes longer than most of them."""
    assert wait_for(lambda: running.num_connections == 0)
    vars(engine).update(vars(FakeEngine()))
    return running


def raw_post(body: dict[str, Any], *, headers: bytes = b"") -> bytes:
    """The bytes of a complete request."""
    data = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    return head + headers + b"content-length: %d\r\n\r\n" % len(data) + data


def read_all(sock: socket.socket) -> bytes:
    """Everything until the other side closes; a reset ends it, too."""
    data = b""
    try:
        while part := sock.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True
