"""Paths that nearly exist, and methods that a path does not have."""

from __future__ import annotations

import pytest
from asgi_client import call
from starlette.applications import Starlette

from quire.compat.http_paths import FOREIGN_PATHS
from quire.server.http.application import UNVERSIONED


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("/chat/completion", "/v1/chat/completions"),
        ("/api/v1/Chat/Completions", "/v1/chat/completions"),
        ("/v1/chat", "/v1/chat/completions"),
        ("/v1/completion", "/v1/completions"),
        ("/v1/embedding", "/v1/embeddings"),
        ("/v1/model", "/v1/models"),
        ("/model", "/v1/models"),
        ("/messages", "/v1/messages"),
        ("/v1/messages/", "/v1/messages"),
        ("/v1/message/count_tokens", "/v1/messages/count_tokens"),
        ("/v1/response", "/v1/responses"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/health", "/health"),
        ("/metric", "/metrics"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_path_that_nearly_exists_names_the_right_one(
    app: Starlette, path: str, near: str, method: str
) -> None:
    reply = call(app, path, {} if method == "POST" else None, method=method)
    assert reply.status == 404
    assert reply.json()["error"]["message"] == f"no such path; did you mean {near}?"
    assert call(app, near, method="GET").status != 404


@pytest.mark.parametrize("path", sorted(UNVERSIONED))
def test_a_path_without_its_version_is_the_same(app: Starlette, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"input": "a"}
    asked = None if path == "/models" else body
    assert call(app, path, asked).json().keys() == call(app, f"/v1{path}", asked).json().keys()


@pytest.mark.parametrize("path", FOREIGN_PATHS)
def test_a_path_of_another_api_says_what_to_use(app: Starlette, path: str) -> None:
    engines, text = FOREIGN_PATHS[path]
    for below in ("", "/", "/inner"):
        reply = call(app, path + below, {})
        error = reply.json()["error"]  # Ollama's is the sentence itself
        assert reply.status == 404
        said = error if isinstance(error, str) else error["message"]
        assert said == f"{path} is {engines}'s, which is not here: {text}"


@pytest.mark.parametrize("path", ["/v1", "/api", "/api/other", "/x", "//", "/v1/" + "a" * 60_000])
def test_other_paths_name_the_api(app: Starlette, path: str) -> None:
    reply = call(app, path)
    assert (reply.status, reply.error["code"]) == (404, "not_found")
    assert "/v1/chat/completions" in reply.error["message"]
    assert len(reply.body) < 500


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", {"POST"}),
        ("DELETE", "/v1/models", {"GET", "HEAD"}),
        ("PUT", "/tokenize", {"POST"}),
        ("POST", "/health", {"GET", "HEAD"}),
        ("DELETE", "/ping", {"GET", "HEAD", "POST"}),
    ],
)
def test_a_wrong_method_gets_the_allowed_ones(
    app: Starlette, method: str, path: str, allowed: set[str]
) -> None:
    reply = call(app, path, method=method)
    assert reply.status == 405
    assert set(reply.headers["allow"].split(", ")) == allowed
    assert all(name in reply.error["message"] for name in allowed)
