"""The admin endpoints: where they are, where they are not, and who may use them."""

from __future__ import annotations

import contextlib
import json
import socket
import stat
from pathlib import Path

import pytest
from asgi_client import call
from fake_engine import FakeEngine
from live_server import Running
from starlette.applications import Starlette

from quire.errors import ConfigError
from quire.server.app import build_app
from quire.server.http.listen_address import admin_address, bind_admin
from quire.server.settings import ServerSettings

PATHS = [("GET", "/stats"), ("POST", "/reset_prefix_cache")]


def ask(
    sock: socket.socket, method: str, path: str, key: str = ""
) -> tuple[int, dict[str, object]]:
    """Status and JSON of one request."""
    with sock:
        head = f"{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n"
        sock.sendall(f"{head}authorization: Bearer {key}\r\n\r\n".encode())
        reply = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, body = reply.decode().partition("\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def unix(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(str(path))
    return sock


def test_on_a_unix_socket_that_only_the_owner_opens(engine: FakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "admin"
    running = Running(engine, ServerSettings(shutdown_timeout=1, admin_uds=str(path)))
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        status, stats = ask(unix(path), "GET", "/stats")
        assert status == 200
        assert stats["engine"]["num_running"] == 0  # type: ignore[index]
        assert engine.num_views == 1, "a view brings the figures of now"
        assert stats["admission"]["max_answers"] == 1024 + 8  # type: ignore[index]
        assert stats["num_tasks"] == ask(unix(path), "GET", "/stats")[1]["num_tasks"] > 0  # type: ignore[operator]
        assert ask(unix(path), "POST", "/reset_prefix_cache") == (200, {"status": "ok"})
        for query, status in (("reset_running_requests=true", 200), ("reset_external=1", 400),
                              ("reset_running_requests=maybe", 400)):  # fmt: skip
            assert ask(unix(path), "POST", f"/reset_prefix_cache?{query}")[0] == status
        assert engine.num_resets == 2
        for method, endpoint in PATHS:
            assert ask(running.connect(), method, endpoint)[0] == 404
    finally:
        running.stop()
    assert not path.exists()


def test_on_a_port_with_a_key_of_its_own(engine: FakeEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    keys = {"api_key": "public", "admin_api_key": "admin"}
    running = Running(engine, ServerSettings(shutdown_timeout=1, admin_port=port, **keys))
    try:
        for method, path in PATHS:
            for key, status in (("", 401), ("public", 401), ("admin", 200)):
                found = ask(socket.create_connection(("127.0.0.1", port)), method, path, key)
                assert found[0] == status
            assert ask(running.connect(), method, path, "admin")[0] == 401
            assert ask(running.connect(), method, path, "public")[0] == 404
    finally:
        running.stop()


@pytest.fixture
def locked(engine: FakeEngine) -> Starlette:
    settings = ServerSettings(admin_port=1, admin_api_key="admin")
    admin = build_app(engine, settings).state.admin
    assert isinstance(admin, Starlette)
    return admin


@pytest.mark.parametrize("path", ["/stats", "/reset_prefix_cache", "/", "/health", "/x", ""])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_every_admin_path_needs_the_key(locked: Starlette, path: str, method: str) -> None:
    assert call(locked, path, method=method).status == 401


def test_a_missing_route_gets_the_list_of_routes(engine: FakeEngine) -> None:
    admin = build_app(engine, ServerSettings()).state.admin
    missing = call(admin, "/v1/completions", {"prompt": "a"})
    assert (missing.status, missing.error["code"]) == (404, "not_found")
    assert "/stats, /reset_prefix_cache, /admin/models" in missing.error["message"]
    assert "the API is on the public port" in missing.error["message"]
    for method, path, allowed in (
        ("POST", "/stats", "GET, HEAD"),
        ("GET", "/reset_prefix_cache", "POST"),
        ("DELETE", "/admin/models/load", "POST"),
    ):
        wrong = call(admin, path, method=method)
        assert (wrong.status, wrong.headers["allow"]) == (405, allowed)
        assert wrong.error["message"] == f"method not allowed on this path; use {allowed}"


def test_only_what_may_be_left_out_is_said_to_be_so(engine: FakeEngine) -> None:
    app = build_app(engine, ServerSettings())
    message = "model: 'x' is not served here; use 'fake'"
    for path in ("load", "unload"):
        reply = call(app.state.admin, f"/admin/models/{path}", {"model": "x"})
        assert reply.error["message"] == message
    assert call(app, "/v1/models/x").error["message"] == message
    optional = call(app, "/v1/completions", {"prompt": "a", "model": "x"})
    assert optional.error["message"] == f"{message}, or leave it out"
    assert (
        call(app.state.admin, "/stats", query="model=x").error["message"].endswith("leave it out")
    )


def test_a_busy_servers_socket_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "admin")
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as clients:
        busy.bind(path)
        busy.listen(0)
        with contextlib.suppress(BlockingIOError):  # until its backlog is full
            while True:
                client = clients.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(path)
        with pytest.raises(ConfigError, match="in use"), bind_admin(None, path):
            pass
        assert Path(path).is_socket()


def test_its_file_is_deleted_before_a_successor_can_bind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, listens = Path.unlink, []
    with bind_admin(None, str(tmp_path / "admin")) as sock:
        assert sock is not None

        def noted(self: Path, missing_ok: bool = False) -> None:
            listens.append(sock.fileno() >= 0)
            unlink(self, missing_ok)

        monkeypatch.setattr(Path, "unlink", noted)
    assert listens == [True]


def test_a_dead_servers_socket_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "admin"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with bind_admin(None, str(path)):
        with (
            pytest.raises(ConfigError, match=r"\(Address already in use\); .* admin_uds"),
            bind_admin(None, str(path)),
        ):
            pass
        assert path.is_socket()
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(ConfigError, match=r"it is a file.*admin_uds"), bind_admin(None, str(path)):
        pass
    assert path.read_text() == "precious"
    with pytest.raises(ConfigError, match="it is a folder"), bind_admin(None, str(tmp_path)):
        pass


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("no/such", "No such file or directory"),
        ("file/below", "Not a directory"),
        ("long" * 40, "it has more than 107 bytes"),
    ],
)
def test_a_path_that_no_socket_can_have_is_an_error(tmp_path: Path, path: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=why), bind_admin(None, str(tmp_path / path)):
        pass


def test_the_port_that_the_system_chose_is_reported(tmp_path: Path) -> None:
    path = str(tmp_path / "admin")
    with bind_admin(0, None) as port, bind_admin(None, path) as file:
        assert port is not None
        assert file is not None
        assert admin_address(port) == f"http://127.0.0.1:{port.getsockname()[1]}"
        assert admin_address(file) == path


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=r"\(Address already in use\); use .* admin_port"),
            bind_admin(port, None),
        ):
            pass
    with bind_admin(None, None) as none:
        assert none is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"admin_port": 9000},
        {"admin_port": 9000, "admin_api_key": "k", "admin_uds": "x"},
        {"admin_port": 70000, "admin_api_key": "k"},
        {"admin_api_key": ""},
        {"admin_uds": ""},
    ],
)
def test_wrong_settings(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="admin_"):
        ServerSettings(**wrong)  # type: ignore[arg-type]
