"""Bytes that are nearly HTTP, on real sockets: never a 5xx, and others are served as before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import pytest
from fake_engine import FakeEngine
from hypothesis import example, given, settings
from hypothesis import strategies as st
from live_server import Running, raw_post, read_all, wait_for

from quire.server.http.http_framing import ConnectionLimits
from quire.server.settings import ServerSettings

BODY = b'{"prompt": "a", "max_tokens": 2}'
GOOD = raw_post({"prompt": "a"}, headers=b"connection: close\r\n")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    limits = ConnectionLimits(
        header_seconds=0.1, header_bytes=4096, num_headers=32, body_seconds=0.1
    )
    running = Running(FakeEngine(), ServerSettings(shutdown_timeout=1), limits, keep_alive=0.1)
    yield running
    running.stop()


METHODS = st.sampled_from(
    [b"POST", b"GET", b"HEAD", b"OPTIONS", b"PRI", b"post", b"CONNECT", b"", b"\x16\x03"]
)
TARGETS = st.one_of(
    st.sampled_from(
        [
            b"/v1/completions",
            b"/health",
            b"*",
            b"/v1/models/\xff\xfe",
            b"/v1/models/%00",
            b"/%",
            b"/v1/models/%ff%zz",
            b"http://x/health",
            b"//",
            b"/?\x00",
            b"/..;/",
            b"\xe2\x82\xac",
            b"/v1/models/%ed%a0%80",
            b"/v1/models/" + b"a" * 3000,
            b"x:443",
            b"/a b",
        ]
    ),
    st.binary(max_size=8).map(lambda data: b"/" + data),
)
VERSIONS = st.sampled_from(
    [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b"HTTX/1.1", b"", b"HTTP/1.1\r"]
)
HEADERS = st.one_of(
    st.sampled_from(
        [
            b"content-type: application/json",
            b"Content-Type:\tapplication/json",
            b"host: a\x00b",
            b"content-length: 32",
            b"content-length: -1",
            b"content-length: 1, 32",
            b"content-length:",
            b"content-length: 99999999999999999999",
            b"content-length: 0x20",
            b"content-length: +32",
            b"transfer-encoding: chunked",
            b"transfer-encoding: gzip, chunked",
            b"x\x00y: z",
            b": a",
            b"transfer-encoding: chunked, identity",
            b"transfer-encoding:\x0bchunked",
            b" folded: a",
            b"expect: 100-continue",
            b"expect: x",
            b"upgrade: h2c\r\nconnection: upgrade",
            b"no colon",
            b"connection: close",
            b"host:",
            b"x: \xff\xfe",
            b"x-request-id: \r\n injected: 1",
            b"authorization: Bearer \xff",
            b"x-request-timeout: 1_0",
            b"x-request-timeout: nan",
        ]
    ),
    st.binary(max_size=12),
)
LINE_ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\r\n"])
CHUNKS = st.lists(
    st.sampled_from(
        [
            b"20\r\n" + BODY + b"\r\n",
            b"0\r\n\r\n",
            b"5\r\nabc\r\n",
            b"-1\r\n",
            b"ffffffffffffffff\r\n",
            b"zz\r\n",
            b"1;a=b\r\nx\r\n",
            b"0\r\nx: y\r\n\r\n",
            b"\r\n",
            b"1\nx\n",
            b"00000000000000000020\r\n",
        ]
    ),
    max_size=4,
).map(b"".join)


PLAIN = [b"host: a", b"content-type: application/json"]


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request with a few mistakes, in any of its parts."""
    wrong = draw(st.sets(st.sampled_from(["line", "headers", "ends", "body"]), max_size=2))
    line = b"POST /v1/completions HTTP/1.1"
    if "line" in wrong:
        line = b" ".join([draw(METHODS), draw(TARGETS), draw(VERSIONS)])
    odd = draw(st.lists(HEADERS, min_size=1, max_size=3)) if "headers" in wrong else []
    end = draw(LINE_ENDS) if "ends" in wrong else b"\r\n"
    is_chunked = draw(st.booleans())
    body = b"20\r\n" + BODY + b"\r\n0\r\n\r\n" if is_chunked else BODY
    if "body" in wrong:
        body = draw(CHUNKS if is_chunked else st.binary(max_size=40))
    framing = b"transfer-encoding: chunked" if is_chunked else b"content-length: %d" % len(BODY)
    return end.join([line, *PLAIN, *odd, framing, b"", b""]) + body


def send_bytes(server: Running, data: bytes) -> bytes:
    """All bytes that the server sends for these until it closes the connection."""
    with server.connect() as sock:
        with suppress(OSError):  # it may be closed already; the answer is still to be read
            sock.sendall(data)
        return read_all(sock)


@settings(max_examples=150)
@given(
    st.one_of(requests(), st.lists(requests(), max_size=3).map(b"".join), st.binary(max_size=40))
)
@example(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 32\r\n\r\n" + BODY)
@example(
    b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"
    b"0\r\n\r\nGET /health HTTP/1.1\r\n\r\n"
)
def test_nearly_http_is_answered_or_hung_up_on(server: Running, data: bytes) -> None:
    reply = send_bytes(server, data)
    for status in re.findall(rb"HTTP/1\.1 (\d+)", reply):
        assert status in (b"100", b"200") or status.startswith(b"4"), reply
    assert reply == b"" or reply.startswith(b"HTTP/1.1 ")
    assert b"\ninjected" not in reply


def test_the_server_is_as_before(server: Running) -> None:
    assert send_bytes(server, GOOD).startswith(b"HTTP/1.1 200 OK")
    assert wait_for(lambda: server.num_connections == 0)
