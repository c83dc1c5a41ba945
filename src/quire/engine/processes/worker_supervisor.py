"""Supervisor of one API process: starts it, watches it and restarts it.

Owns when the process counts as dead or hung. `WorkerParent` is what it knows of the server
supervisor (server_supervisor.py).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

import msgspec

from quire.engine.processes import liveness
from quire.engine.processes.child_process import Child, SpawnError, describe
from quire.engine.processes.control_channel import (
    ControlMessage,
    EngineUp,
    ModelStatus,
    StartFailed,
    StartWorker,
    WorkerReady,
)
from quire.engine.processes.liveness import Deaths, LoadProgress, Silence
from quire.engine.processes.status_page import StatusPage, new_page
from quire.errors import EngineError

logger = logging.getLogger(__name__)


class WorkerParent(Protocol):
    """Interface of the parent of API processes: questions and events of their supervisor."""

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

    first: what each process gets first, but for its name and the models. hang: seconds without a
    heartbeat after which it is killed; load: seconds without progress before the first one; 0:
    never.
    """

    def __init__(
        self,
        module: str,
        first: StartWorker,
        parent: WorkerParent,
        hang: float,
        load: float,
    ) -> None:
        self.ready = asyncio.Event()
        self.client: str | None = None
        self._module = module
        self._first = first
        self._parent = parent
        self._hang, self._load = hang, load
        self._child: Child | None = None
        self._leaving = asyncio.Event()

    def send(self, message: ControlMessage) -> None:
        """Send a message to the process, if there is one."""
        if self._child is not None:
            self._child.send(message)

    def leave(self) -> None:
        """Ask the process to end when its requests are done; `run` returns then."""
        self._leaving.set()
        if self._child is not None:
            self._child.terminate()

    async def run(self) -> None:
        """Keep it running. Raises EngineError if it dies again and again, or is not started."""
        deaths = Deaths()
        for incarnation in itertools.count():
            begin = time.monotonic()
            client = f"{self._first.row}.{incarnation}"
            try:
                how = await self._run_once(client)
                deaths.add(was_steady=time.monotonic() - begin > liveness.STEADY_SECONDS)
            except SpawnError as error:
                if not self.ready.is_set():
                    raise
                how = str(error)
                deaths.add_lack()
            self._parent.on_death(client)
            if self._leaving.is_set():
                return
            logger.error("API process %s ended (%s)", client, how)
            if deaths.are_too_many:
                raise EngineError(f"an API process {deaths.summary}; the log says how")
            with suppress(TimeoutError):
                async with asyncio.timeout(deaths.pause):
                    await self._leaving.wait()
                    return

    async def _run_once(self, client: str) -> str:
        """Run one process to its end; returns how it ended."""
        models = self._parent.statuses()
        first = msgspec.structs.replace(self._first, client=client, models=models)
        inherited = (*first.listeners, first.admin, first.memory, first.counters)
        descriptors = tuple(fd for fd in inherited if fd is not None)
        page = new_page(first.memory, first.row)
        child = await Child.spawn(self._module, first, pass_fds=descriptors, low_priority=True)
        for status in self._parent.statuses():  # they may have changed meanwhile
            child.send(status)
        for up in self._parent.reachable():
            child.send(up)
        self._child, self.client = child, client
        if self._leaving.is_set():
            child.terminate()
        watch = asyncio.create_task(self._watch(child, page, client))
        try:
            while (message := await child.receive()) is not None:
                if isinstance(message, StartFailed):
                    if not self.ready.is_set():
                        raise message.as_error()
                    return message.message  # it did start before, and may again
                if isinstance(message, WorkerReady):
                    self.ready.set()
                self._parent.on_message(client, message)
        finally:
            watch.cancel()
            page.close()
            self._child = self.client = None
            exit_status = await child.end()
        return describe(exit_status)

    async def _watch(self, child: Child, page: StatusPage, client: str) -> None:
        """Kill the process when its event loop gives no sign of life, or does not get that far."""
        if self._load:
            await self._wait_for_start(child, page, client)
        silence = Silence(self._hang)
        while self._hang:
            await asyncio.sleep(silence.tick)
            if (age := silence.seconds(page.age())) > self._hang:
                text = "API process %s has had no heartbeat for %.0f s; it is killed"
                logger.error(text, client, age)
                child.kill()
                return

    async def _wait_for_start(self, child: Child, page: StatusPage, client: str) -> None:
        """Wait for the first heartbeat; kill the process when it makes no progress."""
        progress = LoadProgress(child.pid, self._load)
        while not page.age():
            await asyncio.sleep(progress.tick)
            if (idle := progress.idle_seconds()) > self._load:
                text = "API process %s made no progress for %.0f s while it started; it is killed"
                logger.error(text, client, idle)
                child.kill()
                return
