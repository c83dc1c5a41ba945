"""What the server costs around a model: HTTP, tokens, the hop to the engine, scheduling, SSE.

Runs `quire serve --load-format null` and keeps it busy over kept-alive connections from another
process. Besides the wall clock, which other work on the machine disturbs, it reports what one core
can do: work done per second of processor time that the API process, and the engine, have used.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, cast

import psutil
import record
import uvloop

ANSWER_TOKENS = 15
STREAM_TOKENS = 200
PROMPT = "rewrite this query: red runing shoes for wimen"
SERVE = [sys.executable, "-m", "quire", "serve", "--port", "0", "--load-format", "null"]


@dataclass
class Count:
    """What one kind of load has brought."""

    requests: int = 0
    events: int = 0
    errors: int = 0


def request_bytes(host: str, *, stream: bool) -> bytes:
    body = {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": STREAM_TOKENS if stream else ANSWER_TOKENS,
        "stream": stream,
    }
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


class Connection(asyncio.Protocol):
    """Sends the same request again as soon as it is answered; reads no more than it must."""

    def __init__(self, request: bytes, count: Count, *, stream: bool) -> None:
        self._request, self._count, self._stream = request, count, stream
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._stream:
            self._count.events += data.count(b"data: ")
            tail = (self._unread + data)[-5:]
            self._unread = tail
            if tail != b"0\r\n\r\n":
                return
        else:
            self._unread += data
            head, found, body = self._unread.partition(b"\r\n\r\n")
            if not found or len(body) < int(head.lower().split(b"content-length: ")[1].split()[0]):
                return
            self._count.errors += not head.startswith(b"HTTP/1.1 200")
        self._unread = b""
        self._count.requests += 1
        self._transport.write(self._request)


async def load(url: str, connections: int, seconds: float, *, stream: bool) -> Count:
    """Keep the server busy for some seconds."""
    host, port = url.removeprefix("http://").split(":")
    count, loop = Count(), asyncio.get_running_loop()
    data = request_bytes(host, stream=stream)
    made = [
        await loop.create_connection(lambda: Connection(data, count, stream=stream), host, port)
        for _ in range(connections)
    ]
    await asyncio.sleep(seconds)
    for transport, _ in made:
        transport.close()
    return count


def seconds_used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def measure(
    url: str, api: psutil.Process, engine: psutil.Process, args: argparse.Namespace, *, stream: bool
) -> dict[str, Any]:
    uvloop.run(load(url, args.connections, 1.0, stream=stream))  # warm up
    begin = time.monotonic(), seconds_used(api), seconds_used(engine)
    count = uvloop.run(load(url, args.connections, args.seconds, stream=stream))
    wall, api_used, engine_used = (
        end - start
        for end, start in zip(
            (time.monotonic(), seconds_used(api), seconds_used(engine)), begin, strict=True
        )
    )
    tokens = count.requests * (STREAM_TOKENS if stream else ANSWER_TOKENS)
    return {
        "stream": stream,
        "connections": args.connections,
        "errors": count.errors,
        "requests_per_second": round(count.requests / wall),
        "tokens_per_second": round(tokens / wall),
        "tokens_per_event": round(tokens / count.events, 2) if count.events else None,
        "api_share_of_a_core": round(api_used / wall, 2),
        "engine_share_of_a_core": round(engine_used / wall, 2),
        "requests_per_api_core_second": round(count.requests / api_used),
        "tokens_per_api_core_second": round(tokens / api_used),
        "requests_per_engine_core_second": round(count.requests / engine_used),
        "tokens_per_engine_core_second": round(tokens / engine_used),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--save", action="store_true", help="write results/server_overhead.json")
    args = parser.parse_args()
    server = subprocess.Popen(SERVE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    found = re.search(r"ready at (http://\S+)", server.stdout.readline())
    assert found is not None
    children = psutil.Process(server.pid).children()
    (api,) = (child for child in children if "quire.server.worker" in child.cmdline())
    (engine,) = (child for child in children if "quire.engine.process" in child.cmdline())
    try:
        rows = [measure(found[1], api, engine, args, stream=stream) for stream in (False, True)]
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
    print(json.dumps(rows, indent=1))
    if args.save:
        record.save("server_overhead", {"rows": rows})


if __name__ == "__main__":
    main()
