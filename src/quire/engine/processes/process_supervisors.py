"""Supervisors of one engine process or one API process: they start it, watch it and restart it.

Owns when a process counts as dead or hung, and how often it is restarted. Callbacks report to the
server supervisor (server_supervisor.py).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from quire.config import EngineConfig
from quire.engine.core.engine_info import EngineInfo
from quire.engine.processes.child_process import Child, describe
from quire.engine.processes.control_channel import (
    ControlMessage,
    EngineDown,
    EngineStarted,
    EngineUp,
    ModelStatus,
    StartEngine,
    StartFailed,
    StartWorker,
    WorkerReady,
)
from quire.engine.processes.death_cause import DeathCause
from quire.engine.processes.shared_memory import clear_page
from quire.engine.processes.silence import Silence
from quire.engine.processes.status_page import StatusPage
from quire.engine.processes.worker_heartbeats import WorkerHeartbeats
from quire.errors import EngineError
from quire.logs import LogOptions

logger = logging.getLogger(__name__)

ENGINE_MODULE = "quire.engine.processes.engine_process"
MAX_DEATHS = 5  # of a process in a row
BACKOFF_SECONDS = (0.0, 0.5, 1.0, 2.0, 4.0)  # before a restart, by deaths in a row
STEADY_SECONDS = 10.0  # after serving this long, a death starts a new count


@dataclass(frozen=True, slots=True)
class EngineProcessSettings:
    """The folder of an engine's sockets, its pages of shared memory, and how it is watched.

    number: unique, in file names. memory: file descriptor; pages: numbers of two, for processes in
    turn, so that the last one's can be read while the next one starts. first_epoch: how many
    processes the model had before; num_restarts: how many of them replaced one that had died. hang:
    seconds without a heartbeat after which it is killed; 0: never.
    """

    folder: Path
    memory: int
    pages: tuple[int, int]
    number: int
    first_epoch: int
    hang: float
    log: LogOptions
    num_restarts: int = 0


class EngineSupervisor:
    """Keeps one model's engine process running until `run` is cancelled.

    on_change: called when the engine accepts requests, and when it no longer does.
    """

    def __init__(
        self,
        name: str,
        config: EngineConfig,
        settings: EngineProcessSettings,
        on_change: Callable[[EngineUp | EngineDown], None],
    ) -> None:
        self.name = name
        self.started: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self.up: EngineUp | None = None
        self._config = config
        self._settings = settings
        self._on_change = on_change
        self._child: Child | None = None
        self._page: StatusPage | None = None
        self._last_used = time.monotonic()  # by earlier processes
        self.epoch = settings.first_epoch  # of the current process, or of the next
        self.num_restarts = settings.num_restarts

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        return None if self._child is None else self._child.pid

    @property
    def last_used(self) -> float:
        """When it last had work, or was started, in monotonic seconds."""
        return max(self._last_used, 0.0 if self._page is None else self._page.last_work)

    def send(self, message: ControlMessage) -> None:
        """Send a message to the process, if there is one."""
        if self._child is not None:
            self._child.send(message)

    def remove_files(self) -> None:
        """Remove the files of its processes, once no client reads them."""
        for path in self._settings.folder.glob(f"engine-{self._settings.number}-*"):
            path.unlink(missing_ok=True)

    async def run(self) -> None:
        """Keep the engine process running until cancelled.

        Raises ConfigError, CheckpointError or EngineError if it does not start, EngineError if it
        dies again and again: each time before it has served for STEADY_SECONDS and ended a step.
        """
        deaths = 0
        while True:
            was_useful, is_outside = await self._run_once(self.epoch)
            self.epoch += 1
            deaths = 1 if was_useful else deaths + 1
            will_return = deaths < MAX_DEATHS
            self.up = None
            why = f"the engine died {deaths} times in a row; the log says how, start it again"
            down = EngineDown(
                name=self.name, will_return=will_return, is_blameless=is_outside, why=why
            )
            self._on_change(down)
            if not will_return:
                raise EngineError(why)
            self.num_restarts += 1
            await asyncio.sleep(BACKOFF_SECONDS[deaths - 1])

    async def _run_once(self, epoch: int) -> tuple[bool, bool]:
        """Run one process to its end.

        Returns whether it served steadily, and whether no request can have caused its end.
        """
        settings = self._settings
        stem = settings.folder / f"engine-{settings.number}-{epoch}"
        memory, number, address = settings.memory, settings.pages[epoch % 2], f"ipc://{stem}.sock"
        clear_page(memory, number)
        page, cause = StatusPage(memory, number), DeathCause()
        self._page = page
        first = StartEngine(
            config=self._config,
            epoch=epoch,
            num_restarts=self.num_restarts,
            address=address,
            memory=memory,
            page=number,
            log=settings.log,
        )
        child = self._child = await Child.spawn(ENGINE_MODULE, first, pass_fds=(memory,))
        begin = math.inf
        try:
            reply = await child.receive()
            if isinstance(reply, EngineStarted):
                self._on_started(reply.info, address, number)
                begin = time.monotonic()
                await self._watch(child, page, cause)
            elif isinstance(reply, StartFailed):
                if not self.started.done():
                    raise reply.as_error()
                logger.error("the engine could not start: %s", reply.message)
        finally:
            self._child = None
            status = await child.end()
            # not by steps alone: a fault at the first large batch comes after some steps
            was_useful = page.num_steps > 0 and time.monotonic() - begin > STEADY_SECONDS
            is_outside = cause.is_outside(status, had_work=page.has_work)
            self._last_used, self._page = self.last_used, None
            page.close()
        if not self.started.done():
            how = describe(status)
            text = f"the engine died while it was loading ({how}); it may lack memory"
            raise EngineError(text)
        text = "engine process %d of %s ended (%s)"
        logger.error(text, child.pid, self.name, describe(status))
        return was_useful, is_outside

    def _on_started(self, info: EngineInfo, address: str, page: int) -> None:
        self.up = EngineUp(
            name=self.name,
            config=self._config,
            info=info,
            address=address,
            page=page,
        )
        if not self.started.done():
            self.started.set_result(info)
        self._on_change(self.up)

    async def _watch(self, child: Child, page: StatusPage, cause: DeathCause) -> None:
        """Wait until the process has died, or its heartbeat is too old."""
        hang = self._settings.hang
        tick = _tick(hang)
        silence = Silence(tick)
        end = asyncio.ensure_future(
            child.receive()
        )  # an engine sends nothing more, so this is its end
        try:
            while not end.done():
                cause.watch()
                await asyncio.wait({end}, timeout=tick)
                if silence.seconds(page.age()) > hang > 0:
                    cause.hung(child.pid)
                    logger.error(
                        "engine process %d has had no heartbeat for %.0f s; it is killed",
                        child.pid,
                        page.age(),
                    )
                    return
        finally:
            end.cancel()


def _tick(hang: float) -> float:
    """Seconds between two looks at a heartbeat. hang: after how many it has hung; 0: never."""
    return min(1.0, hang / 10) if hang else 1.0


class WorkerParent(Protocol):
    """What a supervisor of API processes asks and reports to."""

    def statuses(self) -> list[ModelStatus]:
        """The current state of all models."""

    def reachable(self) -> Iterable[EngineUp]:
        """The engines that accept requests."""

    def on_message(self, client: str, message: ControlMessage) -> None:
        """Called with a message that an API process has sent."""

    def on_death(self, client: str) -> None:
        """Called when an API process has died."""


class WorkerSupervisor:
    """Keeps one API process running. client: the current process's name; None if there is none.

    index: of its heartbeat. hang: seconds without one after which it is killed; 0: never.
    """

    def __init__(
        self,
        module: str,
        first: StartWorker,
        parent: WorkerParent,
        heartbeats: WorkerHeartbeats,
        index: int,
        hang: float,
    ) -> None:
        self.ready = asyncio.Event()
        self.client: str | None = None
        self._module = module
        self._first = first
        self._parent = parent
        self._heartbeats, self._index, self._hang = heartbeats, index, hang
        self._child: Child | None = None
        self._is_leaving = False

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        return None if self._child is None else self._child.pid

    def send(self, message: ControlMessage) -> None:
        """Send a message to the process, if there is one."""
        if self._child is not None:
            self._child.send(message)

    def leave(self) -> None:
        """Ask the process to end when its requests are done; `run` returns then."""
        self._is_leaving = True
        if self._child is not None:
            self._child.terminate()

    async def run(self) -> None:
        """Keep it running. Raises EngineError if it dies again and again, or cannot start."""
        deaths = 0
        for incarnation in itertools.count():
            begin = time.monotonic()
            client = f"{self._first.client}.{incarnation}"
            how = await self._run_once(client)
            self._parent.on_death(client)
            if self._is_leaving:
                return
            logger.error("API process %s ended (%s)", client, how)
            deaths = 1 if time.monotonic() - begin > STEADY_SECONDS else deaths + 1
            if deaths >= MAX_DEATHS:
                text = f"an API process died {deaths} times in a row; the log says how"
                raise EngineError(text)
            await asyncio.sleep(BACKOFF_SECONDS[deaths - 1])

    async def _run_once(self, client: str) -> str:
        """Run one process to its end; returns how it ended."""
        models = self._parent.statuses()
        first = msgspec.structs.replace(self._first, client=client, models=models)
        inherited = (first.listener, first.admin, first.memory, first.counters)
        descriptors = tuple(fd for fd in inherited if fd is not None)
        self._heartbeats.clear(self._index)
        child = await Child.spawn(self._module, first, pass_fds=descriptors, low_priority=True)
        for status in self._parent.statuses():  # they may have changed meanwhile
            child.send(status)
        for up in self._parent.reachable():
            child.send(up)
        self._child, self.client = child, client
        if self._is_leaving:
            child.terminate()
        watch = asyncio.create_task(self._watch(child, client))
        try:
            while (message := await child.receive()) is not None:
                if isinstance(message, StartFailed):
                    raise message.as_error()
                if isinstance(message, WorkerReady):
                    self.ready.set()
                self._parent.on_message(client, message)
        finally:
            watch.cancel()
            self._child = self.client = None
            exit_status = await child.end()
        return describe(exit_status)

    async def _watch(self, child: Child, client: str) -> None:
        """Kill the process when its event loop gives no sign of life."""
        tick = _tick(self._hang)
        silence = Silence(tick)
        while self._hang:
            await asyncio.sleep(tick)
            if (age := silence.seconds(self._heartbeats.age(self._index))) > self._hang:
                text = "API process %s has had no heartbeat for %.0f s; it is killed"
                logger.error(text, client, age)
                child.kill()
                return
