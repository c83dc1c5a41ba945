"""Load over HTTP/1.1 from a process of its own: kept-alive connections, and little work for each.

Nothing but the standard library is needed; uvloop is taken where it is there.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import time
from collections import deque
from multiprocessing.connection import Connection as Pipe
from typing import Any, cast
from urllib.parse import urlsplit

from workloads.figures import RequestResult
from workloads.plan import Level

now = time.perf_counter  # one clock for all processes of a Linux machine


def main(pipe: Pipe, url: str) -> None:
    """Run each level that is received: prepare, report ready, begin at the given time."""
    while (level := pipe.recv()) is not None:
        wanted = list(zip(level.prompts(), level.output_lens(), strict=True))
        bodies = [(request(url, level, prompt, length), length) for prompt, length in wanted]
        pipe.send(None)
        begin = pipe.recv()
        before, started = time.process_time(), now()
        results = _run(Load(url, level, bodies, begin).run())
        cpu = (time.process_time() - before) / max(now() - started, 1e-9)
        pipe.send((results, cpu))


def _run(work: Any) -> Any:
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.run(work)
    import uvloop

    return uvloop.run(work)


def request(url: str, level: Level, prompt: list[int], output_len: int) -> bytes:
    """A complete HTTP request for a completion of exactly output_len tokens."""
    where, workload = urlsplit(url), level.workload
    fields: dict[str, Any] = {
        "model": level.model,
        "prompt": prompt,
        "max_tokens": output_len,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": workload.stream,
    }
    if workload.stream:
        fields["stream_options"] = {"include_usage": True}
    body = json.dumps(fields, separators=(",", ":")).encode()
    head = (
        f"POST {where.path}/v1/completions HTTP/1.1\r\nHost: {where.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Load:
    """One process's share of a level."""

    def __init__(
        self, url: str, level: Level, bodies: list[tuple[bytes, int]], begin: float
    ) -> None:
        where = urlsplit(url)
        self._host, self._port = where.hostname or "127.0.0.1", where.port or 80
        self._level, self._bodies, self._begin = level, deque(bodies), begin
        self._idle: list[Connection] = []
        self._results: list[RequestResult] = []

    async def run(self) -> list[RequestResult]:
        """Return the requests that were started."""
        await asyncio.sleep(self._begin - now())
        if self._level.workload.is_open:
            tasks = await self._arrive()
        else:
            tasks = [asyncio.create_task(self._lane()) for _ in range(int(self._level.level))]
        rest = self._begin + self._level.cut_after - now()
        _, unfinished = await asyncio.wait(tasks, timeout=max(0.0, rest))
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._idle:
            connection.close()
        return self._results

    async def _arrive(self) -> list[asyncio.Task[None]]:
        tasks = []
        for request, offset in zip(self._bodies, self._level.offsets, strict=True):
            due = self._begin + offset
            if (wait := due - now()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(self._ask(*request, due)))
        return tasks

    async def _lane(self) -> None:
        while self._bodies and now() < self._begin + self._level.stop_after:
            await self._ask(*self._bodies.popleft(), now())

    async def _ask(self, body: bytes, output_len: int, due: float) -> None:
        result = RequestResult(due, sent=now())
        self._results.append(result)
        connection: Connection | None = None
        try:
            connection = await self._connection()
            await connection.ask(body, result)
        except asyncio.CancelledError:
            result.error = "unfinished"
            raise
        except (OSError, ValueError) as problem:
            result.error = f"{type(problem).__name__}: {problem}"[:200]
        finally:
            result.end(now(), output_len)
            if connection is not None and result.error is None:
                self._idle.append(connection)
            elif connection is not None:
                connection.close()

    async def _connection(self) -> Connection:
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                return connection
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self._host, self._port)
        return connection


class Connection(asyncio.Protocol):
    """A kept-alive connection with at most one request on it."""

    def __init__(self) -> None:
        self.is_open = True
        self._unread = bytearray()
        self._answer: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def close(self) -> None:
        self._transport.abort()

    async def ask(self, body: bytes, result: RequestResult) -> None:
        """Send a request and take its answer. Raises OSError if the connection breaks."""
        self._result, self._reader = result, None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(body)
        await self._answer

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(OSError(f"the connection broke ({exc})"))

    def data_received(self, data: bytes) -> None:
        moment = now()
        self._unread += data
        try:
            over = self._read(moment)
        except (ValueError, KeyError, IndexError) as problem:
            self._result.error, over = f"no sound answer: {problem}"[:200], True
        if over and self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def _read(self, moment: float) -> bool:
        """Whether the answer is complete."""
        if self._reader is None:
            head, found, rest = bytes(self._unread).partition(b"\r\n\r\n")
            if not found:
                return False
            self._reader = Reader(head.lower(), self._result)
            self.is_open = self._reader.keeps_connection
            self._unread = bytearray(rest)
        return self._reader.read(self._unread, moment)


class Reader:
    """One answer's body: framing, then events or one JSON object."""

    def __init__(self, head: bytes, result: RequestResult) -> None:
        self._result = result
        self._status = int(head.split(b" ", 2)[1])
        self._is_stream = b"text/event-stream" in head
        self._is_chunked = b"transfer-encoding: chunked" in head
        self._length = 0
        if not self._is_chunked:
            self._length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        self._body = b""
        self._is_ended = False
        self.keeps_connection = b"connection: close" not in head

    def read(self, unread: bytearray, moment: float) -> bool:
        """Take what has come out of `unread`; returns whether the answer is complete."""
        over = self._take_chunks(unread) if self._is_chunked else self._take_plain(unread)
        if self._is_stream and self._status == 200:
            *events, self._body = self._body.split(b"\n\n")
            for event in events:
                self._take_event(event, moment)
        if over:
            self._close(moment)
        return over

    def _take_plain(self, unread: bytearray) -> bool:
        self._body += unread
        unread.clear()
        return len(self._body) >= self._length

    def _take_chunks(self, unread: bytearray) -> bool:
        start, over = 0, False
        while (line := unread.find(b"\r\n", start)) >= 0:
            size = int(unread[start:line], 16)
            if len(unread) < line + 2 + size + 2:
                break
            self._body += unread[line + 2 : line + 2 + size]
            start = line + 2 + size + 2
            if size == 0:
                over = True
                break
        del unread[:start]
        return over

    def _take_event(self, event: bytes, moment: float) -> None:
        if not event.startswith(b"data:"):
            return
        if event.endswith(b"[DONE]"):
            self._is_ended = True
            return
        if b'"error"' in event[:40]:
            self._result.error = event[:200].decode(errors="replace")
            return
        if b'"completion_tokens"' in event:
            chunk = json.loads(event[5:])
            if chunk.get("usage"):
                self._take_usage(chunk["usage"])
            if not chunk["choices"]:
                return
        self._result.take_event(moment)

    def _take_usage(self, usage: dict[str, int]) -> None:
        self._result.tokens = usage["completion_tokens"]
        self._result.prompt_tokens = usage["prompt_tokens"]

    def _close(self, moment: float) -> None:
        if self._status != 200:
            said = self._body[:200].decode(errors="replace")
            self._result.error = f"HTTP {self._status} {said}"
        elif not self._is_stream:
            self._take_usage(json.loads(self._body)["usage"])
            self._result.take_event(moment)
        elif not self._is_ended and self._result.error is None:
            self._result.error = "the stream ended without [DONE]"
