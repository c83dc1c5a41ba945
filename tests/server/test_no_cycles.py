"""A request that is refused or fails leaves no reference cycle that holds what it sent.

The garbage collector counts objects, not bytes: with cycles, a hundred refused bodies of 4 MB would
stay in memory before it runs. What makes them are frames that hold an error whose traceback holds
them, so there may be no frame among the garbage.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from asgi_client import call
from fake_engine import LIMITS, FakeEngine
from starlette.applications import Starlette

from quire.errors import EngineError

LONG = "a" * (LIMITS.max_model_len + 1)
TALK = [{"role": "user", "content": LONG}]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": LONG}),
    ("/v1/completions", {"prompt": ["a", LONG, LONG]}),
    ("/v1/completions", {"prompt": ["a", LONG], "stream": True}),
    ("/v1/completions", {"prompt": "a", "nope": LONG}),
    ("/v1/chat/completions", {"messages": TALK}),
    ("/v1/chat/completions", {"messages": TALK, "stream": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [LONG]}]}),
    ("/v1/chat/completions/batch", {"messages": [TALK, TALK]}),
    ("/v1/responses", {"input": LONG}),
    ("/v1/messages", {"messages": TALK, "max_tokens": 2}),
    ("/v1/messages/count_tokens", {"messages": TALK, "tools": [LONG]}),
    ("/v1/embeddings", {"input": ["a", LONG]}),
    ("/v1/score", {"queries": "a", "documents": ["a", LONG]}),
    ("/v1/rerank", {"query": "a", "documents": ["a", LONG]}),
    ("/completion", {"prompt": ["a", LONG]}),
    ("/tokenize", {"prompt": LONG * 300}),
    ("/api/chat", {"model": "fake", "messages": TALK}),
    ("/api/embed", {"model": "fake", "input": ["a", LONG], "truncate": False}),
]
FAILING: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/completions", {"prompt": ["a", "b"]}),
    ("/v1/completions", {"prompt": ["a", "b"], "stream": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": 2}),
    ("/v1/embeddings", {"input": ["a", "b"]}),
]


@contextmanager
def no_frames_in_cycles() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        frames = [found for found in gc.garbage if isinstance(found, FrameType)]
        names = {frame.f_code.co_qualname for frame in frames}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not names


@pytest.mark.parametrize(("path", "body"), CASES)
def test_what_is_refused(app: Starlette, path: str, body: dict[str, Any]) -> None:
    with no_frames_in_cycles():
        assert call(app, path, body).status == 400


@pytest.mark.parametrize(("path", "body"), FAILING)
def test_what_fails(app: Starlette, engine: FakeEngine, path: str, body: dict[str, Any]) -> None:
    engine.fail_at = ord("a") if path == "/v1/embeddings" else 0
    engine.failure = EngineError("it failed")
    with no_frames_in_cycles():
        assert call(app, path, body).status in (200, 500)


@pytest.mark.parametrize("parts", [0, 1])
@pytest.mark.parametrize(("path", "body"), FAILING)
def test_what_its_client_leaves(
    app: Starlette, engine: FakeEngine, path: str, body: dict[str, Any], parts: int
) -> None:
    engine.delay = 0.01
    with no_frames_in_cycles():
        call(app, path, body, leave_after=parts)


@pytest.mark.parametrize(("path", "body"), FAILING)
def test_what_takes_too_long(
    app: Starlette, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    engine.delay = 1.0
    with no_frames_in_cycles():
        assert call(app, path, body | {"timeout": 0.02}).status in (200, 408)
