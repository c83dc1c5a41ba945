"""Processes that die or hang in a running server: requests in other processes go on."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from server_process import end_server, start_server
from streams import PATIENCE, Stream, wait_until

NUM_STREAMS = 8
LENGTH = 400
SAMPLED = {"max_tokens": LENGTH, "seed": 7, "temperature": 1.0}
PROMPTS = [f"stream number {number}" for number in range(NUM_STREAMS)]
HANG_SECONDS = 5  # far more than a process gets no processor on a busy machine


@dataclass
class Server:
    """A running `quire serve`."""

    parent: psutil.Process
    url: str

    def children(self, module: str) -> list[psutil.Process]:
        found = []
        for process in self.parent.children():
            with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
                if module in process.cmdline():
                    found.append(process)
        return found

    @property
    def engine(self) -> psutil.Process:
        (engine,) = self.children("quire.engine.processes.engine_process")
        return engine

    @property
    def workers(self) -> list[psutil.Process]:
        return self.children("quire.server.worker")

    def stream(self, prompt: str, **fields: object) -> Stream:
        return Stream(self.url, prompt=prompt, **SAMPLED | fields)

    def complete(self, prompt: str, **fields: object) -> str:
        body = json.dumps({"prompt": prompt, "ignore_eos": True} | SAMPLED | fields).encode()
        header = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/completions", body, header)
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return json.load(response)["choices"][0]["text"]


def has_replaced(server: Server, lost: list[psutil.Process]) -> bool:
    """Whether the API processes that were lost have successors."""
    workers = server.workers
    return len(workers) == 2 and not set(workers) & set(lost)


def answers_well(server: Server, path: str) -> bool:
    """Whether a path is answered with 200."""
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(server.url + path, timeout=PATIENCE) as response,
    ):
        return response.status == 200
    return False


def serve(model: Path, *options: str) -> tuple[subprocess.Popen[str], Server]:
    process, url = start_server(str(model), "--num-blocks", "400", *options)
    return process, Server(psutil.Process(process.pid), url)


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    options = f"--engine-hang-timeout {HANG_SECONDS} --api-server-count 2"
    # places for as many as come, whichever API process takes them
    options += f" --max-num-seqs {NUM_STREAMS} --max-queued-requests 1"
    process, server = serve(tiny_model, *options.split())
    yield server
    end_server(process)


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> list[str]:
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        return list(pool.map(server.complete, PROMPTS))


def begin_streams(server: Server) -> list[Stream]:
    """Start a stream for each prompt, and wait until each is in the middle of its answer."""
    streams = [server.stream(prompt) for prompt in PROMPTS]
    wait_until(lambda: all(stream.num_events >= 3 for stream in streams))
    assert not any(stream.is_whole for stream in streams), "too late: make the answers longer"
    return streams


def assert_whole(streams: list[Stream], texts: list[str]) -> None:
    for stream in streams:
        stream.join(PATIENCE)
    assert all(stream.is_whole for stream in streams)
    assert [stream.text for stream in streams] == texts


def test_streams_outlive_a_killed_engine(server: Server, undisturbed: list[str]) -> None:
    engine = server.engine
    streams = begin_streams(server)
    whole: list[str] = []

    def ask() -> None:
        with contextlib.suppress(urllib.error.HTTPError):  # a 503 while the engine is away
            whole.append(server.complete(PROMPTS[0]))

    unstreamed = threading.Thread(target=ask)
    unstreamed.start()
    engine.kill()
    assert_whole(streams, undisturbed)
    unstreamed.join(PATIENCE)
    assert server.engine.pid != engine.pid
    assert whole in ([undisturbed[0]], [])


def test_streams_outlive_an_engine_that_hangs(server: Server, undisturbed: list[str]) -> None:
    engine = server.engine
    streams = begin_streams(server)
    engine.suspend()
    assert_whole(streams, undisturbed)
    assert server.engine.pid != engine.pid


def test_a_killed_api_process_is_replaced(server: Server, undisturbed: list[str]) -> None:
    killed = server.workers
    for worker in killed:
        worker.kill()
    assert server.complete(PROMPTS[0]) == undisturbed[0]
    wait_until(lambda: has_replaced(server, killed))
    for worker in server.workers:
        wait_until(lambda worker=worker: worker.nice() == server.parent.nice())
        assert os.getsid(worker.pid) == os.getsid(server.parent.pid)  # where priorities count
        assert os.getpgid(worker.pid) == worker.pid  # which Ctrl-C does not reach


def test_probes_are_answered_well_while_an_api_process_is_replaced(server: Server) -> None:
    """The other process answers; the new one accepts no connections before it knows the engine."""
    killed, other = server.workers
    killed.kill()
    host = server.url.removeprefix("http://")

    def new_one_answers() -> bool:
        connection = http.client.HTTPConnection(host, timeout=PATIENCE)
        for path in ("/ready", "/live"):
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            assert response.status == 200
        port = connection.sock.getsockname()[1]
        with contextlib.closing(connection), contextlib.suppress(psutil.NoSuchProcess):
            return any(
                found.raddr and found.raddr.port == port
                for worker in set(server.workers) - {killed, other}
                for found in worker.net_connections("tcp4")
            )
        return False

    wait_until(new_one_answers)
    assert has_replaced(server, [killed])


def test_an_api_process_that_hangs_is_replaced(server: Server, undisturbed: list[str]) -> None:
    hung, other = server.workers
    hung.suspend()
    wait_until(lambda: has_replaced(server, [hung]))
    assert other in server.workers
    texts = [server.complete(prompt) for prompt in PROMPTS]
    assert texts == undisturbed


def test_a_server_that_was_stopped_as_a_whole_goes_on(
    server: Server, undisturbed: list[str]
) -> None:
    """As by `docker pause`, for longer than each process may be silent: nothing counts as dead."""
    processes = [server.engine, *server.workers, server.parent]
    streams = begin_streams(server)
    for process in processes:
        process.suspend()
    time.sleep(HANG_SECONDS + 0.5)
    for process in reversed(processes):  # the supervisor is the first that looks
        process.resume()
    wait_until(lambda: answers_well(server, "/health"))
    assert_whole(streams, undisturbed)
    assert [server.engine, *server.workers, server.parent] == processes


def test_streams_outlive_engines_that_are_killed_again_and_again(server: Server) -> None:
    """The streams ran in each of these engines, but did not cause the deaths."""
    alone = server.complete("a long one", max_tokens=1500)
    stream = server.stream("a long one", max_tokens=1500)
    for _ in range(3):
        num_events = stream.num_events
        wait_until(lambda before=num_events: stream.num_events > before + 3 or stream.is_whole)
        assert not stream.is_whole, "too late: make the answer longer"
        server.engine.kill()
        wait_until(lambda: len(server.children("quire.engine.processes.engine_process")) == 1)
    assert_whole([stream], [alone])


def test_the_requests_of_a_killed_api_process_are_aborted(server: Server) -> None:
    """The engine becomes idle; long answers would keep it busy."""
    streams = [server.stream(prompt, max_tokens=1900) for prompt in PROMPTS]
    wait_until(lambda: all(stream.num_events for stream in streams))
    for worker in server.workers:
        worker.kill()
    engine = server.engine
    wait_until(lambda: len(server.workers) == 2)

    def is_idle() -> bool:
        before = engine.cpu_times().user
        time.sleep(0.2)
        return engine.cpu_times().user - before < 0.1

    wait_until(is_idle)


def test_nobody_outlives_the_parent(tiny_model: Path) -> None:
    process, server = serve(tiny_model)
    children = [server.engine, *server.workers]
    streams = [server.stream(prompt) for prompt in PROMPTS]
    wait_until(lambda: all(stream.num_events for stream in streams))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    gone, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert not alive
    assert len(gone) == 2
