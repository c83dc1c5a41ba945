"""Requests to a server whose tokenizer panics or never ends get answers in their API's format."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from asgi_client import JSON, Reply, call, request
from fake_engine import FakeEngine, FakeTokenizer
from starlette.applications import Starlette

from quire.server.app import build_app
from quire.server.settings import ServerSettings
from quire.tokenizer import encoding_guard
from quire.tokenizer.encoding_guard import EncodingGuard
from quire.tokenizer.tokenizer import Tokenizer

BUNDLED = Path(__file__).parents[2] / "src/quire/bundled"
USER = {"role": "user", "content": "hello"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": "hello"},
    "/v1/completions": {"prompt": "hello"},
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/messages": {"messages": [USER], "max_tokens": 2},
    "/v1/responses": {"input": "hello"},
    "/tokenize": {"prompt": "hello"},
    "/v1/messages/count_tokens": {"messages": [USER]},
}


def app_with(folder: Path, pre_tokenizer: dict[str, Any]) -> Starlette:
    """A server with the bundled model's tokenizer, but for its pre-tokenizer."""
    source = next(BUNDLED.rglob("tokenizer.json"))
    spec = json.loads(source.read_text())
    spec["pre_tokenizer"] = pre_tokenizer
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        if (source.parent / name).is_file():
            (folder / name).write_text((source.parent / name).read_text())
    engine = FakeEngine(tokenizer=Tokenizer.from_folder(folder))  # type: ignore[arg-type]
    return build_app(engine, ServerSettings())


@pytest.fixture(scope="module")
def panicking(tmp_path_factory: pytest.TempPathFactory) -> Starlette:
    """A server whose tokenizer panics."""
    return app_with(tmp_path_factory.mktemp("hostile"), {"type": "FixedLength", "length": 0})


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starlette:
    """A server whose tokenizer takes seconds for a text of many Thai letters."""
    monkeypatch.setattr(encoding_guard, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(encoding_guard, "MAX_SECONDS_PER_CHAR", 0.0)
    monkeypatch.setattr(encoding_guard, "WALL_SECONDS_PER_SECOND", 1200)  # of a busy machine
    split = {"type": "Split", "pattern": {"Regex": r"\p{Thai}*\p{Thai}*Q"}, "behavior": "Isolated"}
    return app_with(tmp_path, split | {"invert": False})


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("size", [1, 2000], ids=["on the loop", "in a thread"])
def test_each_route_answers(panicking: Starlette, path: str, size: int) -> None:
    body = json.dumps(BODIES[path]).replace("hello", "hello" * size).encode()
    reply = asyncio.run(asyncio.wait_for(request(panicking, path, body), 10.0))
    assert reply.status == 400, reply.body
    assert "tokenizer fails on this text" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", BODIES)
def test_a_text_that_takes_too_long_is_refused_and_others_are_answered(
    stuck: Starlette, path: str
) -> None:
    slow = json.dumps(BODIES[path]).replace("hello", "\u0e01" * 900 + "!Q").encode()
    quick = json.dumps(BODIES[path]).encode()

    async def both() -> list[Reply]:
        asked = [request(stuck, path, body) for body in (slow, quick)]
        return await asyncio.wait_for(asyncio.gather(*asked), 60.0)

    refused, answered = asyncio.run(both())
    assert refused.status == 400, refused.body
    assert "tokenizer has not finished this text" in refused.json()["error"]["message"]
    assert answered.status == 200, answered.body


@pytest.mark.parametrize(
    ("bound", "where"), [("header", "process"), ("field", "process"), ("client", "thread")]
)
def test_a_text_that_takes_long_ends_with_its_request(
    stuck: Starlette, monkeypatch: pytest.MonkeyPatch, bound: str, where: str
) -> None:
    """A request's own timeout bounds it, and the thread and the process are free again."""
    if where == "process":
        in_child = EncodingGuard._in_child
        ids = lambda guard, _, question: in_child(guard, question, 1000.0)  # noqa: E731
        monkeypatch.setattr(EncodingGuard, "ids", ids)
    monkeypatch.setattr(encoding_guard, "MAX_SECONDS", 1000.0)
    text = "\u0e01" * 9000 + "!Q"
    headers = {"x-request-timeout": "0.2"} if bound == "header" else {}

    async def slow(path: str) -> int:
        fields = {"timeout": 0.2} if bound == "field" else {}
        body = json.dumps(BODIES[path] | fields).replace("hello", text).encode()
        asked = request(stuck, path, body, headers=JSON | headers)
        if bound != "client":
            return (await asked).status
        task = asyncio.create_task(asked)
        await asyncio.sleep(0.2)
        task.cancel()
        return 0

    async def all_of_them() -> list[int]:
        paths = ["/v1/chat/completions"]
        if bound != "field":
            paths += ["/v1/messages", "/v1/responses", "/tokenize", "/v1/messages/count_tokens"]
        async with asyncio.timeout(20.0):
            statuses = await asyncio.gather(*map(slow, paths))
            for path in BODIES:
                assert (await request(stuck, path, BODIES[path])).status == 200
        return statuses

    assert set(asyncio.run(all_of_them())) == {0 if bound == "client" else 408}


def test_a_panic_elsewhere_is_an_internal_error_and_touches_no_other() -> None:
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})

    class Panicking(FakeTokenizer):
        def encode(self, text: str, **options: Any) -> list[int]:
            if "boom" in text:
                raise panic("secret words")
            return super().encode(text, **options)

    app = build_app(FakeEngine(tokenizer=Panicking()), ServerSettings())

    async def both() -> list[int]:
        texts = ["boom", "hello", "boom" * 2000]
        asked = [request(app, "/v1/completions", {"prompt": text}) for text in texts]
        replies = await asyncio.wait_for(asyncio.gather(*asked), 10.0)
        assert all(b"secret" not in reply.body for reply in replies)
        assert replies[0].error["code"] == "internal_error"
        return [reply.status for reply in replies]

    statuses = asyncio.run(both())
    assert statuses[:2] == [500, 200]
    assert call(app, "/v1/completions", {"prompt": "hello"}).status == 200
