"""A server that speaks raw bytes, so that tests decide how an answer is cut and where it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Seen:
    """What the server saw."""

    heads: list[str] = field(default_factory=list)  # in lower case
    bodies: list[Any] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0


@asynccontextmanager
async def scripted_server(script: Script, seen: Seen | None = None) -> AsyncIterator[str]:
    """Answer every request with the script; yields the server's address."""
    seen = Seen() if seen is None else seen

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.num_open += 1
        seen.most_open = max(seen.most_open, seen.num_open)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            seen.heads.append(head)
            length = int(head.partition("content-length: ")[2].partition("\r")[0])
            seen.bodies.append(json.loads(await reader.readexactly(length)))
            await script(writer)
        except asyncio.IncompleteReadError:
            pass  # it only looked whether somebody listens
        finally:
            seen.num_open -= 1
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


def chat_events(text: str) -> list[bytes]:
    """The events of a chat answer of one character per token, with a prompt of 10 tokens."""
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": len(text),
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": char} for char in text]
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    chunks.append({"choices": [], "usage": usage})
    return [*(event(chunk) for chunk in chunks), b"data: [DONE]\n\n"]


def event(content: Any) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def chunked(parts: Sequence[bytes], *, delay: float = 0.0, status: str = "200 OK") -> Script:
    """A script: the parts as HTTP chunks, `delay` seconds apart."""

    async def script(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for part in parts:
            await asyncio.sleep(delay)
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    return script


def raw(data: bytes) -> Script:
    """A script: these bytes, then the end of the connection."""

    async def script(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return script
