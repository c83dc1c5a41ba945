"""Cost of the server around a model: HTTP, tokens, the hop to the engine, scheduling, SSE.

    python benchmarks/server_overhead.py --profile 15 [--save]

Keeps `quire serve --load-format null` busy over kept-alive connections from another process, and in
turns with it the bare stacks of bare_stacks.py, with the same client. The measure is work done per
second of processor time that the API process, or the engine, has used: the wall clock would tell
of other work on the machine. Absolute figures still follow the machine's mood; the ratios to the
bare stacks, taken round by round, do not.

--profile samples the API process with py-spy and tells where its time goes. --before takes a
checkout of another commit, with its native library built, in place of the bare stacks; --starts
starts both several times in turns, as a start decides up to a tenth. server_instructions.py counts
instead of timing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import record

record.require("psutil")

import psutil  # noqa: E402 - after the check
import uvloop  # noqa: E402
from server_process import start_program  # noqa: E402

from quire.processes import die_with_parent  # noqa: E402

ANSWER_TOKENS = 15
STREAM_TOKENS = 200
PROMPT = "rewrite this query: red runing shoes for wimen"
SERVE = [sys.executable, "-m", "quire", "serve", "--port", "0", "--load-format", "null"]
BARE = [sys.executable, str(Path(__file__).parent / "bare_stacks.py")]


@dataclass
class Count:
    """Answers to a load. left: requests that are still to be sent; done: all are answered."""

    left: int
    pending: int
    done: asyncio.Future[None]
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
        self._send()

    def _send(self) -> None:
        if self._count.left:
            self._count.left -= 1
            self._transport.write(self._request)
        else:
            self._transport.close()

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
        self._count.pending -= 1
        if not self._count.pending:
            self._count.done.set_result(None)
        self._send()


async def load(url: str, connections: int, requests: int, *, stream: bool) -> Count:
    """Send this number of requests and wait for all answers, so that each is counted."""
    host, port = url.removeprefix("http://").split(":")
    loop = asyncio.get_running_loop()
    count, data = (
        Count(requests, requests, loop.create_future()),
        request_bytes(host, stream=stream),
    )
    for _ in range(connections):
        await loop.create_connection(lambda: Connection(data, count, stream=stream), host, port)
    await count.done
    return count


def seconds_used(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = process.cpu_times()
    return times.user + times.system


@dataclass
class Server:
    """A server under load. api, engine: the processes whose time counts; a bare stack has one."""

    name: str
    url: str
    parent: subprocess.Popen[str]
    api: psutil.Process
    engine: psutil.Process | None = None

    def stop(self) -> None:
        end(self.parent, lambda: self.parent.send_signal(signal.SIGINT))


def start(name: str, command: list[str], log: IO[str], checkout: str = "") -> Server:
    """Start a server and wait until it is ready. log: takes what it says of its requests.

    checkout: folder whose Quire is started; empty: the installed one.
    """
    env = dict(os.environ)
    if checkout:
        env["PYTHONPATH"] = os.pathsep.join((f"{checkout}/src", env.get("PYTHONPATH", "")))
    parent, url = start_program(command, stderr=log, env=env, preexec_fn=die_with_parent)
    process = psutil.Process(parent.pid)
    server = Server(name, url, parent, process)
    for child in process.children():
        if "quire.server.worker" in child.cmdline():
            server.api = child
        elif {"quire.engine.processes.engine_process", "quire.engine.process"} & {*child.cmdline()}:
            server.engine = child
    return server


def measure(server: Server, args: argparse.Namespace, *, stream: bool) -> dict[str, float]:
    """One round: what a core-second of each process brought."""
    requests = args.streams if stream else args.requests
    if server.engine is None:  # a bare stack is done too soon for its clock
        requests *= 4
    before = seconds_used(server.api), seconds_used(server.engine)
    begin = time.monotonic()
    count = uvloop.run(load(server.url, args.connections, requests, stream=stream))
    wall = time.monotonic() - begin
    api = seconds_used(server.api) - before[0]
    engine = seconds_used(server.engine) - before[1]
    tokens = requests * (STREAM_TOKENS if stream else ANSWER_TOKENS)
    row = {
        "requests_per_second": requests / wall,
        "requests_per_api_core_second": requests / api,
        "tokens_per_api_core_second": tokens / api,
        "tokens_per_event": tokens / count.events if count.events else 0.0,
        "errors": count.errors,
    }
    if engine:
        row["requests_per_engine_core_second"] = requests / engine
        row["tokens_per_engine_core_second"] = tokens / engine
    return row


def compare(servers: list[Server], args: argparse.Namespace, *, stream: bool) -> dict[str, Any]:
    """Rounds in turns; medians of each server, and of the ratios of Quire to each bare stack."""
    rounds = [
        {server.name: measure(server, args, stream=stream) for server in servers}
        for _ in range(args.rounds + 1)
    ][1:]  # the first one warms up
    thing = "tokens" if stream else "requests"
    unit = f"{thing}_per_api_core_second"
    names = [server.name for server in servers]
    return {
        "stream": stream,
        "servers": {
            name: {
                key: round(statistics.median(found[name][key] for found in rounds), 2)
                for key in rounds[0][name]
            }
            for name in names
        },
        "ratios": {name: _ratio(rounds, name, unit) for name in names[1:]},
        "engine_ratios": {
            server.name: _ratio(rounds, server.name, f"{thing}_per_engine_core_second")
            for server in servers[1:]
            if server.engine is not None
        },
    }


def compare_starts(args: argparse.Namespace, log: IO[str]) -> dict[str, Any]:
    """Both builds, started anew in turns: each start's processor time, and the medians' ratio.

    A start decides where its code and data lie, and so up to a tenth of its speed.
    """
    checkouts = {"before": args.before, "quire": str(Path(__file__).parents[1])}
    rows = []
    for stream in (False, True):
        found: dict[str, list[float]] = {"before": [], "quire": []}
        for _ in range(args.starts):
            for name, checkout in checkouts.items():
                found[name].append(_milliseconds(name, checkout, args, log, stream=stream))
        medians = {name: statistics.median(times) for name, times in found.items()}
        ratio = round(medians["quire"] / medians["before"], 3)
        rows.append({"stream": stream, "ms_per_request": found, "ratio": ratio})
    return {"connections": args.connections, "rounds": args.rounds, "rows": rows}


def _milliseconds(
    name: str, checkout: str, args: argparse.Namespace, log: IO[str], *, stream: bool
) -> float:
    """Processor milliseconds of the API process for a request: the median of a start's rounds."""
    server = start(name, SERVE, log, checkout)
    try:
        rounds = [measure(server, args, stream=stream) for _ in range(args.rounds + 1)][1:]
    finally:
        server.stop()
    rate = statistics.median(found["requests_per_api_core_second"] for found in rounds)
    return round(1e3 / rate, 4)


def _ratio(rounds: list[dict[str, dict[str, float]]], name: str, unit: str) -> float:
    """The median over rounds of Quire's figure by another server's."""
    return round(statistics.median(found["quire"][unit] / found[name][unit] for found in rounds), 3)


def find_spy() -> str:
    """py-spy, beside this interpreter or on the path."""
    found = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if found is None:
        sys.exit("--profile: py-spy is not installed; run pip install -e '.[bench]'")
    return found


def profile(
    server: Server, args: argparse.Namespace, spy: str, *, stream: bool
) -> list[tuple[str, float]]:
    """Time of the API process by function: (file: function, share of samples) by own time."""
    command = [sys.executable, __file__, "--load", server.url]
    client = subprocess.Popen([*command, *(["--stream"] if stream else [])])
    try:
        time.sleep(1.0)
        with tempfile.NamedTemporaryFile("r") as found:
            watch = [spy, "record", "--pid", str(server.api.pid), "--duration", "5"]
            watch += ["--rate", "400", "--format", "raw", "--function", "--output", found.name]
            subprocess.run(watch, check=True, capture_output=True, timeout=60)
            samples = Counter[str]()
            for line in found:
                stack, _, count = line.rpartition(" ")
                if "worker.py" in stack:  # the event loop's thread; others only wait
                    samples[re.sub(r":\d+\)$", ")", stack.rpartition(";")[2])] += int(count)
    finally:
        end(client, client.terminate)
    total = sum(samples.values())
    return [(name, round(count / total, 3)) for name, count in samples.most_common(args.profile)]


def end(process: subprocess.Popen[Any], ask: Callable[[], None]) -> None:
    """Ask a process to leave, and see that it does."""
    ask()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run(args: argparse.Namespace) -> dict[str, Any]:
    spy = find_spy() if args.profile else ""
    servers: list[Server] = []
    with tempfile.TemporaryFile("w") as log:
        try:
            servers.append(start("quire", SERVE, log))
            if args.before:
                servers.append(start("before", SERVE, log, args.before))
            else:
                servers += [start(name, [*BARE, name], log) for name in ("raw", "starlette")]
            kinds = (False, True)
            found: dict[str, Any] = {"connections": args.connections, "rounds": args.rounds}
            found["rows"] = [compare(servers, args, stream=stream) for stream in kinds]
            if args.profile:
                profiles = [profile(servers[0], args, spy, stream=stream) for stream in kinds]
                print(json.dumps(profiles, indent=1))
                record.save("server_profile", {"profiles": profiles}, args.out)
            return found
        finally:
            for server in servers:
                server.stop()


def main() -> None:
    parser = record.parser(__doc__)
    parser.add_argument("--connections", type=int, default=128)
    parser.add_argument("--requests", type=int, default=2048, help="in each round")
    parser.add_argument("--streams", type=int, default=256, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--profile", type=int, default=0, metavar="N", help="tell the N dearest functions"
    )
    parser.add_argument("--before", metavar="FOLDER", help="compare with the Quire of a checkout")
    parser.add_argument(
        "--starts", type=int, default=0, help="with --before: of each build, in turns"
    )
    parser.add_argument("--load", metavar="URL", help="only keep this server busy")
    parser.add_argument("--stream", action="store_true", help="with --load: ask for streams")
    args = parser.parse_args()
    if args.load:
        uvloop.run(load(args.load, args.connections, 1 << 20, stream=args.stream))
        return
    name = "server_overhead_builds" if args.before else "server_overhead"
    if args.starts:
        name = "server_overhead_starts"
        with tempfile.TemporaryFile("w") as log:
            found = compare_starts(args, log)
    else:
        found = run(args)
    print(json.dumps(found, indent=1))
    record.save(name, found, args.out)


if __name__ == "__main__":
    main()
