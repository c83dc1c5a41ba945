"""Clients that send slowly, read slowly, say nonsense, or leave: on real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
import uvloop
from fake_engine import FakeEngine
from live_server import Running, as_new, raw_post, read_all, wait_for

from quire.server.http.http_framing import ConnectionLimits
from quire.server.http.http_protocol import CONTINUE
from quire.server.settings import ServerSettings

LIMITS = ConnectionLimits(
    header_seconds=0.4,
    header_bytes=4096,
    num_headers=32,
    body_seconds=0.4,
    body_bytes_per_second=200,
    stall_seconds=0.4,
)
LONG = {"prompt": "a", "stream": True, "ignore_eos": True, "max_tokens": 600, "logprobs": 5}


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


def start(engine: FakeEngine) -> Running:
    settings = ServerSettings(shutdown_timeout=1, max_queued_requests=100)
    return Running(engine, settings, LIMITS, keep_alive=0.5)


@pytest.fixture(scope="module")
def shared(engine: FakeEngine) -> Iterator[Running]:
    running = start(engine)
    yield running
    running.stop()


@pytest.fixture
def server(shared: Running, engine: FakeEngine) -> Running:
    return as_new(shared, engine)


@pytest.fixture
def new_server() -> Iterator[Running]:
    """One that has counted nothing yet."""
    running = start(FakeEngine())
    yield running
    running.stop()


LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"], scope="module")
def shared_loop(engine: FakeEngine, request: pytest.FixtureRequest) -> Iterator[Running]:
    """One on each kind of event loop: they differ in how a connection ends."""
    running = Running(engine, ServerSettings(shutdown_timeout=1), loop_factory=request.param)
    yield running
    running.stop()


@pytest.fixture
def loop_server(shared_loop: Running, engine: FakeEngine) -> Running:
    return as_new(shared_loop, engine)


def error_of(reply: bytes) -> tuple[bytes, str]:
    """Status line and code of a whole error response."""
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"x-request-id: " in head
    return head.split(b"\r\n")[0], json.loads(body)["error"]["code"]


def drip(sockets: list[socket.socket], data: bytes, seconds: float) -> None:
    """Send data to all of them, a byte at a time, until the time is over."""
    end = time.monotonic() + seconds
    for index in range(len(data)):
        for sock in sockets:
            with suppress(OSError):
                sock.send(data[index : index + 1])
        time.sleep(0.05)
        if time.monotonic() > end:
            return


HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize("begin", [b"", HEAD, HEAD + b"content-length: 500\r\n\r\n{"])
def test_slow_loris_is_closed_in_time(server: Running, engine: FakeEngine, begin: bytes) -> None:
    sockets = [server.connect() for _ in range(40)]
    for sock in sockets:
        sock.sendall(begin)
    drip(sockets, b"x" * 100 if begin else HEAD, seconds=0.9)
    assert wait_for(lambda: server.num_connections == 0)
    for sock in sockets:
        with sock:
            assert error_of(read_all(sock)) == (b"HTTP/1.1 408 Request Timeout", "request_timeout")
    with server.post(prompt="a") as response:
        assert response.status == 200
    assert len(engine.calls) == 1


@pytest.mark.parametrize(
    ("rest", "status", "kind"),
    [
        (b"content-length: 500\r\n\r\n{", 408, "timeout_error"),
        (b"x: ", 408, "timeout_error"),  # the headers themselves
        (b"x: y\r\n" * 40, 431, "invalid_request_error"),
        (b"x\x00y: z\r\n\r\n", 400, "invalid_request_error"),
        (b"transfer-encoding: chunked\r\n\r\nno length", 400, "invalid_request_error"),
    ],
)
def test_what_no_application_sees_is_refused_in_the_words_of_its_api(
    server: Running, rest: bytes, status: int, kind: str
) -> None:
    head = HEAD.replace(b"/v1/completions", b"/v1/messages")
    with server.connect() as sock:
        sock.sendall(head + rest)
        head, _, body = read_all(sock).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    reply = json.loads(body)
    assert (reply["type"], reply["error"]["type"]) == ("error", kind)
    assert f"request-id: {reply['request_id']}".encode() in head.split(b"\r\n")


def test_a_large_body_may_take_longer_while_it_flows(server: Running) -> None:
    body = raw_post({"prompt": "a", "user": "u" * 500, "cache_salt": "s" * 512})
    with server.connect() as sock:
        for start in range(0, len(body), 100):
            sock.sendall(body[start : start + 100])
            time.sleep(0.05)
        assert sock.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("begin", [b"", b"\r\n", b"\r\n\r\n\r\n"])
def test_silent_connections_are_closed(server: Running, begin: bytes) -> None:
    with server.connect() as sock:
        sock.sendall(begin)
        began = time.monotonic()
        assert read_all(sock) == b""
        assert time.monotonic() - began < 3.0


@pytest.mark.parametrize("begin", [b"", raw_post({"prompt": "a"})], ids=["new", "kept alive"])
def test_blank_lines_do_not_make_a_connection_last(server: Running, begin: bytes) -> None:
    with server.connect() as sock:
        sock.sendall(begin)
        drip([sock], b"\r\n" * 100, seconds=2.0)
        assert server.num_connections == 0


def test_a_keep_alive_connection_is_closed_after_a_while(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(raw_post({"prompt": "a"}))
        assert read_all(sock).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    "headers",
    [
        b"x: y\r\n" * 40,
        b"x: " + b"y" * 5000 + b"\r\n",
        b"y" * 5000 + b": x\r\n",
        b"x: " + b"y" * 500_000,  # and never an end
    ],
)
def test_headers_are_bounded(server: Running, headers: bytes) -> None:
    with server.connect() as sock:
        try:
            for start in range(0, len(headers), 3000):
                sock.sendall((HEAD if start == 0 else b"") + headers[start : start + 3000])
            sock.sendall(b"\r\n")
        except OSError:
            pass
        reply = read_all(sock)
    if len(headers) < 100_000:  # else the answer may be lost in the reset
        status = b"HTTP/1.1 431 Request Header Fields Too Large"
        assert error_of(reply) == (status, "headers_too_large")
    assert wait_for(lambda: server.num_connections == 0)


def test_trailers_and_chunk_extensions_are_bounded(server: Running) -> None:
    begin = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    for flood in (b"1;" + b"e" * 20_000, b"0\r\n" + b"t: u\r\n" * 100):
        with server.connect() as sock:
            sock.sendall(begin)
            try:
                for start in range(0, len(flood), 1000):
                    sock.sendall(flood[start : start + 1000])
                    time.sleep(0.002)
            except OSError:
                pass
            read_all(sock)
        assert wait_for(lambda: server.num_connections == 0)


def test_nonsense_is_answered_in_json(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(b"NONSENSE\r\n\r\n")
        assert error_of(read_all(sock)) == (b"HTTP/1.1 400 Bad Request", "bad_request")


@pytest.mark.parametrize(
    "target",
    [
        b"CONNECT x:1",
        b"GET http://x:99999/health",
        b"GET http://x:abc/health",
        b"GET http://[bad",
        b"GET http://",
        b"GET /" + b"a" * 65_536,
    ],
    ids=range(6),
)
def test_a_target_that_cannot_be_read_is_refused_in_json(server: Running, target: bytes) -> None:
    with server.connect() as sock:
        sock.sendall(target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        status, _ = error_of(read_all(sock))
        assert status.split()[1] in (b"400", b"404", b"414", b"431")


@pytest.mark.parametrize("num_pieces", [1, 7])
def test_too_long_a_target_has_its_own_status(server: Running, num_pieces: int) -> None:
    sent = b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    length = -(-len(sent) // num_pieces)
    with server.connect() as sock:
        for start in range(0, len(sent), length):
            sock.sendall(sent[start : start + length])
            time.sleep(0.02)
        status, code = error_of(read_all(sock))
        assert (status.split()[1], code) == (b"414", "target_too_long")


def test_nonsense_after_a_request_does_not_enter_its_answer(
    server: Running, engine: FakeEngine
) -> None:
    engine.delay = 0.02
    with server.connect() as sock:
        sock.sendall(raw_post({"prompt": "a", "stream": True, "ignore_eos": True}))
        reply = sock.recv(4096)
        sock.sendall(b"NONSENSE\r\n\r\n")
        reply += read_all(sock)
    answer, _, refusal = reply.partition(b"0\r\n\r\n")
    assert b"data: [DONE]" in answer
    assert b"bad_request" not in answer
    assert error_of(refusal) == (b"HTTP/1.1 400 Bad Request", "bad_request")


def test_requests_in_one_piece_are_answered_in_order(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(raw_post({"prompt": "a"}) + raw_post({"prompt": ""}) + b"GET /nowhere HTTP/")
        sock.sendall(b"1.1\r\nhost: a\r\n\r\n")
        reply = read_all(sock)
    statuses = [part[:3] for part in reply.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"400", b"404"]


@pytest.mark.parametrize(("padding", "cut"), [(0, 40), (0, -5), (6000, 40)])
def test_segments_that_end_within_the_next_request_start_its_time_and_size_anew(
    server: Running, padding: int, cut: int
) -> None:
    """cut: where segments end: within a head, within a body, within a head after a large body."""
    body = b'{"prompt": "a"' + b" " * padding + b"}"
    request = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    segments = [request[:cut], *[request[cut:] + request[:cut]] * 5, request[cut:]]
    with server.connect() as sock:
        for segment in segments:
            sock.sendall(segment)
            time.sleep(0.2)  # half of what a head or a body may take
        reply = read_all(sock)
    assert [part[:3] for part in reply.split(b"HTTP/1.1 ")[1:]] == [b"200"] * 6


def test_a_client_that_does_not_read_is_cut_off(server: Running, engine: FakeEngine) -> None:
    with server.connect(receive_buffer=4096) as sock:
        sock.sendall(raw_post(LONG | {"n": 4}))
        assert wait_for(lambda: engine.aborted != [])
        assert engine.num_sent < 500  # it waited for the client instead of writing on
        assert wait_for(lambda: server.num_connections == 0)
        assert b"[DONE]" not in read_all(sock)
    with server.post(prompt="a") as response:  # others are served
        assert response.status == 200


def test_an_unread_answer_does_not_hold_a_connection_for_ever(
    server: Running, engine: FakeEngine
) -> None:
    with server.connect(receive_buffer=4096) as sock:
        body = LONG | {"stream": False, "prompt": ["a"] * 16}
        sock.sendall(raw_post(body, headers=b"connection: close\r\n"))
        assert wait_for(lambda: len(engine.calls) == 16)
        assert wait_for(lambda: server.num_connections == 0)


def test_a_slow_reader_that_goes_on_reading_gets_everything(
    server: Running, engine: FakeEngine
) -> None:
    reply = b""
    with server.connect(receive_buffer=4096) as sock:
        sock.sendall(raw_post(LONG))
        while b"[DONE]" not in reply:
            time.sleep(0.02)
            part = sock.recv(8192)
            assert part
            reply += part
    assert engine.aborted == []


def test_a_client_that_leaves_is_aborted_within_two_steps(
    server: Running, engine: FakeEngine
) -> None:
    engine.delay = 0.1
    with server.post(**LONG) as response:
        response.readline()
        seen = engine.num_sent
    assert wait_for(lambda: len(engine.aborted) == 1)
    assert engine.num_sent <= seen + 2


def test_a_storm_of_leaving_clients_touches_nobody_else(
    server: Running, engine: FakeEngine
) -> None:
    engine.delay = 0.01
    reply: list[bytes] = []

    def stand_by() -> None:
        with server.post(**(LONG | {"max_tokens": 100})) as response:
            reply.append(response.read())

    bystander = threading.Thread(target=stand_by)
    bystander.start()
    for number in range(60):
        with closing(server.connect()) as sock:
            data = raw_post(LONG)
            sock.sendall(data[: len(data) - number % 2])
            if number % 3:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    bystander.join()
    assert reply[0].endswith(b"data: [DONE]\n\n")
    assert reply[0].count(b'"finish_reason":null') == 99
    assert wait_for(lambda: len(engine.aborted) == len(engine.calls) - 1)
    assert wait_for(lambda: server.num_connections == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_sends_no_more_gets_its_answer(
    loop_server: Running, engine: FakeEngine, stream: bool
) -> None:
    engine.delay = 0.03
    with loop_server.connect() as sock:
        sock.sendall(raw_post({"prompt": "a", "stream": stream}))
        sock.shutdown(socket.SHUT_WR)
        reply = read_all(sock)
    probes, _, answer = reply.rpartition(CONTINUE)
    assert probes.replace(CONTINUE, b"") == b""
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"[DONE]" in answer if stream else b"Hello!" in answer
    assert engine.aborted == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_bytes", [0, 70_000, 300_000, 1_000_000])
def test_a_disconnected_client_is_distinguished_from_a_waiting_one(
    loop_server: Running, engine: FakeEngine, stream: bool, num_bytes: int
) -> None:
    """Also after a large body, for which the connection was not read for a while."""
    engine.wait_at = 0
    head, _, body = raw_post({"prompt": "a", "stream": stream}).partition(b"\r\n\r\n")
    sized = re.sub(rb"(?i)(content-length: )\d+", rb"\g<1>%d" % max(num_bytes, len(body)), head)
    with loop_server.connect() as sock:  # closes without a reset, as nothing is unread
        sock.sendall(sized + b"\r\n\r\n" + body.ljust(num_bytes))
        assert wait_for(lambda: len(engine.calls) == 1)
    assert wait_for(lambda: len(engine.aborted) == 1)
    assert wait_for(lambda: loop_server.num_connections == 0)


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"content-length: 9\r\n\r\n{"])
def test_half_a_request_is_not_waited_for(loop_server: Running, sent: bytes) -> None:
    with loop_server.connect() as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        assert b"200 OK" not in read_all(sock)
    assert wait_for(lambda: loop_server.num_connections == 0)


@pytest.mark.parametrize(
    ("sent", "path", "status", "code"),
    [
        (b"nonsense\r\n\r\n", "other", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 9000 + b"\r\n\r\n", "/", 431, "headers_too_large"),
        (HEAD, "/v1/completions", 408, "request_timeout"),
        (HEAD + b"content-length: 9\r\n\r\n{", "/v1/completions", 408, "request_timeout"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nz", "/v1/completions", 400, "bad_request"),
    ],
)
def test_what_is_refused_before_the_application_is_counted(
    new_server: Running, sent: bytes, path: str, status: int, code: str
) -> None:
    server = new_server
    with server.connect() as sock:
        sock.sendall(sent)
        read_all(sock)
    with server.connect() as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        page = read_all(sock).decode()
    found = [line for line in page.splitlines() if line.startswith("quire:http_requests_total{")]
    assert len(found) == 1
    assert f'path="{path}"' in found[0]
    assert f'status="{status}"' in found[0]
    assert f'reason="{code}"}} 1' in page


def test_whole_answers_keep_to_http(server: Running) -> None:
    """In one write or two: HEAD has no body; Connection: close is answered by the same."""
    with server.connect() as sock:
        for line in (b"HEAD /x HTTP/1.1", b"GET /x HTTP/1.1", b"GET /x HTTP/1.0"):
            sock.sendall(line + b"\r\nhost: a\r\n\r\n")
        head, reply, last = read_all(sock).split(b"HTTP/1.1 404 Not Found\r\n")[1:]
    assert head.endswith(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(reply.partition(b"\r\n\r\n")[2]) in head
    assert (b"connection" in reply, b"connection: close" in last) == (False, True)
    assert json.loads(reply.partition(b"\r\n\r\n")[2]) == json.loads(last.partition(b"\r\n\r\n")[2])
