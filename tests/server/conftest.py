"""The scripted engine behind the real application."""

from __future__ import annotations

from typing import Any

import pytest
from asgi_client import Post, Reply, call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.server.app import build_app
from quire.server.settings import ServerSettings


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def app(engine: FakeEngine) -> Starlette:
    return build_app(engine, ServerSettings())


@pytest.fixture
def complete(app: Starlette) -> Post:
    """Post to /v1/completions, with a prompt if none is given."""

    def post(**fields: Any) -> Reply:
        return call(app, "/v1/completions", {"prompt": "abc"} | fields)

    return post


@pytest.fixture
def chat(app: Starlette) -> Post:
    """Post to /v1/chat/completions, with a user's message if none is given."""

    def post(**fields: Any) -> Reply:
        messages = [{"role": "user", "content": "hi"}]
        return call(app, "/v1/chat/completions", {"messages": messages} | fields)

    return post
