"""Keeping processes alive: a supervisor starts one after another in the same place.

Owns when a process counts as dead or hung, and how often it is started again. What the others have
to know of it goes through callbacks to the supervisor.
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
from quire.engine.processes.child_process import Child
from quire.engine.processes.control_channel import (
    Control,
    EngineDown,
    EngineStarted,
    EngineUp,
    ModelStatus,
    StartEngine,
    StartFailed,
    StartWorker,
    WorkerReady,
)
from quire.engine.processes.status_page import StatusPage, create_page
from quire.errors import EngineError
from quire.logs import LogOptions

logger = logging.getLogger(__name__)

ENGINE_MODULE = "quire.engine.processes.engine_process"
MAX_DEATHS = 5  # of a process in a row
BACKOFF_SECONDS = (0.0, 0.5, 1.0, 2.0, 4.0)  # before a restart, by deaths in a row
STEADY_SECONDS = 10.0  # a process that served for so long did not die in a row


@dataclass(frozen=True, slots=True)
class EngineProcessSettings:
    """Where an engine's files lie, and how it is watched. hang: seconds, 0 for never.

    first_epoch: how many processes the model had before; num_restarts: how many of them took over
    from one that had died.
    """

    folder: Path
    number: int
    first_epoch: int
    hang: float
    log: LogOptions
    num_restarts: int = 0


class EngineSupervisor:
    """One model's engine, as long as it is wanted.

    on_change is called when it can be reached, and when it no longer can.
    """

    def __init__(
        self,
        name: str,
        config: EngineConfig,
        place: EngineProcessSettings,
        on_change: Callable[[EngineUp | EngineDown], None],
    ) -> None:
        self.name = name
        self.started: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self.up: EngineUp | None = None
        self._config = config
        self._place = place
        self._on_change = on_change
        self._child: Child | None = None
        self._page: StatusPage | None = None
        self._last_used = time.monotonic()  # by processes that are no more
        self.epoch = place.first_epoch  # of the process that runs, or comes next
        self.num_restarts = place.num_restarts

    @property
    def pid(self) -> int | None:
        """Of the process, None while there is none."""
        return None if self._child is None else self._child.pid

    @property
    def last_used(self) -> float:
        """When it had work for the last time, or was started; seconds of the monotonic clock."""
        return max(self._last_used, 0.0 if self._page is None else self._page.last_work)

    def send(self, message: Control) -> None:
        """Tell the process, if there is one."""
        if self._child is not None:
            self._child.send(message)

    def remove_files(self) -> None:
        """Remove what its processes have left; for when nobody is about to look at it."""
        for path in self._place.folder.glob(f"engine-{self._place.number}-*"):
            path.unlink(missing_ok=True)

    async def run(self) -> None:
        """Keep it running until cancelled.

        Raises ConfigError, CheckpointError or EngineError if it does not start, EngineError if it
        dies again and again: each time before it has served for STEADY_SECONDS and ended a step.
        """
        deaths = 0
        while True:
            was_steady = await self._live(self.epoch)
            self.epoch += 1
            deaths = 1 if was_steady else deaths + 1
            will_return = deaths < MAX_DEATHS
            self.up = None
            why = f"the engine died {deaths} times in a row; the log says how, start it again"
            self._on_change(EngineDown(name=self.name, will_return=will_return, why=why))
            if not will_return:
                raise EngineError(why)
            self.num_restarts += 1
            await asyncio.sleep(BACKOFF_SECONDS[deaths - 1])

    async def _live(self, epoch: int) -> bool:
        """One process, from its start to its end; returns whether it was of use for a while."""
        stem = self._place.folder / f"engine-{self._place.number}-{epoch}"
        page_path, address = stem.with_suffix(".page"), f"ipc://{stem.with_suffix('.sock')}"
        create_page(page_path)
        page = self._page = StatusPage(page_path)
        first = StartEngine(
            config=self._config,
            epoch=epoch,
            num_restarts=self.num_restarts,
            address=address,
            page_path=str(page_path),
            log=self._place.log,
        )
        child = self._child = await Child.spawn(ENGINE_MODULE, first)
        begin = math.inf
        try:
            reply = await child.receive()
            if isinstance(reply, EngineStarted):
                self._note_start(reply.info, address, page_path)
                begin = time.monotonic()
                await self._watch(child, page)
            elif isinstance(reply, StartFailed):
                if not self.started.done():
                    raise reply.as_error()
                logger.error("the engine could not start: %s", reply.message)
        finally:
            self._child = None
            how = await child.end()
            # steps alone say little: a fault at the first large batch comes after some
            was_steady = page.num_steps > 0 and time.monotonic() - begin > STEADY_SECONDS
            self._last_used, self._page = self.last_used, None
            page.close()
        if not self.started.done():
            text = f"the engine died while it was loading ({how}); it may lack memory"
            raise EngineError(text)
        logger.error("engine process %d of %s ended (%s)", child.pid, self.name, how)
        return was_steady

    def _note_start(self, info: EngineInfo, address: str, page_path: Path) -> None:
        self.up = EngineUp(
            name=self.name,
            config=self._config,
            info=info,
            address=address,
            page_path=str(page_path),
        )
        if not self.started.done():
            self.started.set_result(info)
        self._on_change(self.up)

    async def _watch(self, child: Child, page: StatusPage) -> None:
        """Wait until it has died, or hangs."""
        hang = self._place.hang
        end = asyncio.ensure_future(child.receive())  # engines say nothing more: this is their end
        try:
            while not end.done():
                await asyncio.wait({end}, timeout=min(1.0, hang / 10) if hang else None)
                if hang and page.age() > hang:
                    logger.error("engine process %d has hung for %.0f s", child.pid, page.age())
                    return
        finally:
            end.cancel()


class WorkerParent(Protocol):
    """Whom a supervisor of API processes asks and tells."""

    def conditions(self) -> list[ModelStatus]:
        """All models as they are now."""

    def reachable(self) -> Iterable[EngineUp]:
        """The engines that can be reached now."""

    def on_message(self, client: str, message: Control) -> None:
        """An API process has said this."""

    def on_death(self, client: str) -> None:
        """An API process has died."""


class WorkerSupervisor:
    """One place for API processes. client: the name of the one that is there, if there is."""

    def __init__(self, module: str, first: StartWorker, parent: WorkerParent) -> None:
        self.ready = asyncio.Event()
        self.client: str | None = None
        self._module = module
        self._first = first
        self._parent = parent
        self._child: Child | None = None
        self._is_leaving = False

    @property
    def pid(self) -> int | None:
        """Of the process, None while there is none."""
        return None if self._child is None else self._child.pid

    def send(self, message: Control) -> None:
        """Tell the process, if there is one."""
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
            how = await self._live(client)
            self._parent.on_death(client)
            if self._is_leaving:
                return
            logger.error("API process %s ended (%s)", client, how)
            deaths = 1 if time.monotonic() - begin > STEADY_SECONDS else deaths + 1
            if deaths >= MAX_DEATHS:
                text = f"an API process died {deaths} times in a row; the log says how"
                raise EngineError(text)
            await asyncio.sleep(BACKOFF_SECONDS[deaths - 1])

    async def _live(self, client: str) -> str:
        """One process, from its start to its end; returns how it ended."""
        models = self._parent.conditions()
        first = msgspec.structs.replace(self._first, client=client, models=models)
        sockets = tuple(fd for fd in (first.listener, first.admin) if fd is not None)
        child = await Child.spawn(self._module, first, pass_fds=sockets, gently=True)
        for condition in self._parent.conditions():  # it may have changed meanwhile
            child.send(condition)
        for up in self._parent.reachable():
            child.send(up)
        self._child, self.client = child, client
        if self._is_leaving:
            child.terminate()
        try:
            while (message := await child.receive()) is not None:
                if isinstance(message, StartFailed):
                    raise message.as_error()
                if isinstance(message, WorkerReady):
                    self.ready.set()
                self._parent.on_message(client, message)
        finally:
            self._child = self.client = None
            how = await child.end()
        return how
