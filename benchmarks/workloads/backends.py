"""Targets of the load: an engine in a process, or `quire serve` with processes that load it.

Owns starting, ending and giving up on them; a backend that breaks says so by BackendError.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from quire.processes import die_with_parent
from workloads import http_load, offline
from workloads.figures import RequestResult
from workloads.plan import Level

LOAD_PROCESSES = 4
GRACE = 15.0  # seconds beyond a level's own end, and for a server to end

_CONTEXT = multiprocessing.get_context("spawn")


class BackendError(Exception):
    """A backend did not start, broke, or does not answer."""


class Backend(Protocol):
    """A program that runs levels of load. start: figures of its start, such as seconds by phase."""

    start: dict[str, Any]

    def run(self, level: Level) -> tuple[list[RequestResult], float]:
        """Run a level; returns the requests, and the load's use of a core. Raises BackendError."""

    def close(self) -> None:
        """End it, whatever state it is in."""


class Child:
    """A process with a pipe to it."""

    def __init__(self, target: Any, *arguments: Any) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, message: Any) -> None:
        """Raises BackendError."""
        try:
            self._pipe.send(message)
        except OSError as error:
            raise BackendError("a process has ended; what it said is above") from error

    def receive(self, patience: float) -> Any:
        """The next message. patience: seconds to wait. Raises BackendError if none comes."""
        try:
            if not self._pipe.poll(max(0.0, patience)):
                raise BackendError(f"no answer within {patience:.0f} s")
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise BackendError("a process has ended; what it said is above") from error

    def close(self) -> None:
        """Kill it: it holds nothing worth keeping."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


class OfflineEngine:
    """The engine's loop without a server."""

    def __init__(self, options: dict[str, Any], patience: float) -> None:
        begin = time.monotonic()
        self._child = Child(offline.main, options)
        try:
            received = self._child.receive(patience)
        except BackendError:
            self.close()
            raise
        self.start = {"ready_s": round(time.monotonic() - begin, 2)} | received

    def run(self, level: Level) -> tuple[list[RequestResult], float]:
        """As Backend says."""
        self._child.send(level)
        results, cpu = self._child.receive(level.cut_after + GRACE)
        return results, cpu

    def measure(self, level: Level) -> dict[str, Any]:
        """Run a steady level; returns its figures. Raises BackendError."""
        self._child.send(level)
        found: dict[str, Any] = self._child.receive(level.cut_after + GRACE)
        return found

    def close(self) -> None:
        """As Backend says."""
        self._child.close()


class ServedEngine:
    """`quire serve`, and processes that make the load, which begin with the first level.

    env: the server's environment; this process's if None.
    """

    def __init__(
        self, options: dict[str, Any], patience: float, env: dict[str, str] | None = None
    ) -> None:
        begin = time.monotonic()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the server
        self._server = subprocess.Popen(
            [sys.executable, "-m", "quire", "serve", "--port", "0", *flags(options)],
            stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True, env=env,
            preexec_fn=die_with_parent,
        )  # fmt: skip
        self._children: list[Child] = []
        try:
            line = self._ready_line(patience)
            self._url = re.search(r"ready at (http://\S+)", line)[1]
            ready = time.monotonic() - begin
            ask_one_token(self._url, patience)
            first = time.monotonic() - begin
        except (BackendError, OSError, http.client.HTTPException) as error:
            said = self._said()
            self.close()
            raise BackendError(f"{error}; it said {said or 'nothing'}") from error
        self.start = {"ready_s": round(ready, 2), "first_token_s": round(first, 2), "said": line}

    def run(self, level: Level) -> tuple[list[RequestResult], float]:
        """As Backend says."""
        shares = level.shares(LOAD_PROCESSES)
        while len(self._children) < len(shares):
            self._children.append(Child(http_load.main, self._url))
        children = self._children[: len(shares)]
        for child, share in zip(children, shares, strict=True):
            child.send(share)
        for child in children:
            child.receive(GRACE)  # it has made its requests
        begin = time.perf_counter() + 0.05
        results, cpu = [], 0.0
        for child in children:
            child.send(begin)
        for child in children:
            own, used = child.receive(level.cut_after + GRACE)
            results += own
            cpu = max(cpu, used)
        if self._server.poll() is not None:
            raise BackendError(f"the server has ended; it said: {self._said()}")
        return results, cpu

    def cpu_seconds(self) -> float:
        """Processor time that the server's living processes have used."""
        import psutil  # only compare_builds.py needs it

        parent = psutil.Process(self._server.pid)
        found = [each.cpu_times() for each in (parent, *parent.children(recursive=True))]
        return float(sum(times.user + times.system for times in found))

    def close(self) -> None:
        """As Backend says."""
        for child in self._children:
            child.close()
        self._server.send_signal(signal.SIGTERM)
        try:
            self._server.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()
        self._server.stdout.close()
        self._log.close()

    def _ready_line(self, patience: float) -> str:
        if not select.select([self._server.stdout], [], [], patience)[0]:
            raise BackendError(f"the server was not ready within {patience:.0f} s")
        line = self._server.stdout.readline().strip()
        if "ready at" not in line:
            raise BackendError("the server did not start")
        return line

    def _said(self, most: int = 2000) -> str:
        self._log.seek(0)
        return self._log.read()[-most:].strip()


def flags(options: dict[str, Any]) -> list[str]:
    """Settings as options of the command line; the model is a positional argument."""
    found = [str(options["model"])]
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        elif name != "model":
            found += [f"--{flag}", str(value)]
    return found


def ask_one_token(url: str, patience: float) -> None:
    """The first request. Raises BackendError if it is not answered."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=patience)
    body = json.dumps({"prompt": [300], "max_tokens": 1, "ignore_eos": True})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    said = answer.read()
    connection.close()
    if answer.status != 200:
        raise BackendError(f"the first request failed: HTTP {answer.status} {said[:200]!r}")


def shape_folder(name: str) -> Path:
    """The folder of a shape by its name."""
    return Path(__file__).parents[1] / "shapes" / name
