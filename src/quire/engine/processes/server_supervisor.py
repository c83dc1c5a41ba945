"""The parent of all processes of a server: one supervisor per engine, one per API process.

Owns who learns of which process. It has no torch, no requests and no HTTP, and holds the listening
sockets only to pass them on. model_fleet.py decides which models have an engine.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from quire.config import EngineConfig
from quire.engine.core.engine_info import EngineInfo
from quire.engine.processes.control_channel import (
    ControlMessage,
    EngineDown,
    EngineUp,
    StartEngine,
    StartWorker,
)
from quire.engine.processes.engine_supervisor import SOCKET, EngineSupervisor
from quire.engine.processes.orphans import reap_forever
from quire.engine.processes.private_folder import private_folder
from quire.engine.processes.worker_supervisor import WorkerParent, WorkerSupervisor
from quire.errors import EngineError
from quire.logs import LogOptions
from quire.shared_memory import clear_page, create_shared_memory

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSupervisorSettings:
    """The settings of a server's supervisor, fixed for its lifetime.

    worker_module: what API processes run; worker_settings: theirs, as msgpack. hang_timeout:
    seconds without a heartbeat after which a process is killed; load_timeout: seconds without
    progress of one that starts or loads its model; 0: never.
    """

    worker_module: str
    worker_settings: bytes
    num_workers: int
    hang_timeout: float
    load_timeout: float
    log: LogOptions


class ServerSupervisor:
    """Starts the processes of one server and keeps them running; leaving the context ends them.

    listeners, admin: the listening sockets, public and for administrators.
    """

    def __init__(
        self,
        settings: ServerSupervisorSettings,
        listeners: Sequence[socket.socket],
        admin: socket.socket | None = None,
    ) -> None:
        self._settings = settings
        self._listeners = listeners
        self._admin = admin
        self._engines: dict[str, EngineSupervisor] = {}
        self._past: dict[str, tuple[int, int]] = {}  # by model: processes, restarts before unload
        self._workers: list[WorkerSupervisor] = []
        self._pages: dict[str, tuple[int, int]] = {}  # of shared memory, by model
        self._tasks: dict[EngineSupervisor | WorkerSupervisor, asyncio.Task[None]] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._num_engines = 0
        self._at_end = ExitStack()

    async def __aenter__(self) -> ServerSupervisor:
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with ExitStack() as opened:  # closed here if something cannot be had
            self._folder = opened.enter_context(private_folder())
            try:
                self._memory, self._counters = (_shared_memory(opened) for _ in range(2))
                for row in range(self._settings.num_workers):
                    clear_page(self._memory, row)
            except OSError as error:
                text = f"there is no shared memory for processes ({error}); free some memory"
                raise EngineError(text) from error
            self._at_end = opened.pop_all()
        if os.getpid() == 1:
            self.spawn(reap_forever())
        return self

    async def __aexit__(self, *_: object) -> None:
        for tasks in (self._jobs.copy(), list(self._tasks.values())):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._failure.cancel()
        self._at_end.close()

    async def run(self) -> None:
        """Wait until a process cannot be kept running, and raise its error."""
        await asyncio.shield(self._failure)

    async def stop(self, grace: float) -> None:
        """Drain: let API processes finish their requests, for at most `grace` seconds.

        The second call makes them end their requests with an error.
        """
        for worker in self._workers:
            worker.leave()
        if self._workers:
            await asyncio.wait([self._tasks[worker] for worker in self._workers], timeout=grace)

    def fail(self, error: BaseException) -> None:
        """Make `run` raise this error: the server cannot go on."""
        if not self._failure.done():
            self._failure.set_exception(error)

    def spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task in the background, until the server ends."""
        task = asyncio.create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return task

    async def unless_failed(self, work: Awaitable[T]) -> T:
        """Wait for something; raises the server's error if that comes first."""
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, self._failure}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:  # also when a signal ends the wait
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._failure.done():
            self._failure.result()
        return task.result()

    # ------------------------------------------------------------------ engines by name

    def start_engine(
        self, name: str, config: EngineConfig, on_end: Callable[[BaseException], None]
    ) -> EngineSupervisor:
        """Start an engine and keep it running; its `started` says when it accepts requests.

        on_end: called with the error if it cannot be started or kept running.
        """
        assert name not in self._engines
        epoch, num_restarts = self._past.get(name, (0, 0))
        page = self._settings.num_workers + 2 * len(self._pages)
        pages = self._pages.setdefault(name, (page, page + 1))
        first = StartEngine(
            config=config,
            epoch=epoch,
            num_restarts=num_restarts,
            address=f"{SOCKET}{self._folder}/engine-{self._num_engines}",
            memory=self._memory,
            page=pages[epoch % 2],
            log=self._settings.log,
        )
        self._num_engines += 1
        limits = self._settings.hang_timeout, self._settings.load_timeout
        engine = EngineSupervisor(name, first, pages, self.broadcast, *limits)
        self._engines[name] = engine

        def end(error: BaseException) -> None:
            self._forget_engine(engine)
            on_end(error)

        self._supervise(engine, end)
        return engine

    async def wait_until_started(self, engine: EngineSupervisor) -> EngineInfo:
        """Wait until an engine has started. Raises the error of its start."""
        task = self._tasks[engine]
        either: set[asyncio.Future[Any]] = {engine.started, task}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not engine.started.done():
            if not task.cancelled():
                task.result()
            raise EngineError(f"the engine of {engine.name} was stopped while it was loading")
        return engine.started.result()

    async def stop_engine(self, name: str, why: str) -> None:
        """Unload an engine. why: the error message for its unfinished requests."""
        engine = self._engines[name]
        task = self._tasks[engine]
        self._forget_engine(engine)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.broadcast(EngineDown(name=name, will_return=False, is_unload=True, why=why))

    def _forget_engine(self, engine: EngineSupervisor) -> None:
        if self._engines.pop(engine.name, None) is not None:
            self._past[engine.name] = engine.epoch + 1, engine.num_restarts
            del self._tasks[engine]

    # ------------------------------------------------------------------ API processes

    def start_workers(self, parent: WorkerParent) -> None:
        """Start the API processes and keep them running. parent: see `WorkerParent`."""
        admin = None if self._admin is None else self._admin.fileno()
        limits = self._settings.hang_timeout, self._settings.load_timeout
        for row in range(self._settings.num_workers):
            first = StartWorker(
                row=row,
                client=f"{row}.0",
                settings=self._settings.worker_settings,
                listeners=[listener.fileno() for listener in self._listeners],
                admin=admin if row == 0 else None,
                memory=self._memory,
                counters=self._counters,
                metrics_folder=str(self._folder),
                log=self._settings.log,
            )
            worker = WorkerSupervisor(self._settings.worker_module, first, parent, *limits)
            self._workers.append(worker)
            self._supervise(worker, self.fail)

    async def wait_until_workers_ready(self) -> None:
        """Wait until all API processes accept connections."""
        await self.unless_failed(asyncio.gather(*(w.ready.wait() for w in self._workers)))

    @property
    def clients(self) -> list[str]:
        """The names of the running API processes towards engines."""
        return [worker.client for worker in self._workers if worker.client is not None]

    def broadcast(self, message: ControlMessage) -> None:
        """Send a message to all API processes."""
        for worker in self._workers:
            worker.send(message)

    def reachable(self) -> list[EngineUp]:
        """The engines that accept requests."""
        return [engine.up for engine in self._engines.values() if engine.up is not None]

    # ------------------------------------------------------------------ tasks

    def _supervise(
        self, child: EngineSupervisor | WorkerSupervisor, on_end: Callable[[BaseException], None]
    ) -> None:
        task = self._tasks[child] = asyncio.create_task(child.run())
        task.add_done_callback(partial(_report_error, on_end))


def _shared_memory(opened: ExitStack) -> int:
    memory = create_shared_memory()
    opened.callback(os.close, memory)
    return memory


def _report_error(on_end: Callable[[BaseException], None], task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        on_end(error)
