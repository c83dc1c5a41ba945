"""Batch files in OpenAI's format: a request per line in, an answer or an error per line out.

Owns the lines; the requests are answered by the server's own application, without HTTP.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import IO, Any

import msgspec
from starlette.types import ASGIApp, Message

from quire.errors import InvalidRequestError
from quire.server.http.http_errors import describe
from quire.server.http.request_record import new_id
from quire.server.http.wrong_value import wrong_value

URLS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"),
    "/v1/messages",
    *("/v1/score", "/score", "/v1/rerank", "/rerank", "/v2/rerank"),
)
NOT_HERE = (
    ("stream", (True,), "streaming is not possible in a batch file; leave it out"),
    ("background", (True,), "answers are written when they are whole; leave it out"),
    ("encoding_format", ("bytes", "bytes_only"), "a line holds JSON alone; send base64"),
)
"""Fields of a body, the values of each that are refused, and why."""
MAX_ID_CHARS = 512
MAX_LINE_BYTES = 16 << 20  # more is not even read; a body has at most 4 MiB
MAX_HELD_BYTES = 4 * MAX_LINE_BYTES  # of the lines under way, with one more


class BatchLine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One request of a batch file. custom_id: identifies its answer. body: the body for `url`."""

    custom_id: str
    method: str = "POST"
    url: str
    body: msgspec.Raw


class NamedLine(msgspec.Struct):
    """The part of a line that is read where the line is not a request."""

    custom_id: str


class BatchReply(msgspec.Struct):
    """The endpoint's reply, or the error that a line gets which is not sent to it."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchError(msgspec.Struct):
    """The error of a line that is not a valid request."""

    code: str
    message: str


class BatchResult(msgspec.Struct, kw_only=True):
    """A line of the output. error: of a line that is not a valid request; its response is a 400.

    custom_id: None where the line has none.
    """

    id: str
    custom_id: str | None
    response: BatchReply | None = None
    error: BatchError | None = None

    @property
    def is_good(self) -> bool:
        """Whether the request succeeded."""
        return self.response is not None and self.response.status_code == 200


_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_decoder = msgspec.json.Decoder(BatchLine)
_names = msgspec.json.Decoder(NamedLine)


def bounded_lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file; of those that are too long, MAX_LINE_BYTES and one more."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES + 1)


async def run_lines(
    lines: Iterable[bytes], app: ASGIApp, *, num_at_once: int
) -> AsyncGenerator[BatchResult, None]:
    """Answer all lines that hold something, `num_at_once` at a time, in the order they are done.

    Closing it aborts those under way.
    """
    waiting = ((number, data) for number, data in enumerate(lines, 1) if data.strip())
    seen: set[str] = set()
    running: dict[asyncio.Task[BatchResult], int] = {}  # bytes of each
    try:
        while True:
            while _has_space(running, num_at_once) and (entry := next(waiting, None)) is not None:
                number, data = entry
                running[asyncio.create_task(_answer(number, data, seen, app))] = len(data)
            if not running:
                return
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                del running[task]
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _has_space(running: Mapping[Any, int], num_at_once: int) -> bool:
    return len(running) < num_at_once and sum(running.values()) < MAX_HELD_BYTES


async def _answer(number: int, data: bytes, seen: set[str], app: ASGIApp) -> BatchResult:
    """The result of one line; errors are part of it."""
    result = BatchResult(id=f"batch_req_{uuid.uuid4().hex}", custom_id=None)
    data = data.removeprefix(BOM_UTF8)  # of a file, or of one joined to others
    try:
        if len(data) > MAX_LINE_BYTES:
            raise ValueError(f"it is longer than {MAX_LINE_BYTES >> 20} MiB; leave it out")
        line = _decoder.decode(data)
        _check(line, seen)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        result.custom_id = _custom_id(data)
        result.error = BatchError("invalid_line", f"line {number}: {_problem(error, data)}")
        result.response = _refused(result.error)
        return result
    result.custom_id = line.custom_id
    seen.add(line.custom_id)
    result.response = await _post(app, line.url, bytes(line.body))
    return result


def _custom_id(data: bytes) -> str | None:
    """The custom_id of a line that is not a request, if it can be read."""
    try:
        return _names.decode(data).custom_id
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _refused(error: BatchError) -> BatchReply:
    """The reply to a line that no endpoint gets, for readers that look at responses alone."""
    request_id = new_id()
    reply = describe(InvalidRequestError(error.message, code=error.code), request_id)
    return BatchReply(reply.status, request_id, msgspec.Raw(reply.body("")))


def _problem(error: Exception, data: bytes) -> str:
    """The problem of a line, with its fix."""
    if isinstance(error, msgspec.ValidationError):
        if str(error).startswith("Expected `object`"):
            return "it must be a JSON object; correct it"
        if unknown := _UNKNOWN.fullmatch(str(error)):
            return f"{unknown[1][:64]}: not supported; leave it out"
        return str(wrong_value(str(error), "", _decoder, data))
    if isinstance(error, RecursionError):
        return "it is nested too deeply; flatten it"
    if isinstance(error, msgspec.DecodeError | UnicodeDecodeError):
        return f"it is not JSON ({error}); correct it"
    return str(error)


def _check(line: BatchLine, seen: set[str]) -> None:
    """Raise ValueError for a line that cannot be answered."""
    if line.method != "POST":
        raise ValueError(f"method: must be POST, not {line.method[:16]!r}")
    if line.url.partition("?")[0] not in URLS:
        raise ValueError(f"url: must be {' or '.join(URLS)}, not {line.url[:64]!r}")
    if not 1 <= len(line.custom_id) <= MAX_ID_CHARS:
        raise ValueError(f"custom_id: must have 1 to {MAX_ID_CHARS} characters")
    if line.custom_id in seen:
        raise ValueError("custom_id: another line has the same; each must be unique")
    fields = _fields(line.body)
    for name, values, why in NOT_HERE:
        if fields.get(name) in values:
            raise ValueError(f"body.{name}: {why}")


def _fields(body: msgspec.Raw) -> dict[str, Any]:
    """A body's fields; none where it is not an object, of which the endpoint tells."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:  # or has a number out of range
        return {}


async def _post(app: ASGIApp, url: str, body: bytes) -> BatchReply:
    """Call the application as an HTTP server would."""
    status, headers, parts = 0, dict[bytes, bytes](), list[bytes]()
    unsent = [body]

    async def receive() -> Message:
        if unsent:
            return {"type": "http.request", "body": unsent.pop(), "more_body": False}
        await asyncio.Event().wait()  # this client never disconnects
        raise AssertionError("unreachable")

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], dict(message["headers"])
        else:
            parts.append(message.get("body", b""))

    await app(_scope(url), receive, send)
    request_id = headers.get(b"x-request-id", b"").decode()
    return BatchReply(status, request_id, msgspec.Raw(b"".join(parts)))


def _scope(url: str) -> dict[str, Any]:
    path, _, query = url.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
    }
