"""`quire serve` under test: its processes, their resources, and its endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from server_process import start_server

from quire.processes import die_with_parent
from reliability.wire import Connection, ask

PATIENCE = 60.0
_SERIES = re.compile(r"^(\w[\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Census:
    """Resources of the processes of a server. tasks: of the (first) API process."""

    fds: dict[str, int]
    threads: dict[str, int]
    rss_mib: dict[str, float]
    tasks: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """KV blocks by state."""

    total: int
    free: int
    cached: int

    @property
    def used(self) -> int:
        """The number in use."""
        return self.total - self.free - self.cached


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. admin: the Unix socket of its admin endpoints; temporary: its folder."""

    url: str
    pid: int
    admin: str
    temporary: str

    def children(self, module: str) -> list[psutil.Process]:
        """Its child processes that run this module, oldest first."""
        found = []
        for process in psutil.Process(self.pid).children():
            with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
                if module in process.cmdline():
                    found.append(process)
        return sorted(found, key=lambda process: process.create_time())

    @property
    def engine(self) -> psutil.Process | None:
        """The engine process, None while there is none."""
        return next(iter(self.children("quire.engine.processes.engine_process")), None)

    @property
    def workers(self) -> list[psutil.Process]:
        """The API processes."""
        return self.children("quire.server.worker")

    def processes(self) -> dict[str, psutil.Process]:
        """All of its processes by their role."""
        named = {"parent": psutil.Process(self.pid)}
        if (engine := self.engine) is not None:
            named["engine"] = engine
        return named | {f"api{index}": worker for index, worker in enumerate(self.workers)}

    async def census(self) -> Census:
        """Count what is held."""
        fds, threads, rss = {}, {}, {}
        for name, process in self.processes().items():
            with contextlib.suppress(psutil.NoSuchProcess):
                fds[name], threads[name] = process.num_fds(), process.num_threads()
                rss[name] = round(process.memory_info().rss / 2**20, 1)
        async with await Connection.open_unix(self.admin) as connection:
            stats = json.loads((await connection.ask("/stats")).body)
        return Census(fds, threads, rss, stats["num_tasks"])

    async def figures(self) -> dict[str, float]:
        """Numbers of /metrics: by name, or by name{labels} where there are labels of interest."""
        reply = await ask(self.url, "/metrics")
        return {_key(*found): float(found[2]) for found in _SERIES.findall(reply.body.decode())}

    async def blocks(self) -> Blocks:
        """The KV cache as it is."""
        live = json.loads((await ask(self.url, "/live")).body)["blocks"]
        return Blocks(live["total"], live["free"], live["cached"])

    async def at_rest(self) -> Blocks:
        """Wait until no request runs or waits, and closed connections are gone."""

        async def is_idle() -> bool:
            live = json.loads((await ask(self.url, "/live")).body)
            return not live["running"] + live["waiting"] + live["blocks"]["used"]

        with contextlib.suppress(TimeoutError):  # what is not given back shows in the figures
            await until(is_idle, 10.0)
        await asyncio.sleep(0.5)
        return await self.blocks()

    async def is_ready(self) -> bool:
        """Whether it wants requests."""
        return (await ask(self.url, "/ready", timeout=5.0)).status == 200

    async def has_replaced(self, engine: psutil.Process) -> bool:
        """Whether another engine process has taken over."""
        new = self.engine
        return new is not None and new.pid != engine.pid and await self.is_ready()

    def serves(self, ports: set[int]) -> int:
        """Number of clients with these ports to which the first API process has connections."""
        connections = self.workers[0].net_connections("tcp4")
        return len({c.raddr.port for c in connections if c.raddr} & ports)


@asynccontextmanager
async def serve(
    *options: str, unread_log: bool = False, temporary: str = ""
) -> AsyncIterator[Server]:
    """A server on a free port, ended by SIGTERM.

    unread_log: nobody reads its standard error. temporary: its folder for temporary files.
    """
    environment = os.environ | ({"TMPDIR": temporary} if temporary else {})
    with tempfile.TemporaryDirectory() as folder:
        admin, log = f"{folder}/admin.sock", Path(folder, "log")
        with log.open("w") as errors:
            to = subprocess.PIPE if unread_log else errors
            try:
                process, url = start_server(
                    "--admin-uds",
                    admin,
                    *options,
                    env=environment,
                    stderr=to,
                    preexec_fn=die_with_parent,
                )
            except RuntimeError:
                raise SystemExit(f"the server did not start:\n{log.read_text()}") from None
            try:
                yield Server(url, process.pid, admin, temporary)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(PATIENCE)
                process.stdout.close()
        _show_failures(log.read_text())


def _show_failures(log: str) -> None:
    """A traceback in a server's log is a finding, whatever else went well."""
    if "Traceback" in log:
        print(log[log.index("Traceback") - 500 :][:5000], file=sys.stderr)


@contextmanager
def small_folder(size: str) -> Iterator[str]:
    """A file system of its own, in memory. Raises OSError where none can be mounted."""
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder]
        run = subprocess.run(mount, capture_output=True, text=True, check=False)
        if run.returncode:
            raise OSError(f"no small file system can be mounted: {run.stderr.strip()}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def paused(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """These processes are stopped meanwhile; connections go to the others."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


async def until(holds: Callable[[], object], seconds: float = PATIENCE) -> float:
    """Poll until it holds; returns the seconds that it took. Raises TimeoutError."""
    begin = time.monotonic()
    while True:
        found = holds()
        if await found if asyncio.iscoroutine(found) else found:
            return time.monotonic() - begin
        if time.monotonic() - begin > seconds:
            raise TimeoutError("it did not happen in time")
        await asyncio.sleep(0.02)


def _key(name: str, labels: str, _value: str) -> str:
    parts = [
        label
        for label in re.findall(r'\w+="[^"]*"', labels)
        if not label.startswith(("model_name=", "engine="))
    ]
    return f"{name}{{{','.join(parts)}}}" if parts else name
