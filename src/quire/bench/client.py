"""Streamed requests over plain sockets, with the time of each token. Knows HTTP and SSE only.

A connection serves one request, so that nothing but asyncio is needed and no pool is measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex
from urllib.parse import urlsplit

import msgspec

MAX_LINE = 1 << 20  # bytes of one line, headers and events alike


@dataclass(slots=True)
class RequestResult:
    """A request and what came back. Times in seconds of one monotonic clock.

    first, last: when the first and the last token event came. gaps: between token events; those
    that come in one read share the time since the read before equally, and those of the first read
    have none. together: how many came in the last read. error: why it failed, in words; None for an
    answer that is whole.
    """

    sent: float
    first: float | None = None
    last: float | None = None
    gaps: list[float] = field(default_factory=list)
    together: int = 0
    text: str = ""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        """Time to first token, in seconds."""
        return None if self.first is None else self.first - self.sent

    def take_token_event(self, text: str, moment: float) -> None:
        """Note a part of the answer. moment: of the read that it came in."""
        self.text += text
        if self.first is None or self.last is None:
            self.first = self.last = moment
        elif moment > self.last:
            self.gaps.append(moment - self.last)
            self.last, self.together = moment, 1
        elif self.together:
            shared = sum(self.gaps[-self.together :]) / (self.together + 1)
            self.gaps[-self.together :] = [shared] * (self.together + 1)
            self.together += 1


class _Part(msgspec.Struct):
    role: str | None = None
    content: str | None = None


class _Choice(msgspec.Struct):
    """Of a chat its delta, of a completion its text."""

    delta: _Part = msgspec.field(default_factory=_Part)
    text: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    """An event, by the fields that are read here; a server may add others."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Event)


class HttpFailureError(Exception):
    """The server answered, but not with a stream."""


async def stream_request(
    url: str, body: bytes, *, api_key: str | None = None, timeout: float = 120.0
) -> RequestResult:
    """POST a body that asks for a stream with usage; a failure is a result, never raised.

    url: the whole endpoint, such as http://127.0.0.1:8000/v1/chat/completions.
    """
    result = RequestResult(time.perf_counter())
    try:
        async with asyncio.timeout(timeout):
            await _send_request(url, body, api_key, result)
    except TimeoutError:
        result.error = f"no answer within {timeout:g} s"
    except (OSError, EOFError, ValueError, HttpFailureError, msgspec.DecodeError) as error:
        result.error = str(error) or type(error).__name__
    return result


async def closed_loop(
    url: str,
    bodies: Sequence[bytes],
    concurrency: int,
    on_done: Callable[[RequestResult], None] = lambda _: None,
    api_key: str | None = None,
) -> list[RequestResult]:
    """Send every body, each of `concurrency` lanes the next one as soon as it is free.

    Results are in the order of the bodies.
    """
    waiting = iter(enumerate(bodies))
    done: dict[int, RequestResult] = {}

    async def lane() -> None:
        for index, body in waiting:
            done[index] = await stream_request(url, body, api_key=api_key)
            on_done(done[index])

    await asyncio.gather(*(lane() for _ in range(min(concurrency, len(bodies)))))
    return [done[index] for index in range(len(bodies))]


async def _send_request(url: str, body: bytes, api_key: str | None, result: RequestResult) -> None:
    where = urlsplit(url)
    port = where.port or 80
    reader, writer = await _connect(where.hostname or "localhost", port)
    try:
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        head = (
            f"POST {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n{key}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        status, headers = await _read_head(reader)
        chunks = _read_chunks(reader, headers)
        if status != 200:
            text = b"".join([chunk async for chunk in chunks])
            raise HttpFailureError(f"HTTP {status}: {text[:300].decode(errors='replace')}")
        await _read_events(chunks, reader, result)
    finally:
        writer.close()


class _TimedReader(asyncio.StreamReader):
    """A reader that knows when its last bytes came, however late they are looked at."""

    moment = 0.0

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        self.moment = time.perf_counter()
        super().feed_data(data)


async def _connect(host: str, port: int) -> tuple[_TimedReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = _TimedReader(limit=MAX_LINE, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.create_connection(lambda: protocol, host, port)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first = (await reader.readline()).split()
    if len(first) < 2 or not first[0].startswith(b"HTTP/"):
        raise HttpFailureError("the server does not speak HTTP")
    headers = {}
    while (line := (await reader.readline()).strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(first[1]), headers


async def _read_chunks(
    reader: asyncio.StreamReader, headers: dict[str, str]
) -> AsyncIterator[bytes]:
    """The body as it arrives, whichever of HTTP's three framings it has."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int(await reader.readline(), 16):
            yield (await reader.readexactly(size + 2))[:-2]
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while data := await reader.read(65536):
            yield data


async def _read_events(
    chunks: AsyncIterator[bytes], reader: _TimedReader, result: RequestResult
) -> None:
    """Take every server-sent event; the last one must be [DONE]."""
    rest, done = b"", False
    async for chunk in chunks:
        *events, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            if not event.startswith(b"data:"):
                continue
            if (data := event[5:].strip()) == b"[DONE]":
                done = True
            else:
                _take(_decoder.decode(data), reader.moment, result)
    if not done and result.error is None:
        result.error = "the stream ended without [DONE]"


def _take(event: _Event, moment: float, result: RequestResult) -> None:
    if event.error is not None:
        message = event.error.get("message") if isinstance(event.error, dict) else None
        result.error = str(message or event.error)
    for choice in event.choices:
        text = choice.delta.content if choice.text is None else choice.text
        # the role may come alone or with no text, before the first token, or in each chunk
        if text or (text is not None and choice.delta.role is None):
            result.take_token_event(text, moment)
    if event.usage is not None:
        result.num_prompt_tokens = event.usage.prompt_tokens
        result.num_tokens = event.usage.completion_tokens
        if (details := event.usage.prompt_tokens_details) is not None:
            result.num_cached_tokens = details.cached_tokens or 0
