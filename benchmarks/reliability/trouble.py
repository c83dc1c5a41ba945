"""The harm itself: one function per fault, run in a process of its own beside the bystanders.

Each returns what it found, with `ok` telling whether the server did to the troublemakers what it
promises. They run at a low priority, since troublemakers are on other machines as a rule.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import psutil

from reliability.bystanders import PATH, completion
from reliability.model import POISON
from reliability.served import Server, paused, until
from reliability.wire import Answer, Connection, Reply, ask, post_bytes

Findings = dict[str, Any]

NUM_LEAVERS = 400
NUM_SLOW = 16
NUM_IDLE = 2000
NUM_LORISES = 200
NUM_BAD_BODIES = 2000
NUM_LOGGED = 2000
BUSY_SECONDS = 6.0
SMALL_BUFFER = 4096
OTHER = "127.0.0.2"  # the address of another caller than the bystanders


async def engine_killed(server: Server) -> Findings:
    """kill -9 of the engine process."""
    engine = server.engine
    assert engine is not None
    engine.kill()
    seconds = await until(lambda: server.has_replaced(engine))
    return {"ok": True, "recovery_seconds": round(seconds, 2)}


async def engine_hung(server: Server) -> Findings:
    """SIGSTOP of the engine process."""
    engine = server.engine
    assert engine is not None
    engine.suspend()
    seconds = await until(lambda: server.has_replaced(engine))
    return {"ok": not psutil.pid_exists(engine.pid), "recovery_seconds": round(seconds, 2)}


async def api_killed(server: Server) -> Findings:
    """kill -9 of the second API process, in which four streams run."""
    first, doomed = server.workers
    with paused([first]):
        connections = [await Connection.open(server.url) for _ in range(4)]
        answers = [Answer() for _ in connections]
        streams = [
            asyncio.create_task(connection.stream(PATH, completion("doomed", 2000), answer))
            for connection, answer in zip(connections, answers, strict=True)
        ]
        await until(lambda: all(answer.num_events > 2 for answer in answers))
    doomed.kill()
    ends = await asyncio.gather(*streams, return_exceptions=True)
    seconds = await until(lambda: _is_served_by_another(server, {first.pid, doomed.pid}))
    broken = sum(isinstance(end, OSError | EOFError) for end in ends)
    whole = sum(answer.is_whole for answer in answers)
    return {
        "ok": broken == 4 and not whole,
        "broken": broken,
        "recovery_seconds": round(seconds, 2),
    }


async def api_hung(server: Server) -> Findings:
    """The second API process is stopped; the supervisor has to notice it by its heartbeat."""
    first, doomed = server.workers
    doomed.suspend()
    seconds = await until(lambda: _is_served_by_another(server, {first.pid, doomed.pid}))
    return {"ok": not psutil.pid_exists(doomed.pid), "recovery_seconds": round(seconds, 2)}


async def _is_served_by_another(server: Server, old: set[int]) -> bool:
    """Whether a new API process has accepted one of some connections."""
    new = [worker for worker in server.workers if worker.pid not in old]
    connections = [await Connection.open(server.url) for _ in range(8)]
    try:
        await asyncio.gather(*(connection.ask("/ready") for connection in connections))
        return any(c.raddr for process in new for c in process.net_connections("tcp4"))
    finally:
        for connection in connections:
            connection.close()


async def storm(server: Server) -> Findings:
    """Clients that leave in the middle of a stream, in the queue, or before a byte has come."""
    rng = random.Random(7)

    async def client(number: int) -> None:
        connection = await Connection.open(server.url)
        answer = Answer()
        body = completion(f"leaver {number}", 200)
        stream = asyncio.create_task(connection.stream(PATH, body, answer))
        await asyncio.wait({stream}, timeout=rng.random() * 1.0)
        connection.close(reset=rng.random() < 0.5)
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)

    for start in range(0, NUM_LEAVERS, 100):
        await asyncio.gather(*(client(start + i) for i in range(100)))
    return {"ok": True, "clients": NUM_LEAVERS}


async def slow_readers(server: Server) -> Findings:
    """Clients that ask for much and read nothing."""
    before = server.workers[0].memory_info().rss
    connections = [
        await Connection.open(server.url, receive_bytes=SMALL_BUFFER) for _ in range(NUM_SLOW)
    ]
    for number, connection in enumerate(connections):
        connection.send(PATH, completion(f"slow {number}", 250, logprobs=5))
    ports = {connection.port for connection in connections}
    await until(lambda: server.serves(ports) == NUM_SLOW)
    seconds = await until(lambda: not server.serves(ports))
    grown = (server.workers[0].memory_info().rss - before) / 2**20
    for connection in connections:
        connection.close(reset=True)
    return {
        "ok": True,
        "clients": NUM_SLOW,
        "all_cut_after_seconds": round(seconds, 1),
        "grown_mib": round(grown, 1),
    }


async def nan_logits(server: Server) -> Findings:
    """A request whose logits are NaN, before, after and among good ones, every now and then.

    Any prompt of that length makes the step longer that computes it.
    """
    statuses: Counter[int] = Counter()
    prompt = [POISON, *range(100, 180)]
    before = await server.figures()
    for _ in range(10):
        body = completion(prompt, 5, stream=False, stream_options=None)
        statuses[(await ask(server.url, PATH, body)).status] += 1
        await asyncio.sleep(BUSY_SECONDS / 10)
    after = await server.figures()
    hits = _growth("vllm:prefix_cache_hits_total", before, after)
    corrupted = _growth("vllm:corrupted_requests_total", before, after)
    return {
        "ok": statuses == {500: 10} and corrupted == 10 and not hits,
        "statuses": dict(statuses),
        "prefix_hits": hits,
    }


async def kv_exhaustion(server: Server) -> Findings:
    """Long answers that do not fit together: some are preempted, all are completed."""
    before = await server.figures()

    async def client(number: int) -> Answer:
        answer = Answer()
        async with await Connection.open(server.url) as connection:
            await connection.stream(PATH, completion(f"long answer {number}", 500), answer)
        return answer

    answers = await asyncio.gather(*(client(number) for number in range(8)))
    after = await server.figures()
    broken = [a.error or a.content for a in answers if not a.is_whole or a.num_tokens != 500]
    preempted = _growth("vllm:num_preemptions_total", before, after)
    return {"ok": not broken and preempted > 0, "incomplete": broken, "preemptions": preempted}


async def malformed(server: Server) -> Findings:
    """A flood of requests that are wrong in every way that a client thinks of."""
    statuses: Counter[int] = Counter()
    bodies = [post_bytes(PATH, body) for body in bad_bodies()] + list(bad_requests())

    async def client(number: int) -> None:
        for index in range(number, NUM_BAD_BODIES, 16):
            async with await Connection.open(server.url) as connection:
                connection.write(bodies[index % len(bodies)])
                statuses[(await connection.head())[0]] += 1

    await asyncio.gather(*(client(number) for number in range(16)))
    return {
        "ok": all(400 <= status < 500 for status in statuses),
        "requests": NUM_BAD_BODIES,
        "statuses": dict(sorted(statuses.items())),
    }


def bad_bodies() -> list[bytes]:
    """Bodies that are no completion."""
    return [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "a"} x',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud83d"}',
        b'{"prompt": NaN}',
        b'{"prompt": "a", "max_tokens": 1e999}',
        b'{"prompt": "a", "max_tokens": -5}',
        b'{"prompt": "a", "max_tokens": true}',
        b'{"prompt": "a", "n": 1000000}',
        b'{"prompt": "a", "temperature": "hot"}',
        b'{"prompt": "a", "no_such_field": 1}',
        b'{"prompt": [1, -1]}',
        b'{"prompt": [99999999]}',
        b'{"prompt": ' + b"9" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "' + b"a " * 100_000 + b'"}',
        b'{"prompt": "a", "guided_regex": "(a+)+\\\\1"}',
        b'{"prompt": "a", "guided_json": {"$ref": "#/nowhere"}}',
    ]


def bad_requests() -> list[bytes]:
    """Bytes that are no HTTP, or not the HTTP that the path speaks."""
    return [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n",
        b"PUT /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        b"GET /nothing HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    ]


async def idle(server: Server) -> Findings:
    """Connections on which nothing is ever said."""
    before = server.workers[0].memory_info().rss
    connections = [await Connection.open(server.url) for _ in range(NUM_IDLE)]
    await asyncio.sleep(4.0)
    held = server.serves({connection.port for connection in connections})
    grown = (server.workers[0].memory_info().rss - before) / 2**20
    for connection in connections:
        connection.close()
    return {"ok": held == NUM_IDLE, "connections": NUM_IDLE, "grown_mib": round(grown, 1)}


async def slow_loris(server: Server) -> Findings:
    """Clients that send their headers a byte a second."""
    begin = time.monotonic()
    seconds: list[float] = []
    statuses: Counter[int] = Counter()

    async def client() -> None:
        async with await Connection.open(server.url) as connection:
            connection.write(b"POST /v1/completions HTTP/1.1\r\nX-Slow: ")
            head = asyncio.create_task(connection.head())
            while not (await asyncio.wait({head}, timeout=1.0))[0]:
                connection.write(b"a")
            statuses[head.result()[0]] += 1
            seconds.append(time.monotonic() - begin)

    await asyncio.gather(*(client() for _ in range(NUM_LORISES)))
    return {
        "ok": statuses == {408: NUM_LORISES},
        "clients": NUM_LORISES,
        "statuses": dict(statuses),
        "closed_after_seconds": round(max(seconds), 1),
    }


async def unread_log(server: Server) -> Findings:
    """Requests enough to fill the pipe of a log that nobody reads, many times."""
    statuses: Counter[int] = Counter()

    async def client() -> None:
        async with await Connection.open(server.url) as connection:
            for _ in range(NUM_LOGGED // 8):
                statuses[(await connection.ask("/v1/completions", {"prompt": 5})).status] += 1

    await asyncio.gather(*(client() for _ in range(8)))
    return {"ok": statuses == {400: NUM_LOGGED}, "statuses": dict(statuses)}


async def full_folder(server: Server) -> Findings:
    """The folder for temporary files fills up while requests come, and stays full."""
    old = server.processes()
    with open(f"{server.temporary}/ballast", "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    statuses: Counter[int] = Counter()
    end = time.monotonic() + BUSY_SECONDS  # metrics are written twice a second
    while time.monotonic() < end:
        body = completion("hello", 2, stream=False, stream_options=None)
        statuses[(await ask(server.url, PATH, body)).status] += 1
    left = shutil.disk_usage(server.temporary).free
    return {
        "ok": statuses.keys() == {200} and server.processes() == old and left < 4096,
        "statuses": dict(statuses),
        "bytes_left": left,
    }


async def costly_grammars(server: Server) -> Findings:
    """Eight clients with a new schema each time that takes seconds; another with quick ones."""
    end = time.monotonic() + BUSY_SECONDS
    costly: Counter[int] = Counter()
    quick: Counter[int] = Counter()
    waits: list[float] = []

    async def client(number: int) -> None:
        count = 0
        while time.monotonic() < end:
            count += 1
            name = f"{number}x{count}"
            parts = [{"type": "string", "pattern": f"({name}.*{i}.{{99}})+"} for i in range(60)]
            costly[(await _constrained(server, {"json": {"allOf": parts}})).status] += 1

    async def newcomer() -> None:
        while time.monotonic() < end:
            begin = time.monotonic()
            reply = await _constrained(server, {"regex": f"a{len(waits)}"})
            quick[reply.status] += 1
            waits.append(time.monotonic() - begin)

    await asyncio.gather(newcomer(), *(client(number) for number in range(8)))
    return {
        "ok": quick.keys() == {200} and costly.keys() <= {400, 503},
        "costly": dict(costly),
        "quick": dict(quick),
        "longest_wait_seconds": round(max(waits), 2),
    }


async def costly_masks(server: Server) -> Findings:
    """One caller with four ambiguous grammars at a time, and with a usual one that is known."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    end = time.monotonic() + BUSY_SECONDS
    costly: Counter[int] = Counter()
    usual: Counter[int] = Counter()

    async def client(number: int) -> None:
        count = 0
        while time.monotonic() < end:
            count += 1
            grammar = f"root ::= a\na ::= a a | b\nb ::= [a-z {number}{count}]"
            costly[(await _constrained(server, {"grammar": grammar}, 60, OTHER)).status] += 1

    async def calm() -> None:
        while time.monotonic() < end:
            usual[(await _constrained(server, {"json": schema}, 20, OTHER)).status] += 1
            await asyncio.sleep(0.05)

    for _ in range(20):
        await _constrained(server, {"json": schema}, 20, OTHER)
    await asyncio.gather(calm(), *(client(number) for number in range(4)))
    is_ok = usual.keys() == {200} and costly.keys() <= {200, 400, 429, 503}
    return {"ok": is_ok, "costly": dict(costly), "usual": dict(usual)}


def _constrained(
    server: Server, constraint: dict[str, Any], length: int = 2, source: str | None = None
) -> Awaitable[Reply]:
    body = completion("a", length) | {"structured_outputs": constraint, "stream": False}
    body.pop("stream_options", None)
    return ask(server.url, PATH, body, source=source)


async def tokenize_bodies(server: Server) -> Findings:
    """Four clients that count the tokens of 4 MB again and again."""
    before = server.workers[0].memory_info().rss
    statuses = await _repeated(server, "/tokenize", {"prompt": "word " * 800_000}, 4)
    grown = (server.workers[0].memory_info().rss - before) / 2**20
    return {"ok": statuses.keys() <= {400, 429}, "statuses": statuses, "grown_mib": round(grown, 1)}


async def large_bodies(server: Server) -> Findings:
    """Clients that send more than a body may have, and then read the answer."""
    statuses = await _repeated(server, PATH, b" " * (16 << 20), 8)
    return {"ok": statuses.keys() == {413}, "statuses": statuses}


async def template_bombs(server: Server) -> Findings:
    """Conversations that set off a bomb in the chat template."""
    statuses: Counter[int] = Counter()
    for content in ("bomb", "slow"):
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
        statuses.update(await _repeated(server, "/v1/chat/completions", body, 2))
    return {"ok": statuses.keys() == {400}, "statuses": dict(statuses)}


async def _repeated(server: Server, path: str, body: object, num_clients: int) -> dict[int, int]:
    """Number of answers to one body with each status, sent by some clients for some seconds."""
    end, data = time.monotonic() + BUSY_SECONDS, post_bytes(path, body)
    statuses: Counter[int] = Counter()

    async def client() -> None:
        while time.monotonic() < end:
            async with asyncio.timeout(60.0), await Connection.open(server.url) as connection:
                connection.write(data)
                statuses[(await connection.head())[0]] += 1

    await asyncio.gather(*(client() for _ in range(num_clients)))
    return dict(statuses)


def _growth(name: str, before: dict[str, float], after: dict[str, float]) -> int:
    return int(after.get(name, 0) - before.get(name, 0))
