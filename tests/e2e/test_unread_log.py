"""A server whose stderr is a pipe that is never read: it serves, restarts an engine, and ends."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from child_process import run_to_end
from server_process import Process, end_server, running_server

REQUESTS = 2_000


@pytest.fixture
def server() -> Iterator[tuple[Process, int]]:
    """The process, whose log is never read, and its port."""
    with running_server("--load-format", "null", stderr=subprocess.PIPE) as (process, url):
        yield process, int(url.rpartition(":")[2])


def children(pid: int) -> dict[int, str]:
    """Ids and command lines."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(i): Path(f"/proc/{i}/cmdline").read_text() for i in pids}


def get(port: int, path: str) -> tuple[int, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    link.request("GET", path)
    reply = link.getresponse()
    status, body = reply.status, reply.read()
    link.close()
    return status, body


def complete(port: int, count: int) -> list[int]:
    """The statuses of that many requests, on one connection."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    body, statuses = json.dumps({"prompt": "a", "max_tokens": 2}), []
    for _ in range(count):
        link.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = link.getresponse()
        reply.read()
        statuses.append(reply.status)
    link.close()
    return statuses


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_log_that_nobody_reads_stops_nothing(server: tuple[Process, int]) -> None:
    process, port = server
    with ThreadPoolExecutor(8) as pool:
        found = [s for part in pool.map(complete, [port] * 8, [REQUESTS // 8] * 8) for s in part]
    assert found == [200] * REQUESTS
    assert get(port, "/health")[0] == get(port, "/live")[0] == 200
    (engine,) = (pid for pid, name in children(process.pid).items() if "engine_process" in name)
    run_to_end(["kill", "-9", str(engine)], check=True)
    deadline = time.monotonic() + 30
    while get(port, "/ready")[0] == 200 and time.monotonic() < deadline:
        time.sleep(0.01)
    while get(port, "/ready")[0] != 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert complete(port, 3) == [200] * 3
    assert b'quire:log_lines_dropped_total{process="api"} 0' in get(port, "/metrics")[1]  # 1 MiB
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_dropped_lines_are_reported_when_somebody_reads_again(
    server: tuple[Process, int],
) -> None:
    process, port = server
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for _ in range(5_500):  # lines of more than 256 bytes
        link.request("GET", f"/{'x' * 250}")
        link.getresponse().read()
    link.close()
    counted = re.search(rb'log_lines_dropped_total{process="api"} (\d+)', get(port, "/metrics")[1])
    assert counted is not None
    assert int(counted[1]) > 100
    log = end_server(process)
    reported = re.search(r"WARNING quire.logs: (\d+) log lines dropped: the reader", log)
    assert reported is not None
    # the request for metrics and the end of the server have lines, too
    assert 0 <= int(reported[1]) - int(counted[1]) <= 3
