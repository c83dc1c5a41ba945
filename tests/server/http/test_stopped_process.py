"""A process that is stopped for longer than all timeouts goes on as if nothing had been.

What clients sent meanwhile is in the kernel: their time is not up before that has been read.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import uvloop
from fake_engine import FakeEngine
from live_server import PATIENCE, Running, raw_post

from quire.server.http import http_protocol
from quire.server.http.http_framing import ConnectionLimits
from quire.server.settings import ServerSettings

LIMITS = ConnectionLimits(header_seconds=0.3, body_seconds=0.3, stall_seconds=0.3)
STOP_SECONDS = 0.8  # longer than all of them


class Stoppable(Running):
    """A server whose event loop can be stopped, as SIGSTOP would."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        settings = ServerSettings(shutdown_timeout=1)
        factory = lambda: self.loop  # noqa: E731
        super().__init__(FakeEngine(), settings, LIMITS, keep_alive=0.3, loop_factory=factory)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """What happens inside is done before it goes on."""
        started, done = threading.Event(), threading.Event()

        def stop() -> None:
            started.set()
            done.wait(10.0)

        self.loop.call_soon_threadsafe(stop)
        assert started.wait(10.0)
        end = time.monotonic() + STOP_SECONDS
        yield
        time.sleep(max(0.0, end - time.monotonic()))
        done.set()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stoppable]:
    monkeypatch.setattr(http_protocol, "STOPPED_SECONDS", 0.2)
    running = Stoppable()
    yield running
    running.stop()


@pytest.mark.parametrize("part", ["headers", "body"])
def test_a_request_that_arrived_meanwhile_is_answered(server: Stoppable, part: str) -> None:
    request = raw_post({"prompt": "a", "max_tokens": 1})
    cut = 20 if part == "headers" else len(request) - 5
    with closing(server.connect()) as sock:
        sock.sendall(request[:cut])
        time.sleep(0.05)
        with server.stopped():
            sock.sendall(request[cut:])
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_is_still_silent_then_is_refused(server: Stoppable) -> None:
    with closing(server.connect()) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\n")
        time.sleep(0.05)
        with server.stopped():
            pass
        assert sock.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_an_idle_connection_takes_the_request_that_came_meanwhile(server: Stoppable) -> None:
    with closing(
        http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    ) as connection:
        connection.request("GET", "/live")
        connection.getresponse().read()
        with server.stopped():
            connection.request("GET", "/live")
        assert connection.getresponse().status == 200


def test_a_slow_reader_is_one_that_reads_nothing_while_the_process_runs(
    server: Stoppable,
) -> None:
    fields = {"prompt": "a", "stream": True, "ignore_eos": True, "max_tokens": 300, "logprobs": 5}
    with closing(server.connect(receive_buffer=4096)) as sock:
        sock.sendall(raw_post(fields))
        time.sleep(0.1)
        with server.stopped():
            pass
        data = b""
        while part := sock.recv(1 << 16):
            data += part
            if b"[DONE]" in data[-100:]:
                break
        assert b"[DONE]" in data
