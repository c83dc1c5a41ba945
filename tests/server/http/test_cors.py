"""CORS: for origins that are named; by default for none, and where a key is needed for all."""

from __future__ import annotations

import pytest
from asgi_client import JSON, Reply, call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.errors import ConfigError
from quire.server.app import build_app
from quire.server.settings import ServerSettings

OURS, OTHER = "https://app.example.com", "https://evil.example.com"
NAMES = "access-control-allow-origin"


def serving(origins: str | None, engine: FakeEngine, **settings: object) -> Starlette:
    return build_app(engine, ServerSettings(allowed_origins=origins, **settings))  # type: ignore[arg-type]


def preflight(app: Starlette, origin: str) -> Reply:
    asked = {"access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "authorization,content-type"
    headers = {"origin": origin} | asked
    return call(app, "/v1/chat/completions", method="OPTIONS", headers=headers)


def test_off_by_default(app: Starlette) -> None:
    reply = call(app, "/v1/models", headers={"origin": OURS})
    assert reply.status == 200
    assert [name for name in reply.headers if name.startswith("access-control")] == []
    refused = preflight(app, OURS)
    assert refused.status == 405
    assert "--allowed-origins localhost" in refused.body.decode()
    assert "allowed-origins" not in call(app, "/v1/models", method="OPTIONS").body.decode()
    assert NAMES not in refused.headers


def test_an_origin_that_was_named_may_read_answers(engine: FakeEngine) -> None:
    app = serving(f"http://localhost:3000, {OURS}", engine)
    for path, body in (("/v1/models", None), ("/v1/completions", {"prompt": "a"}), ("/x", None)):
        reply = call(app, path, body, headers=JSON | {"origin": OURS})
        assert reply.headers[NAMES] == OURS
        assert "x-request-id" in reply.headers["access-control-expose-headers"]
        assert reply.headers["vary"].lower().endswith("origin")
        stranger = call(app, path, body, headers=JSON | {"origin": OTHER})
        assert stranger.status == reply.status, "a browser hides it; others may read"
        assert NAMES not in stranger.headers
    stream = call(
        app, "/v1/completions", {"prompt": "a", "stream": True}, headers=JSON | {"origin": OURS}
    )
    assert stream.headers[NAMES] == OURS
    assert stream.events[-1] == "[DONE]"


def test_a_preflight_needs_no_key_and_opens_nothing(engine: FakeEngine) -> None:
    app = serving(OURS, engine, api_key="secret")
    permitted = preflight(app, OURS)
    assert permitted.status == 200, "any status of success permits, says the Fetch standard"
    assert permitted.headers[NAMES] == OURS
    assert permitted.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert permitted.headers["access-control-allow-headers"] == "authorization,content-type"
    assert preflight(app, OTHER).status == 400
    assert NAMES not in preflight(app, OTHER).headers
    locked = call(app, "/v1/models", headers={"origin": OURS})
    assert (locked.status, locked.headers[NAMES]) == (401, OURS)
    plain = call(app, "/v1/models", method="OPTIONS", headers={"origin": OURS})
    assert plain.status == 401, "OPTIONS alone is no preflight"
    assert engine.calls == []


def test_all_origins_but_never_with_credentials(engine: FakeEngine) -> None:
    app = serving("*", engine)
    for reply in (call(app, "/v1/models", headers={"origin": OTHER}), preflight(app, OTHER)):
        assert reply.headers[NAMES] == OTHER
        assert "origin" in reply.headers["vary"].lower(), "no cache gives it to another page"
        assert "access-control-allow-credentials" not in reply.headers
    assert NAMES not in call(app, "/v1/models").headers


def test_with_a_key_any_page_that_knows_it_may_call(engine: FakeEngine) -> None:
    app = serving(None, engine, api_key="secret")
    assert preflight(app, OTHER).headers[NAMES] == OTHER
    key = {"authorization": "Bearer secret", "origin": OTHER}
    assert call(app, "/v1/models", headers=key).headers[NAMES] == OTHER
    assert call(app, "/v1/models", headers={"origin": OTHER}).status == 401
    assert NAMES not in preflight(serving(OURS, engine, api_key="secret"), OTHER).headers


@pytest.mark.parametrize(
    ("origin", "is_local"),
    [
        *(
            (f"{scheme}://{host}{port}", True)
            for scheme in ("http", "https")
            for host in ("localhost", "127.0.0.1", "[::1]")
            for port in ("", ":3000")
        ),
        *(
            (origin, False)
            for origin in (
                "http://notlocalhost",
                "http://localhost.evil.example",
                "http://localhost:3000.evil.example",
                "http://127.0.0.1.evil.example",
                "null",
                OTHER,
            )
        ),
    ],
)
def test_localhost_is_this_machine_at_any_port(
    engine: FakeEngine, origin: str, is_local: bool
) -> None:
    app = serving(f"localhost,{OURS}", engine)
    for asked in (origin, OURS):
        assert (preflight(app, asked).headers.get(NAMES) == asked) == (is_local or asked == OURS)


def test_no_origin_though_there_is_a_key() -> None:
    assert ServerSettings(api_key="k", allowed_origins="none").origins == []


def test_origins_as_a_json_list(engine: FakeEngine) -> None:
    app = serving(f'["{OURS.upper()}"]', engine)
    assert call(app, "/v1/models", headers={"origin": OURS}).headers[NAMES] == OURS


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "app.example.com", "https://a.example/", "https://a/x", "null", '["*"', "[1]", "a,*"),
        *("http://[::1", "https://user@a.example"),
    ],
)
def test_what_is_no_origin(wrong: str) -> None:
    with pytest.raises(ConfigError, match="allowed_origins"):
        ServerSettings(allowed_origins=wrong)
