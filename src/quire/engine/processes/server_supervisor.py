"""The parent of all processes of a server: one keeper per engine, one per API process.

Owns who is told of whom. It has no torch, no requests and no HTTP: it holds the listening sockets
only to hand them on. Which models have an engine is decided by model_fleet.py.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from quire.config import EngineConfig
from quire.engine.core.engine_info import EngineInfo
from quire.engine.processes.control_channel import (
    Control,
    EngineDown,
    EngineUp,
    ForgetClient,
    StartWorker,
)
from quire.engine.processes.process_supervisors import (
    EngineProcessSettings,
    EngineSupervisor,
    WorkerParent,
    WorkerSupervisor,
)
from quire.errors import EngineError
from quire.logs import LogOptions

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSupervisorSettings:
    """What is fixed for one server.

    worker_module: what API processes run; worker_settings: as msgpack, for them alone to read.
    hang_timeout: seconds without a sign of life after which an engine is killed; 0: never.
    """

    worker_module: str
    worker_settings: bytes
    num_workers: int
    hang_timeout: float
    log: LogOptions


class ServerSupervisor:
    """Starts and keeps the processes of one server; leaving the context ends them all.

    listener, admin: the sockets that it listens at, for the public and for administrators.
    """

    def __init__(
        self,
        settings: ServerSupervisorSettings,
        listener: socket.socket,
        admin: socket.socket | None = None,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._admin = admin
        self._engines: dict[str, EngineSupervisor] = {}
        self._past: dict[str, tuple[int, int]] = {}  # by model: processes, restarts before unload
        self._workers: list[WorkerSupervisor] = []
        self._tasks: dict[EngineSupervisor | WorkerSupervisor, asyncio.Task[None]] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._num_engines = 0

    async def __aenter__(self) -> ServerSupervisor:
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._folder = Path(tempfile.mkdtemp(prefix="quire-"))  # mode 0700: it keeps others out
        return self

    async def __aexit__(self, *_: object) -> None:
        for tasks in (self._jobs.copy(), list(self._tasks.values())):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._broken.cancel()
        shutil.rmtree(self._folder)

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

    def give_up(self, error: BaseException) -> None:
        """The server cannot go on: `run` raises this."""
        if not self._broken.done():
            self._broken.set_exception(error)

    def begin(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside, at most until the server ends."""
        task = asyncio.create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return task

    async def unless_failed(self, work: Awaitable[T]) -> T:
        """Wait for something, but not longer than the server can go on."""
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, self._broken}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:  # also where a signal ends the waiting
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._broken.done():
            self._broken.result()
            raise EngineError("a process of the server ended; the log says why")
        return task.result()

    # ------------------------------------------------------------------ engines by name

    def start_engine(
        self, name: str, config: EngineConfig, on_end: Callable[[BaseException], None]
    ) -> EngineSupervisor:
        """Begin to keep an engine; its `started` says when requests can come.

        on_end: told why it cannot be started or kept.
        """
        assert name not in self._engines
        first_epoch, num_restarts = self._past.get(name, (0, 0))
        place = EngineProcessSettings(
            folder=self._folder,
            number=self._num_engines,
            first_epoch=first_epoch,
            num_restarts=num_restarts,
            hang=self._settings.hang_timeout,
            log=self._settings.log,
        )
        self._num_engines += 1
        keeper = self._engines[name] = EngineSupervisor(name, config, place, self.broadcast)

        def end(error: BaseException) -> None:
            self._forget_engine(keeper)
            on_end(error)

        self._keep(keeper, end)
        return keeper

    async def wait_until_started(self, keeper: EngineSupervisor) -> EngineInfo:
        """Wait for an engine. Raises what keeps it from starting."""
        task = self._tasks[keeper]
        either: set[asyncio.Future[Any]] = {keeper.started, task}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not keeper.started.done():
            if not task.cancelled():
                task.result()
            raise EngineError(f"the engine of {keeper.name} was stopped while it was loading")
        return keeper.started.result()

    async def stop_engine(self, name: str, why: str) -> None:
        """End an engine. why: told to those whose requests end with it."""
        keeper = self._engines[name]
        task = self._tasks[keeper]
        self._forget_engine(keeper)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        keeper.remove_files()
        self.broadcast(EngineDown(name=name, will_return=False, why=why))

    def _forget_engine(self, keeper: EngineSupervisor) -> None:
        if self._engines.pop(keeper.name, None) is not None:
            self._past[keeper.name] = keeper.epoch + 1, keeper.num_restarts
            del self._tasks[keeper]

    # ------------------------------------------------------------------ API processes

    def start_workers(self, parent: WorkerParent) -> None:
        """Begin to keep the API processes. parent: whom they ask and tell."""
        admin = None if self._admin is None else self._admin.fileno()
        for index in range(self._settings.num_workers):
            first = StartWorker(
                client=str(index),
                settings=self._settings.worker_settings,
                listener=self._listener.fileno(),
                admin=admin if index == 0 else None,
                metrics_folder=str(self._folder),
                log=self._settings.log,
            )
            keeper = WorkerSupervisor(self._settings.worker_module, first, parent)
            self._workers.append(keeper)
            self._keep(keeper, self.give_up)

    async def wait_until_workers_ready(self) -> None:
        """Wait until every place has an API process that requests can come to."""
        await self.unless_failed(asyncio.gather(*(w.ready.wait() for w in self._workers)))

    @property
    def clients(self) -> list[str]:
        """The API processes that are there, by their names towards engines."""
        return [worker.client for worker in self._workers if worker.client is not None]

    def broadcast(self, news: Control) -> None:
        """Tell all API processes."""
        for worker in self._workers:
            worker.send(news)

    def reachable(self) -> list[EngineUp]:
        """The engines that requests can be sent to."""
        return [engine.up for engine in self._engines.values() if engine.up is not None]

    def forget_client(self, client: str) -> None:
        """An API process has died, and nobody waits for its requests any more."""
        for engine in self._engines.values():
            engine.send(ForgetClient(client=client))

    # ------------------------------------------------------------------ tasks

    def _keep(
        self, keeper: EngineSupervisor | WorkerSupervisor, on_end: Callable[[BaseException], None]
    ) -> None:
        task = self._tasks[keeper] = asyncio.create_task(keeper.run())
        task.add_done_callback(partial(_tell_failure, on_end))


def _tell_failure(on_end: Callable[[BaseException], None], task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        on_end(error)
