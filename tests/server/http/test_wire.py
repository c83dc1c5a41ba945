"""What other HTTP software sends, byte for byte: upgrades, HTTP/1.0, long bodies, nonsense."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from child_process import run_to_end
from fake_engine import FakeEngine
from live_server import PATIENCE, Running, as_new, raw_post, read_all, wait_for

from quire.server.http.http_framing import ConnectionLimits
from quire.server.settings import ServerSettings

LIMITS = ConnectionLimits(linger_seconds=1.0, linger_bytes=32 << 20)
MAX_BODY = 64 << 10
BODY = b'{"prompt": "abc"}'
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
# as java.net.http.HttpClient of JDK 17 sends it
JAVA = (
    b"POST /v1/completions HTTP/1.1\r\n"
    b"Connection: Upgrade, HTTP2-Settings\r\n"
    b"Content-Length: 17\r\n"
    b"Host: 127.0.0.1:8000\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
    b"Upgrade: h2c\r\n"
    b"User-Agent: Java-http-client/17.0.15\r\n"
    b"Content-Type: application/json\r\n"
    b"\r\n" + BODY
)
JAVA_CLIENT = """
import java.net.URI;
import java.net.http.*;
public class Ask {
    public static void main(String[] args) throws Exception {
        var client = HttpClient.newHttpClient();
        for (int i = 0; i < 2; i++) {
            var request = HttpRequest.newBuilder(URI.create(args[0]))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString("{\\"prompt\\": \\"abc\\"}")).build();
            var response = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(response.statusCode() + " " + response.body());
        }
    }
}
"""


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def shared(engine: FakeEngine) -> Iterator[Running]:
    settings = ServerSettings(shutdown_timeout=1, max_body_bytes=MAX_BODY)
    running = Running(engine, settings, LIMITS, keep_alive=0.5)
    yield running
    running.stop()


@pytest.fixture
def server(shared: Running, engine: FakeEngine) -> Running:
    return as_new(shared, engine)


def statuses(reply: bytes) -> list[bytes]:
    return [part[:3] for part in reply.split(b"HTTP/1.1 ")[1:]]


def send_bytes(server: Running, *parts: bytes, pause: float = 0.02) -> bytes:
    with server.connect() as sock:
        for part in parts:
            sock.sendall(part)
            time.sleep(pause)
        return read_all(sock)


# ------------------------------------------------------------------ upgrades


def test_a_body_after_an_upgrade_is_read(server: Running, engine: FakeEngine) -> None:
    assert statuses(send_bytes(server, JAVA)) == [b"200"]
    assert engine.calls[0]["ids"] == [97, 98, 99]


def test_an_upgrade_in_two_pieces_is_the_same(server: Running) -> None:
    with ExitStack() as stack:  # they are kept alive together
        sockets: dict[int, socket.socket] = {}
        for cut in range(1, len(JAVA), 7):
            sockets[cut] = sock = stack.enter_context(server.connect())
            sock.sendall(JAVA[:cut])
            time.sleep(0.001)
            sock.sendall(JAVA[cut:])
        for cut, sock in sockets.items():
            assert statuses(read_all(sock)) == [b"200"], cut


def test_upgrades_in_one_piece_with_others_and_with_chunks(server: Running) -> None:
    chunked = raw_post({"prompt": "a"}).partition(b"content-length")[0] + UPGRADE
    chunked += b"transfer-encoding: chunked\r\n\r\n11\r\n" + BODY + b"\r\n0\r\n\r\n"
    get = b"GET /nowhere HTTP/1.1\r\nhost: a\r\n" + UPGRADE + b"\r\n"
    sent = JAVA + raw_post({"prompt": "a"}) + chunked + get + JAVA
    assert statuses(send_bytes(server, sent)) == [b"200", b"200", b"200", b"404", b"200"]


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK; JAVA has its bytes")
def test_javas_own_client_is_answered(server: Running, tmp_path: Path) -> None:
    (tmp_path / "Ask.java").write_text(JAVA_CLIENT)
    url = f"http://127.0.0.1:{server.port}/v1/completions"
    done = run_to_end(
        ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "Ask.java", url], cwd=tmp_path
    )
    assert done.stdout.splitlines()[0].startswith("200 "), done.stderr
    assert len(done.stdout.splitlines()) == 2


# ------------------------------------------------------------------ bodies over the limit


@pytest.mark.parametrize("size", [MAX_BODY + 1, 1 << 20, 16 << 20])
def test_an_ordinary_client_reads_why_its_body_is_refused(server: Running, size: int) -> None:
    for _ in range(5):
        with closing(
            http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        ) as client:
            client.request("POST", "/v1/completions", b" " * size, json_type())
            response = client.getresponse()
            assert (response.status, response.getheader("connection")) == (413, "close")
            assert json.loads(response.read())["error"]["code"] == "body_too_large"
    assert wait_for(lambda: server.num_connections == 0)


def test_the_same_with_chunks_and_while_it_is_still_sent(server: Running) -> None:
    head = raw_post({}).partition(b"content-length")[0] + b"transfer-encoding: chunked\r\n\r\n"
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    reply = send_bytes(server, head, *[chunk] * 20, pause=0.005)
    assert statuses(reply) == [b"413"]


@pytest.mark.parametrize("pause", [0.0, 0.01])
def test_a_client_that_never_ends_is_cut_off(server: Running, pause: float) -> None:
    head = raw_post({}).partition(b"content-length")[0] + b"content-length: 99999999999\r\n\r\n"
    end = time.monotonic() + 4.0
    with server.connect() as sock:
        sock.sendall(head)
        with suppress(ConnectionError):
            while time.monotonic() < end:
                sock.sendall(b" " * 65536)
                time.sleep(pause)
    assert time.monotonic() < end
    assert wait_for(lambda: server.num_connections == 0)


def test_headers_over_the_limit_are_answered_to_ordinary_clients(server: Running) -> None:
    for _ in range(5):
        with closing(
            http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        ) as client:
            client.request("POST", "/v1/completions", b" " * 1_000_000, {"x": "y" * 900_000})
            assert client.getresponse().status == 431


def json_type() -> dict[str, str]:
    return {"content-type": "application/json"}


# ------------------------------------------------------------------ framing


@pytest.mark.parametrize("stream", [False, True])
def test_clients_of_http_1_0_get_no_chunks(server: Running, stream: bool) -> None:
    sent = raw_post({"prompt": "abc", "stream": stream})
    head, _, body = send_bytes(server, sent.replace(b"HTTP/1.1", b"HTTP/1.0")).partition(
        b"\r\n\r\n"
    )
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    assert body.startswith(b"data: {") if stream else body.startswith(b"{")
    assert body.endswith(b"data: [DONE]\n\n") if stream else json.loads(body)


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"gzip", b"identity", b"chunked, chunked"])
def test_transfer_codings_that_are_not_read_are_refused(server: Running, coding: bytes) -> None:
    head = raw_post({}).partition(b"content-length")[0]
    reply = send_bytes(
        server, head + b"transfer-encoding: " + coding + b"\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"
    )
    assert statuses(reply) == [b"400"]
    assert b"connection: close" in reply


# ------------------------------------------------------------------ nonsense after requests

GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01",
    b"NONSENSE\r\n\r\n",
    b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
    b"GET x:443 HTTP/1.1\r\nhost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("num_good", [1, 3])
@pytest.mark.parametrize("delay", [0.0, 0.02])
def test_requests_before_nonsense_are_answered_first(
    server: Running, engine: FakeEngine, garbage: bytes, num_good: int, delay: float
) -> None:
    engine.delay = delay
    reply = send_bytes(server, raw_post({"prompt": "abc"}) * num_good + garbage)
    assert statuses(reply) == [b"200"] * num_good + [b"400"]
    assert engine.aborted == []
    assert wait_for(lambda: server.num_connections == 0)


def test_a_request_before_nonsense_may_take_longer_than_a_connection_may_idle(
    server: Running, engine: FakeEngine
) -> None:
    engine.delay = 0.3
    reply = send_bytes(server, raw_post({"prompt": "abc"}) * 2 + GARBAGE[1])
    assert statuses(reply) == [b"200", b"200", b"400"]


def test_a_client_that_sends_nonsense_and_leaves_is_aborted(
    server: Running, engine: FakeEngine
) -> None:
    engine.wait_at = 0
    with server.connect() as sock:
        sock.sendall(raw_post({"prompt": "abc"}) + b"NONSENSE\r\n\r\n")
        assert wait_for(lambda: len(engine.calls) == 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert wait_for(lambda: len(engine.aborted) == 1)
    assert wait_for(lambda: server.num_connections == 0)


# ------------------------------------------------------------------ CONNECT and 100-continue


@pytest.mark.parametrize("target", [b"/v1/models", b"a:443", b"http://a/v1/models"])
def test_connect_is_refused_and_ends_the_connection(server: Running, target: bytes) -> None:
    """What follows it would be a tunnel's, so none of it is a request."""
    connect = b"CONNECT " + target + b" HTTP/1.1\r\nhost: a\r\n\r\n"
    sent = raw_post({"prompt": "a"}) + connect + raw_post({"prompt": "a"})
    begin = time.monotonic()
    reply = send_bytes(server, sent)
    assert time.monotonic() - begin < 3.0
    assert statuses(reply) == [b"200", b"400"]
    assert b"connection: close" in reply


@pytest.mark.parametrize("refused", ["type", "size", "path", "method"])
def test_a_body_that_is_not_asked_for_ends_the_connection(server: Running, refused: str) -> None:
    """A client that waits for 100 Continue may go on with its next request."""
    head = raw_post({}).partition(b"content-length")[0]
    length = MAX_BODY + 1 if refused == "size" else 17
    if refused == "type":
        head = head.replace(b"application/json", b"text/plain\r\norigin: null")
    if refused == "path":
        head = head.replace(b"/v1/completions", b"/nowhere")
    if refused == "method":
        head = head.replace(b"/v1/completions", b"/v1/models")
    head += b"Expect: 100-Continue\r\ncontent-length: %d\r\n\r\n" % length
    reply = send_bytes(server, head, b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n" * 3, pause=0.2)
    code = {"type": b"415", "size": b"413", "path": b"404", "method": b"405"}[refused]
    assert statuses(reply) == [code]
    assert b"connection: close" in reply


def test_a_body_that_is_asked_for_leaves_the_connection_open(server: Running) -> None:
    head = raw_post({}).partition(b"content-length")[0]
    head += b"Expect: 100-continue\r\ncontent-length: 17\r\n\r\n"
    assert statuses(send_bytes(server, head, BODY, raw_post({"prompt": "a"}), pause=0.2)) == [
        *(b"100", b"200", b"200")
    ]
    found = statuses(send_bytes(server, (head + BODY) * 2))
    assert [status for status in found if status != b"100"] == [b"200", b"200"]


def test_a_body_that_ends_after_its_response_leaves_the_connection_open(server: Running) -> None:
    """And the time between requests begins when it has come."""
    head = raw_post({}).partition(b"content-length")[0] + b"content-encoding: br\r\n"
    head += b"content-length: 17\r\n\r\n"
    begin = time.monotonic()
    assert statuses(send_bytes(server, head, BODY, raw_post({"prompt": "a"}), pause=0.2)) == [
        *(b"415", b"200")
    ]
    assert statuses(send_bytes(server, head, BODY, pause=0.2)) == [b"415"]
    assert time.monotonic() - begin < 4.0


def test_a_client_of_http_1_0_gets_no_100_continue(server: Running) -> None:
    head = raw_post({}).partition(b"content-length")[0].replace(b"HTTP/1.1", b"HTTP/1.0")
    head += b"Expect: 100-continue\r\ncontent-length: 17\r\n\r\n"
    assert statuses(send_bytes(server, head, BODY)) == [b"200"]
