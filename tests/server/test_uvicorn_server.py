"""A real uvicorn on a loopback port: what only real sockets can show."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from fake_engine import FakeEngine
from live_server import Running

from quire.errors import ConfigError
from quire.server.http.listen_address import base_url, bind, bind_admin, bind_api, is_loopback


@pytest.fixture
def server(engine: FakeEngine) -> Iterator[Running]:
    running = Running(engine)
    yield running
    running.stop()


def test_stream_arrives_piece_by_piece(server: Running, engine: FakeEngine) -> None:
    engine.delay = 0.03
    times = []
    with server.post(prompt="a", stream=True) as response:
        assert response.status == 200
        while line := response.readline():
            if line != b"\n":
                times.append(time.perf_counter())
    assert line == b""
    assert len(times) == 7
    assert times[-1] - times[0] > 3 * engine.delay


def test_closed_connection_aborts(server: Running, engine: FakeEngine) -> None:
    engine.delay = 0.01
    with server.post(prompt="a", stream=True, ignore_eos=True, max_tokens=600) as response:
        response.readline()
    deadline = time.monotonic() + 5
    while not engine.aborted and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(engine.aborted) == 1
    assert engine.num_sent < 100


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
    ],
)
def test_garbage_does_no_harm(server: Running, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
        sock.sendall(raw)
    with server.post(prompt="a") as response:
        assert response.status == 200


def test_port_in_use() -> None:
    with bind("127.0.0.1", 0) as sock, pytest.raises(ConfigError, match="in use"):
        bind("127.0.0.1", sock.getsockname()[1])


@pytest.mark.parametrize("host", ["256.1.1.1", "203.0.113.1", "no.such.host.invalid"])
def test_host_of_another_machine(host: str) -> None:
    with pytest.raises(ConfigError, match="address of this machine"):
        bind(host, 0)


@pytest.mark.parametrize(
    ("host", "fix"),
    [
        ("127.0.0.1:9000", "--host 127.0.0.1 --port 9000"),
        ("http://localhost:9000/", "--host localhost --port 9000"),
        ("https://localhost", "--host localhost"),
        ("[::1]:9000", "--host ::1 --port 9000"),
    ],
)
def test_a_host_with_more_than_an_address(host: str, fix: str) -> None:
    """As OLLAMA_HOST and URLs have them."""
    with pytest.raises(ConfigError) as error, bind_api(host, 0, None):
        pass
    assert str(error.value) == f"host {host!r} is more than an address; use {fix}"


def test_brackets_of_urls_may_be_around_an_address() -> None:
    with bind_api("[::1]", 0, None) as (sock,):
        assert sock.getsockname()[0] == "::1"


def test_base_url() -> None:
    with bind("0.0.0.0", 0) as sock:
        assert base_url(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"


def test_several_addresses_have_one_port() -> None:
    with bind_api("127.0.0.1, 127.0.0.2,", 0, None) as socks:
        names = [sock.getsockname() for sock in socks]
        assert [name[0] for name in names] == ["127.0.0.1", "127.0.0.2"]
        assert names[0][1] == names[1][1] > 0
        port = names[0][1]
        taken = bind_api("127.0.0.3,127.0.0.1", port, None)
        with pytest.raises(ConfigError, match=f"^port {port} of 127.0.0.1 is in use"), taken:
            pass
        bind("127.0.0.3", port).close()  # which was given back


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with bind_api("", 0, str(path)) as (sock,):
        assert base_url(sock) == f"unix:{path}"
        assert is_loopback(sock)
        with pytest.raises(ConfigError, match="--uds"), bind_api("", 0, str(path)):
            pass
        server = Running(FakeEngine(), loop_factory=uvloop.new_event_loop, sock=sock)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")
        server.stop()
    assert not path.exists()


def _make_files(folder: Path) -> None:
    (folder / "file").write_text("kept")
    (folder / "folder").mkdir()
    (folder / "to_file").symlink_to("file")
    (folder / "to_nothing").symlink_to("nothing")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "fifo")


WRONG_PATHS = [
    *("file", "folder", "to_file", "to_nothing", "loop", "fifo"),  # which are kept
    *("nowhere/x", "file/x", "", "\0x", "a\0b", "x" * 108, "\xe4" * 54, "x" * 300),
]


@pytest.mark.parametrize("path", WRONG_PATHS, ids=range(len(WRONG_PATHS)))
def test_a_path_that_cannot_be_a_socket(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _make_files(tmp_path)
    before = sorted(os.listdir())
    for kind, bound in (("--uds", bind_api("", 0, path)), ("admin_uds", bind_admin(None, path))):
        with pytest.raises(ConfigError, match=f"(?s){kind}$") as caught, bound:
            pass
        assert "in use" not in str(caught.value)
    assert sorted(os.listdir()) == before
    assert Path("file").read_text() == "kept"


def test_a_dead_servers_socket_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("a", "x" * 107):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
        with bind_admin(None, path):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert not Path(path).exists()
