"""Large bodies share a bound on their bytes; short ones get through whatever those hold."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from typing import Any

import pytest
from asgi_client import JSON
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.types import Message

from quire.core.sampling_checks import MAX_LOGPROB_TOKEN_IDS
from quire.errors import ConfigError, QueueFullError
from quire.server.app import build_app
from quire.server.http.body_memory import COLLECT_BYTES, FREE_BYTES, BodyMemory, BodySpace
from quire.server.settings import ServerSettings

LARGE = b'{"prompt": "abc"' + b" " * 3 * FREE_BYTES + b"}"
PATHS = ["/v1/completions", "/tokenize"]


class Upload:
    """A client that sends on command; `status` is set when it was answered."""

    def __init__(self, app: Starlette, path: str, key: str = "") -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._parts: asyncio.Queue[Message] = asyncio.Queue()
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
        }
        headers = JSON | {"authorization": f"Bearer {key}"}
        scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.done = asyncio.ensure_future(app(scope, self._parts.get, self._send))

    async def part(self, data: bytes, *, more: bool) -> None:
        """Returns when the part has been looked at."""
        self._parts.put_nowait({"type": "http.request", "body": data, "more_body": more})
        while not self._parts.empty() and not self.done.done():
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def leave(self) -> None:
        self._parts.put_nowait({"type": "http.disconnect"})
        await self.done

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])


def small(engine: FakeEngine) -> Starlette:
    """Room for one LARGE beside what is free, not for two."""
    size = len(LARGE)
    return build_app(engine, ServerSettings(max_body_bytes=size, max_held_body_bytes=size))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("outcome", ["answered", "left", "malformed"])
def test_what_one_holds_the_next_cannot(engine: FakeEngine, path: str, outcome: str) -> None:
    app = small(engine)

    async def scenario() -> None:
        first, second = Upload(app, path), Upload(app, path)
        await first.part(LARGE[: 3 * FREE_BYTES], more=True)
        await second.part(LARGE[: 3 * FREE_BYTES], more=True)
        await second.done
        assert (first.status, second.status) == (0, 429)
        assert 1 <= int(second.headers[b"retry-after"]) <= 30
        short = Upload(app, path)
        await short.part(b'{"prompt": "abc"}', more=False)
        await short.done
        assert short.status == 200, "a short body is held up by large ones"
        if outcome == "left":
            await first.leave()
        else:
            await first.part(LARGE[3 * FREE_BYTES :] if outcome == "answered" else b"", more=False)
            await first.done
        assert first.status == {"answered": 200, "left": 0, "malformed": 400}[outcome]
        third = Upload(app, path)
        await third.part(LARGE, more=False)
        await third.done
        assert third.status == 200, "what the first held was not given back"

    asyncio.run(scenario())


def test_answers_with_many_log_probabilities_share_a_bound(engine: FakeEngine) -> None:
    """A short body may ask for 200 MB of them, of which one caller has half."""
    app, engine.wait_at = build_app(engine, ServerSettings(api_key="one,two")), 1
    ids = list(range(65, 65 + MAX_LOGPROB_TOKEN_IDS))
    body = {"prompt": "abc", "max_tokens": 1000, "logprobs": 1, "logprob_token_ids": ids}

    async def sent(key: str, **more: Any) -> Upload:
        upload = Upload(app, "/v1/completions", key)
        await upload.part(json.dumps(body | more).encode(), more=False)
        return upload

    async def scenario() -> None:
        first, second, other = await sent("one"), await sent("one"), await sent("two")
        usual = await sent("one", logprob_token_ids=ids[:20])
        await asyncio.wait([second.done], timeout=5.0)
        assert (first.status, second.status, usual.status, other.status) == (0, 429, 0, 0)
        assert 1 <= int(second.headers[b"retry-after"]) <= 30
        engine.go.set()
        await asyncio.gather(first.done, usual.done, other.done)
        third = await sent("one")
        await third.done
        assert [each.status for each in (first, usual, other, third)] == [200] * 4

    asyncio.run(scenario())


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9 * FREE_BYTES)), max_size=30))
def test_the_count_is_what_the_bodies_hold(parts: list[tuple[int, int]]) -> None:
    limit = 10 * FREE_BYTES
    memory = BodyMemory(limit, lambda: 1.0)
    spaces, sizes = [BodySpace(memory) for _ in range(3)], [0, 0, 0]
    for index, more in parts:
        try:
            spaces[index].hold(sizes[index] + more)
            sizes[index] += more
        except QueueFullError:
            spaces[index].__exit__()
            sizes[index] = 0
        assert memory.num_bytes == sum(max(0, size - FREE_BYTES) for size in sizes) <= limit
    for space in spaces:
        with space:
            pass
    assert memory.num_bytes == 0


def test_one_caller_takes_a_share() -> None:
    memory = BodyMemory(10, lambda: 1.0, "answers", 6)
    memory.take(6, "a")
    with pytest.raises(QueueFullError, match="6 bytes of answers already for this caller; send"):
        memory.take(1, "a")
    memory.take(4, "b")
    with pytest.raises(QueueFullError, match="10 bytes of answers already; send"):
        memory.take(1, "b")
    memory.release(6, "a")
    memory.take(2, "b")
    assert memory.num_bytes == 6
    memory.release(6, "b")
    assert not memory._of_callers, "callers that have left are remembered"


def test_by_default_many_of_the_largest_bodies_fit() -> None:
    assert ServerSettings(max_body_bytes=100).held_body_bytes == 6400
    with pytest.raises(ConfigError, match="max_held_body_bytes is 99, less than max_body_bytes"):
        ServerSettings(max_body_bytes=100, max_held_body_bytes=99)


def test_garbage_is_collected_by_the_bytes_of_bodies() -> None:
    """A few cycles hold little for a collector that counts objects, but may hold much."""

    class Cycle:
        pass

    cycle = Cycle()
    cycle.own = cycle  # type: ignore[attr-defined]
    left, memory = weakref.ref(cycle), BodyMemory(COLLECT_BYTES, lambda: 1.0)
    gc.disable()
    try:
        del cycle
        for size in (FREE_BYTES, COLLECT_BYTES // 2):
            with BodySpace(memory) as space:
                space.hold(size)
            assert left() is not None
        with BodySpace(memory) as space:
            space.hold(COLLECT_BYTES)
        assert left() is None
    finally:
        gc.enable()
