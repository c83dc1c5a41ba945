"""Call an ASGI application directly, so that tests see each message and choose when to leave."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message

T = TypeVar("T")

JSON = {"content-type": "application/json"}


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes
    parts: list[bytes] = field(default_factory=list)  # as they were sent

    def json(self) -> Any:
        return json.loads(self.body, parse_constant=_refuse)

    @property
    def error(self) -> dict[str, Any]:
        (name,) = found = self.json()
        assert name == "error"
        error: dict[str, Any] = found["error"]
        more = {"n_prompt_tokens", "n_ctx"} if error["code"] == "context_length_exceeded" else set()
        assert set(error) == {"message", "type", "param", "code"} | more
        return error

    @property
    def events(self) -> list[Any]:
        """The data of each server-sent event; "[DONE]" stays a string."""
        assert self.headers["content-type"].startswith("text/event-stream")
        *events, tail = self.body.decode().split("\n\n")
        assert tail == ""
        assert all(event.startswith("data: ") for event in events)
        data = [event.removeprefix("data: ") for event in events]
        return [item if item == "[DONE]" else json.loads(item) for item in data]


Post = Callable[..., Reply]  # fields of a request to its reply


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


async def request(
    app: ASGIApp,
    path: str,
    body: bytes | Any = None,
    *,
    method: str | None = None,
    headers: dict[str, str] | None = None,
    chunks: list[bytes] | None = None,
    pause: float = 0.0,
    leave_after: int | None = None,
    query: str = "",
    into: Reply | None = None,
) -> Reply:
    """Send one request. body: bytes, or something to be sent as JSON. chunks: the body in parts.

    pause: seconds before the last part of the body.
    leave_after: parts of the answer after which the client leaves (0: right after the body).
    into: the reply to fill, for who looks before the application is done.
    """
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    waiting = [body or b""] if chunks is None else list(chunks)
    sent = {"host": "test"} | (JSON if headers is None else headers)
    gone = asyncio.Event()
    reply = Reply(0, {}, b"") if into is None else into
    if leave_after == 0:
        gone.set()

    async def receive() -> Message:
        if waiting:
            if len(waiting) == 1 and pause:
                await asyncio.sleep(pause)
            part = waiting.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(waiting)}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            return
        reply.body += message["body"]
        reply.parts.append(message["body"])
        if leave_after is not None and len(reply.parts) >= leave_after:
            gone.set()
            await asyncio.sleep(0)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method or ("GET" if body is None and chunks is None else "POST"),
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in sent.items()],
        "client": ("127.0.0.1", 1),
        "server": ("test", 80),
    }
    await app(scope, receive, send)
    return reply


def call(app: ASGIApp, path: str, body: bytes | Any = None, **options: Any) -> Reply:
    """`request`, run to its end."""
    return asyncio.run(request(app, path, body, **options))


class LeapingLoop(asyncio.SelectorEventLoop):
    """An event loop on which no time passes while there is work, and none is waited for.

    When all sleep, its clock leaps to the next one's time: delays and deadlines keep their order on
    any machine. For what runs on the loop alone, without threads and sockets.
    """

    def __init__(self) -> None:
        super().__init__(_LeapingSelector(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class _LeapingSelector(selectors.DefaultSelector):
    def __init__(self, loop: LeapingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select()
        self._loop.now += max(0.0, timeout)
        return super().select(0)


def run_leaping(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run on a LeapingLoop."""
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(main)
