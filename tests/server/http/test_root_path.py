"""--root-path: requests with and without the prefix, and their API key."""

from __future__ import annotations

import pytest
from asgi_client import call
from fake_engine import FakeEngine

from quire.errors import ConfigError
from quire.server.app import build_app
from quire.server.http.application import UNVERSIONED
from quire.server.http.root_path import SERVED
from quire.server.settings import ServerSettings


@pytest.mark.parametrize("path", ["/v1/completions", "/llm/v1/completions"])
def test_with_and_without_the_prefix(path: str) -> None:
    app = build_app(FakeEngine(), ServerSettings(root_path="/llm/"))
    assert call(app, path, {"prompt": "a"}).status == 200


@pytest.mark.parametrize("path", ["/llmv1/models", "/other/v1/models", "/llm/llm/v1/models"])
def test_other_prefixes_are_no_paths(path: str) -> None:
    app = build_app(FakeEngine(), ServerSettings(root_path="/llm"))
    assert call(app, path).status == 404


@pytest.mark.parametrize("path", ["/v1/models", "/llm/v1/models", "/llm/metrics"])
def test_a_key_is_needed_on_both(path: str) -> None:
    app = build_app(FakeEngine(), ServerSettings(root_path="/llm", api_key="k"))
    assert call(app, path).status == 401
    assert call(app, "/llm/health").status == 200


def test_the_document_names_it() -> None:
    app = build_app(FakeEngine(), ServerSettings(root_path="/llm"))
    assert call(app, "/llm/openapi.json").json()["servers"] == [{"url": "/llm"}]


@pytest.mark.parametrize("path", ["llm", "/a//b", "/a?b", "/ü"])
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(ConfigError, match="root_path must be a path such as /llm"):
        ServerSettings(root_path=path)


def test_a_slash_is_no_prefix() -> None:
    assert ServerSettings(root_path="/").root_path is None


@pytest.mark.parametrize("path", ["/v1", "/v1/models", "/health/"])
def test_the_servers_own_paths_are_no_prefix(path: str) -> None:
    with pytest.raises(ConfigError, match="begins as the server's own paths do"):
        ServerSettings(root_path=path)


def test_all_of_its_own_paths_are_known() -> None:
    routes = build_app(FakeEngine(), ServerSettings()).routes
    paths = [*UNVERSIONED, *(route.path for route in routes)]  # type: ignore[attr-defined]
    firsts = {path.split("/")[1] for path in paths}
    assert firsts - {"", "api"} == SERVED
