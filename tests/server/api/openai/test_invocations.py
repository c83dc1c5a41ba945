"""/invocations: a body gets the answer of the path that its fields are for."""

from __future__ import annotations

from typing import Any

import pytest
from asgi_client import call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.server.api.openai.invocations import path_of
from quire.server.app import build_app
from quire.server.settings import ServerSettings

BODIES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "choices"),
    ("/v1/completions", {"prompt": "a"}, "choices"),
    ("/v1/completions", {"messages": None, "prompt": "a"}, "choices"),
    ("/v1/embeddings", {"input": "a"}, "data"),
    (
        "/v1/embeddings",
        {"messages": [{"role": "user", "content": "a"}], "encoding_format": "float"},
        "data",
    ),
    ("/v1/rerank", {"query": "a", "documents": ["b"]}, "results"),
    ("/v1/score", {"queries": "a", "documents": ["b"]}, "data"),
]


@pytest.mark.parametrize(
    ("path", "body", "field"), BODIES, ids=[f"{path} {','.join(body)}" for path, body, _ in BODIES]
)
def test_the_answer_is_that_of_the_path(
    app: Starlette, path: str, body: dict[str, Any], field: str
) -> None:
    found = call(app, "/invocations", body)
    assert (found.status, path_of(found.body)) == (200, "/v1/chat/completions")
    wanted = call(app, path, body)
    assert found.json().keys() == wanted.json().keys()
    assert found.json()[field] == wanted.json()[field]


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"{}", b'{"a": 1e999}', b"\xff"])
def test_a_bad_body_has_the_error_of_chats(app: Starlette, body: bytes) -> None:
    found, wanted = call(app, "/invocations", body), call(app, "/v1/chat/completions", body)
    assert (found.status, found.error) == (400, wanted.error)


def test_limits_are_those_of_all_paths() -> None:
    app = build_app(FakeEngine(), ServerSettings(max_body_bytes=100))
    assert call(app, "/invocations", {"prompt": "x" * 200}).status == 413
