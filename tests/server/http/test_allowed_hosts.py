"""The names under which a server is reached: those of web pages of the internet are refused."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest
from asgi_client import JSON, Reply, call
from fake_engine import FakeEngine
from hypothesis import example, given
from hypothesis import strategies as st
from live_server import Running, read_all

from quire.errors import ConfigError
from quire.server.app import build_app
from quire.server.http.allowed_hosts import AllowedHosts
from quire.server.http.http_errors import HttpError
from quire.server.settings import ServerSettings


def ask(name: str, path: str = "/v1/models", **options: Any) -> Reply:
    app = build_app(FakeEngine(), ServerSettings(**options))
    return call(app, path, headers=JSON | {"host": name})


OWN = [
    *("localhost", "localhost:8000", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "[::1]"),
    *("host.docker.internal:8000", "host.containers.internal"),
    *("10.1.2.3:8000", "8.8.8.8", "app.localhost:3000", "localhost.", "quire:8000", "localhost:"),
    socket.gethostname(),
]
FOREIGN = [
    *("evil.com", "evil.com:8000", "127.0.0.1.evil.com", "localhost.evil.com:8000", "", ":8000"),
    *("evil.com.", "127.0.0.1@evil.com", "evil.com/127.0.0.1", "a b.com", "[evil.com]", "::1.com"),
    *("evil.localhost.com", "notlocalhost.evil", "\xe4.com", "evil.com:99999999", "x" * 300 + ".a"),
    *(
        "localhost, evil",
        "local host",
        "localhost,evil.com",
        "a@localhost",
        "localhost/",
        "loc\thost",
    ),
    *("localhost#", "localhost?a", "[::1]a", "[::1], [::1]", "*", "%6cocalhost", "\xe4"),
]


@pytest.mark.parametrize("host", OWN)
def test_own_names_are_served(host: str) -> None:
    assert ask(host).status == 200


@pytest.mark.parametrize("path", ["/v1/models", "/", "/nowhere", "/metrics"])
@pytest.mark.parametrize("host", FOREIGN)
def test_foreign_names_are_refused(host: str, path: str) -> None:
    reply = ask(host, path)
    assert (reply.status, reply.error["code"]) == (403, "unknown_host")
    text = reply.error["message"]
    assert "names no host" in text or ("--allowed-hosts " in text and "''" not in text)


def test_a_balancer_may_ask_for_health_by_any_name() -> None:
    assert ask("gpu01.corp.example.com", "/health").status == 200


@pytest.mark.parametrize("name", ["node.local", "quire.default.svc.cluster.local", "a.home.arpa"])
def test_names_of_private_networks_are_served_where_such_networks_reach(name: str) -> None:
    assert ask(name).status == 403
    assert ask(name, host="0.0.0.0").status == 200


def test_the_full_name_is_looked_up_beside_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answered = threading.Event()

    def getfqdn() -> str:
        assert answered.wait(10)
        return "Node7.Corp.Example.com."

    monkeypatch.setattr(socket, "getfqdn", getfqdn)
    hosts = AllowedHosts([], bound=["0.0.0.0"], needs_key=False)
    with pytest.raises(HttpError):
        hosts.check({b"host": b"node7.corp.example.com"})
    answered.set()
    with caplog.at_level("INFO"):
        hosts.log_names()
    hosts.check({b"host": b"node7.corp.example.com:8000"})
    assert "node7.corp.example.com" in caplog.text
    assert "*.localhost" in caplog.text
    with pytest.raises(HttpError):
        hosts.check({b"host": b"other.corp.example.com"})


def test_nothing_is_looked_up_or_logged_where_it_does_not_matter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"):
        AllowedHosts([], bound=["0.0.0.0"], needs_key=True).log_names()
    assert not caplog.text
    assert AllowedHosts([], bound=["127.0.0.1"], needs_key=False).lookup is None


def test_where_no_thread_is_left_the_full_name_is_not_served(
    no_thread_left: Callable[[], AbstractContextManager[None]], caplog: pytest.LogCaptureFixture
) -> None:
    with no_thread_left(), caplog.at_level("INFO"):
        hosts = AllowedHosts([], bound=["0.0.0.0"], needs_key=False)
        hosts.log_names()
    hosts.check({b"host": b"localhost"})
    assert "name it with --allowed-hosts" in caplog.text
    assert "*.localhost" in caplog.text


def test_names_can_be_added() -> None:
    options = {"allowed_hosts": "api.example.com, *.Example.org"}
    for host in ("api.example.com", "API.example.com:80", "a.b.example.org", "localhost"):
        assert ask(host, **options).status == 200
    for host in ("example.com", "b.api.example.com", "example.org", "xexample.org"):
        assert ask(host, **options).status == 403
    assert ask("evil.com", allowed_hosts="*").status == 200
    assert ask("my.example.com", host="my.example.com").status == 200


def test_a_key_needs_no_names_unless_they_are_given() -> None:
    assert ask("evil.com", api_key="k").status == 401
    assert ask("evil.com", api_key="k", allowed_hosts="a.b").status == 403


@pytest.mark.parametrize("wrong", ["", "a.b,", "http://a.b", "a.b:80", "a b", "*.", "*a.b", "a/b"])
def test_what_is_no_name_is_refused_at_the_start(wrong: str) -> None:
    with pytest.raises(ConfigError, match="allowed_hosts"):
        ServerSettings(allowed_hosts=wrong)


@given(st.one_of(st.binary(max_size=40), st.text(".:[]@/a0 ", max_size=20).map(str.encode)))
@example(b"[::1")
def test_any_bytes_are_judged(host: bytes) -> None:
    hosts = AllowedHosts([], bound=["127.0.0.1"], needs_key=False)
    for _ in range(2):  # also what is remembered
        with suppress(HttpError):
            hosts.check({b"host": host})


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    running = Running(FakeEngine(), ServerSettings(shutdown_timeout=1), keep_alive=0.2)
    yield running
    running.stop()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n", b"200"),
        (b"GET /health HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nx: y\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nhost: a\r\nHost: evil.com\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", b"400"),
        (b"GET /v1/models HTTP/1.1\r\nhost: evil.com\r\n\r\n", b"403"),
        (b"GET /health HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /health HTTP/1.0\r\nhost: a\r\nhost: a\r\n\r\n", b"400"),
    ],
)
def test_one_host_is_needed(server: Running, head: bytes, status: bytes) -> None:
    with server.connect() as sock:
        sock.sendall(head)
        assert read_all(sock).split()[1] == status


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://evil.com/v1/models", b"localhost", b"403"),
        (b"http://evil.com:80/v1/models", b"localhost", b"403"),
        (b"HTTP://EVIL.com/?a", b"localhost", b"403"),
        (b"http://localhost@evil.com/v1/models", b"localhost", b"403"),
        (b"http://evil.com@localhost/v1/models", b"localhost", b"403"),
        (b"ftp://evil.com/v1/models", b"localhost", b"403"),
        (b"http://localhost/v1/models", b"evil.com", b"200"),  # RFC 9112: Host is ignored
        (b"http://[::1]:80/v1/models", b"evil.com", b"200"),
        (b"//evil.com/v1/models", b"localhost", b"404"),  # a path
    ],
)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_the_host_of_an_absolute_target_counts(
    server: Running, target: bytes, host: bytes, status: bytes, version: bytes
) -> None:
    hosts = [b"host: " + host] + [b""] * (version == b"1.0")
    for header in hosts:
        with server.connect() as sock:
            sock.sendall(
                b"GET %b HTTP/%b\r\n%b" % (target, version, header + b"\r\n" * bool(header))
            )
            sock.sendall(b"\r\n")
            assert read_all(sock).split()[1] == status
