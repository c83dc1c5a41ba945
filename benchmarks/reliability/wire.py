"""A small HTTP client on bare sockets: kept-alive connections, streams, times of each event.

Bare, because the runs have to send what no client library would, and to cost the machine little.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

MAX_LINE = 4 << 20
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Reply:
    """A whole answer. status: 0 if the connection broke before it was there."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Answer:
    """A streamed answer. gaps: seconds between its events; is_whole: it ended with [DONE]."""

    status: int = 0
    text: str = ""
    reason: str | None = None
    num_tokens: int = 0
    num_events: int = 0
    gaps: list[float] = field(default_factory=list)
    is_whole: bool = False
    error: str | None = None

    @property
    def content(self) -> tuple[str, str | None, int]:
        """The part of an answer that may not depend on anybody else."""
        return self.text, self.reason, self.num_tokens


class Connection:
    """One connection; use it as a context. Raises OSError or EOFError when it breaks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(
        cls, url: str, *, receive_bytes: int | None = None, source: str | None = None
    ) -> Connection:
        """Connect to http://HOST:PORT.

        receive_bytes: what the kernel may hold for us. source: our address, if it matters.
        """
        host, port = url.removeprefix("http://").split(":")
        sock = socket.socket()
        if source is not None:
            sock.bind((source, 0))
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        limit = MAX_LINE if receive_bytes is None else receive_bytes
        return cls(*await asyncio.open_connection(sock=sock, limit=limit))

    @classmethod
    async def open_unix(cls, path: str) -> Connection:
        """Connect to a Unix socket."""
        return cls(*await asyncio.open_unix_connection(path, limit=MAX_LINE))

    @property
    def port(self) -> int:
        """Our end's."""
        return int(self._writer.get_extra_info("sockname")[1])

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self, *, reset: bool = False) -> None:
        """Leave, politely or as a client that crashes."""
        sock = self._writer.get_extra_info("socket")
        if reset and sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        self._writer.transport.abort() if reset else self._writer.close()

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)

    def send(self, path: str, body: object = None) -> None:
        """Send a request: a POST if it has a body (bytes as they are, anything else as JSON)."""
        if body is None:
            self.write(f"GET {path} HTTP/1.1\r\nHost: quire\r\n\r\n".encode())
        else:
            self.write(post_bytes(path, body))

    async def head(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of the answer."""
        first = await self._line()
        headers = {}
        while (line := await self._line()) != b"":
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return int(first.split()[1]), headers

    async def body(self, headers: dict[str, str]) -> AsyncIterator[bytes]:
        """The body's pieces as they come."""
        if headers.get("transfer-encoding") != "chunked":
            yield await self._reader.readexactly(int(headers["content-length"]))
            return
        while size := int(await self._line(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._line()

    async def ask(self, path: str, body: object = None) -> Reply:
        """One request and its whole answer."""
        self.send(path, body)
        status, headers = await self.head()
        return Reply(status, headers, b"".join([part async for part in self.body(headers)]))

    async def stream(self, path: str, body: object, answer: Answer) -> None:
        """One streamed completion; `answer` is filled as it comes."""
        self.send(path, body)
        answer.status, headers = await self.head()
        if answer.status != 200:
            answer.error = b"".join([part async for part in self.body(headers)]).decode()
            return
        rest, last = b"", 0.0
        async for part in self.body(headers):
            *events, rest = (rest + part).split(b"\n\n")
            for event in events:
                _take(event.removeprefix(b"data: "), answer)
            if events:
                now = time.perf_counter()
                if last:
                    answer.gaps.append(now - last)
                last = now

    async def _line(self) -> bytes:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the server hung up")
        return line.strip()


def post_bytes(path: str, body: object) -> bytes:
    """A POST, ready for the wire."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: quire\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def ask(
    url: str, path: str, body: object = None, *, timeout: float = 60.0, source: str | None = None
) -> Reply:
    """One request on a connection of its own; a broken connection is status 0."""
    try:
        opened = Connection.open(url, source=source)
        async with asyncio.timeout(timeout), await opened as connection:
            return await connection.ask(path, body)
    except (OSError, EOFError) as error:  # TimeoutError is an OSError
        return Reply(0, {}, repr(error).encode())


def _take(event: bytes, answer: Answer) -> None:
    if event == b"[DONE]":
        answer.is_whole = True
        return
    chunk: dict[str, Any] = json.loads(event)
    if "error" in chunk:
        answer.error = chunk["error"]["message"]
        return
    if chunk.get("usage"):
        answer.num_tokens = chunk["usage"]["completion_tokens"]
    for choice in chunk["choices"]:
        answer.num_events += 1
        answer.text += choice["text"]
        answer.reason = choice["finish_reason"] or answer.reason
