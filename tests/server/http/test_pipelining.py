"""Clients that send requests before they have the answers to earlier ones: on real sockets."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest
import uvloop
from fake_engine import FakeEngine
from live_server import Running, raw_post, read_all, wait_for

from quire.server.http.http_framing import ConnectionLimits

LIMITS = ConnectionLimits(num_pipelined=64)
PIECE = 256 << 10  # bytes that an event loop reads at once
CLOSE = b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def server(engine: FakeEngine) -> Iterator[Running]:
    running = Running(engine, limits=LIMITS, loop_factory=uvloop.new_event_loop)
    yield running
    running.stop()


def health(num_bytes: int) -> bytes:
    """A request of this size."""
    head = b"GET /health HTTP/1.1\r\nhost: a\r\npadding: "
    return head.ljust(num_bytes - 4, b"x") + b"\r\n\r\n"


def statuses(server: Running, data: bytes) -> list[bytes]:
    with server.connect() as sock:
        sock.sendall(data)
        return re.findall(rb"HTTP/1\.1 (\d+) ", read_all(sock))


def test_more_are_read_once_those_before_are_started(server: Running) -> None:
    size = PIECE // (LIMITS.num_pipelined // 2)
    assert statuses(server, health(size) * 200 + CLOSE) == [b"200"] * 201


def test_requests_that_wait_for_earlier_answers_are_bounded(
    server: Running, engine: FakeEngine
) -> None:
    engine.delay = 0.02
    sent = raw_post({"prompt": "abc"}) + health(64) * (LIMITS.num_pipelined + 9)
    assert statuses(server, sent) == [b"200"] * (1 + LIMITS.num_pipelined) + [b"400"]


@pytest.mark.parametrize("num_bytes", [20, 100_000, 300_000])
def test_requests_that_wait_have_their_bodies(
    server: Running, engine: FakeEngine, num_bytes: int
) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    body = b'{"prompt": "abc"}'.ljust(num_bytes)
    sent = head + b"content-length: %d\r\n\r\n" % num_bytes + body
    assert statuses(server, sent * 5 + CLOSE) == [b"200"] * 6
    assert len(engine.calls) == 5


def test_a_client_that_leaves_is_no_error_though_a_request_waits(
    server: Running, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.delay = 0.01
    long = {"prompt": "a", "stream": True, "ignore_eos": True, "max_tokens": 500}
    with caplog.at_level(logging.WARNING):
        with server.connect() as sock:
            sock.sendall(raw_post(long) + health(64))
            sock.recv(1000)
        assert wait_for(lambda: len(engine.aborted) == 1)
        assert wait_for(lambda: server.num_connections == 0)
    assert caplog.messages == []
