"""The parent of all processes of a server: one keeper per engine, one per API process.

Owns who is told of whom. It has no torch, no requests and no HTTP: it holds the listening socket
only to hand it on. Engines have names, and can be started and stopped while the server runs.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from quire.config import EngineConfig
from quire.engine.control import EngineDown, EngineUp, ForgetClient, StartWorker
from quire.engine.info import EngineInfo
from quire.engine.keepers import EngineKeeper, EnginePlace, WorkerKeeper
from quire.errors import EngineError
from quire.logs import LogOptions

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisorSettings:
    """What is fixed for one server.

    worker_module: what API processes run; worker_settings: as msgpack, for them alone to read.
    hang_timeout: seconds without a sign of life after which an engine is killed; 0: never.
    """

    worker_module: str
    worker_settings: bytes
    num_workers: int
    hang_timeout: float
    log: LogOptions


class Supervisor:
    """Starts and keeps the processes of one server; leaving the context ends them all."""

    def __init__(self, settings: SupervisorSettings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._engines: dict[str, EngineKeeper] = {}
        self._workers: list[WorkerKeeper] = []
        self._tasks: dict[EngineKeeper | WorkerKeeper, asyncio.Task[None]] = {}
        self._num_engines = 0

    async def __aenter__(self) -> Supervisor:
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._folder = Path(tempfile.mkdtemp(prefix="quire-"))  # mode 0700: it keeps others out
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._broken.cancel()
        shutil.rmtree(self._folder)

    async def start(self, configs: Mapping[str, EngineConfig]) -> list[EngineInfo]:
        """Start everything at once; returns when requests can come.

        Raises what keeps an engine from starting: ConfigError, CheckpointError, EngineError.
        """
        self._workers = [self._start_worker(i) for i in range(self._settings.num_workers)]
        engines = [self.start_engine(name, config) for name, config in configs.items()]
        infos = await self._unless_broken(asyncio.gather(*(e.started for e in engines)))
        await self._unless_broken(asyncio.gather(*(w.ready.wait() for w in self._workers)))
        return infos

    async def run(self) -> None:
        """Wait until something cannot be kept alive, and raise that."""
        await asyncio.shield(self._broken)

    async def stop(self, grace: float) -> None:
        """Let API processes finish their requests, for at most `grace` seconds.

        Asked a second time, they cut them, telling so.
        """
        for worker in self._workers:
            worker.leave()
        if self._workers:
            await asyncio.wait([self._tasks[worker] for worker in self._workers], timeout=grace)

    # ------------------------------------------------------------------ engines by name

    def start_engine(self, name: str, config: EngineConfig) -> EngineKeeper:
        """Begin to keep an engine; its `started` says when requests can come."""
        assert name not in self._engines
        place = EnginePlace(
            folder=self._folder,
            number=self._num_engines,
            hang=self._settings.hang_timeout,
            log=self._settings.log,
        )
        self._num_engines += 1
        keeper = self._engines[name] = EngineKeeper(name, config, place, self._tell_workers)
        self._keep(keeper)
        return keeper

    async def stop_engine(self, name: str) -> None:
        """End an engine; its unfinished requests end with an error."""
        keeper = self._engines.pop(name)
        task = self._tasks.pop(keeper)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._tell_workers(EngineDown(name=name, will_return=False))

    # ------------------------------------------------------------------ who is told of whom

    def _start_worker(self, index: int) -> WorkerKeeper:
        first = StartWorker(
            client=str(index),
            settings=self._settings.worker_settings,
            listener=self._listener.fileno(),
            metrics_folder=str(self._folder),
            log=self._settings.log,
        )
        keeper = WorkerKeeper(self._settings.worker_module, first, self._reachable, self._bury)
        self._keep(keeper)
        return keeper

    def _reachable(self) -> list[EngineUp]:
        return [engine.up for engine in self._engines.values() if engine.up is not None]

    def _tell_workers(self, news: EngineUp | EngineDown) -> None:
        for worker in self._workers:
            worker.send(news)

    def _bury(self, client: str) -> None:
        """An API process has died, and nobody waits for its requests any more."""
        for engine in self._engines.values():
            engine.send(ForgetClient(client=client))

    # ------------------------------------------------------------------ tasks

    def _keep(self, keeper: EngineKeeper | WorkerKeeper) -> None:
        task = self._tasks[keeper] = asyncio.create_task(keeper.run())
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self._broken.done():
            self._broken.set_exception(error)

    async def _unless_broken(self, work: Awaitable[T]) -> T:
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, self._broken}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._broken.result()
            raise EngineError("a process of the server ended; the log says why")
        return task.result()
