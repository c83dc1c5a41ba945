"""Which keys are admitted, and which cached prefixes requests of different keys share."""

from __future__ import annotations

from pathlib import Path

import pytest
from asgi_client import JSON, call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.errors import ConfigError
from quire.server.app import build_app
from quire.server.http.api_keys import cache_salt_of
from quire.server.settings import ServerSettings

BODY = {"prompt": "abc"}
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"]
OPEN = {"/", "/docs", "/health", "/ping", "/ready"}


def app_with(engine: FakeEngine, **settings: object) -> Starlette:
    return build_app(engine, ServerSettings(**settings))


def status(app: Starlette, key: str, header: str = "authorization") -> int:
    value = f"Bearer {key}" if header == "authorization" else key
    return call(app, "/v1/completions", BODY, headers=JSON | {header: value}).status


def test_each_of_several_keys_opens(engine: FakeEngine, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# the team's\nthird\n\n  fourth  \n  # none\n")
    app = app_with(engine, api_key="first, second", api_key_file=str(file))
    for key in ("first", "second", "third", "fourth"):
        assert status(app, key) == status(app, key, "x-api-key") == 200
    for key in ("", "first,second", "first, second", "firs", "# the team's", "none"):
        assert status(app, key) == status(app, key, "x-api-key") == 401


@pytest.mark.parametrize("text", ["", "\n\n", "# only this\n", "schlüssel\n", "\xff"])
def test_a_file_without_good_keys_is_an_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="api_key_file"):
        _ = ServerSettings(api_key_file=str(file)).keys
    with pytest.raises(ConfigError, match="api_key_file"):
        _ = ServerSettings(api_key_file=str(tmp_path / "none")).keys


def test_no_path_is_open_but_those_that_are_named(engine: FakeEngine) -> None:
    app = app_with(engine, api_key="sesame")
    paths = [route.path for route in app.routes]  # type: ignore[attr-defined]
    odd = [
        "/health/",
        "//health",
        "/health/../v1/models",
        "/v1/../health",
        "/HEALTH",
        "",
        "/x",
        "*",
    ]
    assert len(paths) > 8
    for path in set(paths) | set(odd):
        for method in METHODS:
            reply = call(app, path, method=method)
            assert reply.status == 401 or path in OPEN, f"{method} {path}: {reply.status}"
    assert engine.calls == []


def salts(engine: FakeEngine, app: Starlette, keys: list[str], **fields: object) -> list[str]:
    engine.calls.clear()
    for key in keys:
        headers = JSON | {"authorization": f"Bearer {key}"}
        assert call(app, "/v1/completions", BODY | fields, headers=headers).status == 200
    return [found["cache_salt"] for found in engine.calls]


def test_the_prefix_cache_is_private_to_a_key(engine: FakeEngine) -> None:
    app = app_with(engine, api_key="a,b")
    first, again, other = salts(engine, app, ["a", "a", "b"])
    assert first == again != other
    asked, asked_again, asked_other = salts(engine, app, ["a", "a", "b"], cache_salt="s")
    assert asked == asked_again
    assert len({first, other, asked, asked_other, "", "s"}) == 6


def test_asking_for_another_tenants_salt_does_not_help(engine: FakeEngine) -> None:
    app = app_with(engine, api_key="a,b")
    (target,) = salts(engine, app, ["a"])
    assert salts(engine, app, ["b"], cache_salt=target) != [target]
    assert cache_salt_of("t", "a\ud800") != cache_salt_of("t", "a\ud801")  # lone surrogates


def test_keys_may_share_by_a_setting(engine: FakeEngine) -> None:
    app = app_with(engine, api_key="a,b", share_prefix_cache=True)
    assert salts(engine, app, ["a", "b"]) == ["", ""]
    assert salts(engine, app, ["a", "b"], cache_salt="s") == ["s", "s"]


def test_without_keys_the_salt_is_the_requests_own(engine: FakeEngine) -> None:
    assert salts(engine, app_with(engine), ["a"], cache_salt="s") == ["s"]
