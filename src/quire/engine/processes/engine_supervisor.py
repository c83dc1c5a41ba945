"""Supervisor of one model's engine process, its watchdog: starts and restarts it.

Owns when the process counts as dead or hung. A callback reports to the server supervisor
(server_supervisor.py).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from quire.engine.core.engine_info import EngineInfo
from quire.engine.processes import liveness
from quire.engine.processes.child_process import Child, SpawnError, describe
from quire.engine.processes.control_channel import (
    ControlMessage,
    EngineDown,
    EngineStarted,
    EngineUp,
    StartEngine,
    StartFailed,
)
from quire.engine.processes.death_cause import DeathCause
from quire.engine.processes.liveness import (
    NOTE_SECONDS,
    Deaths,
    LoadProgress,
    Silence,
    open_files,
)
from quire.engine.processes.status_page import StatusPage, new_page
from quire.errors import EngineError

logger = logging.getLogger(__name__)

SOCKET = "ipc://"  # before a path, in ZeroMQ's addresses
ENGINE_MODULE = "quire.engine.processes.engine_process"


class EngineSupervisor:
    """Keeps one model's engine process running until `run` is cancelled.

    first: what the first process gets first, with the part of the address that all have. pages:
    numbers of two, for processes in turn, so that the last one's can be read while the next one
    starts. on_change: called when the engine accepts requests, and when it no longer does. hang:
    seconds without a heartbeat after which a process is killed; load: seconds without progress
    while it loads the model; 0: never.
    """

    def __init__(
        self,
        name: str,
        first: StartEngine,
        pages: tuple[int, int],
        on_change: Callable[[EngineUp | EngineDown], None],
        hang: float,
        load: float,
    ) -> None:
        self.name = name
        self.started: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self.up: EngineUp | None = None
        self._first, self._pages = first, pages
        self._on_change = on_change
        self._hang, self._load = hang, load
        self._page: StatusPage | None = None
        self._last_used = time.monotonic()  # by earlier processes
        self.epoch = first.epoch  # of the current process, or of the next
        self.num_restarts = first.num_restarts

    @property
    def last_used(self) -> float:
        """When it last had work, or was started, in monotonic seconds."""
        return max(self._last_used, 0.0 if self._page is None else self._page.last_work)

    async def run(self) -> None:
        """Keep the engine process running until cancelled.

        Raises ConfigError, CheckpointError or EngineError if it does not start, EngineError if it
        dies again and again (each time before it has served for STEADY_SECONDS and ended a step)
        or cannot be started again.
        """
        deaths = Deaths()
        while True:
            try:
                was_useful, is_outside = await self._run_once()
                deaths.add(was_steady=was_useful)
                self.num_restarts += 1
            except SpawnError as error:
                if not self.started.done():
                    raise
                logger.error("engine of %s: %s", self.name, error)
                is_outside = True
                deaths.add_lack()
            self.epoch += 1
            will_return = not deaths.are_too_many
            self.up = None
            why = f"the engine {deaths.summary}; the log says how, start it again"
            down = EngineDown(
                name=self.name, will_return=will_return, is_blameless=is_outside, why=why
            )
            self._on_change(down)
            if not will_return:
                raise EngineError(why)
            await asyncio.sleep(deaths.pause)

    async def _run_once(self) -> tuple[bool, bool]:
        """Run one process to its end.

        Returns whether it served steadily, and whether no request can have caused its end.
        """
        first = msgspec.structs.replace(
            self._first,
            epoch=self.epoch,
            num_restarts=self.num_restarts,
            address=f"{self._first.address}-{self.epoch}",
            page=self._pages[self.epoch % 2],
        )
        page = new_page(first.memory, first.page)
        child = await Child.spawn(ENGINE_MODULE, first, pass_fds=(first.memory,))
        self._page, cause = page, DeathCause()
        begin = math.inf
        try:
            reply = await self._wait_for_load(child)
            if isinstance(reply, EngineStarted):
                self._on_started(reply.info, first.address, first.page)
                begin = time.monotonic()
                await self._watch(child, page, cause)
            elif isinstance(reply, StartFailed):
                if not self.started.done():
                    raise reply.as_error()
                logger.error("the engine could not start: %s", reply.message)
        finally:
            status = await child.end()
            Path(first.address.removeprefix(SOCKET)).unlink(missing_ok=True)
            # not by steps alone: a fault at the first large batch comes after some steps
            was_useful = page.num_steps > 0 and time.monotonic() - begin > liveness.STEADY_SECONDS
            is_outside = cause.is_outside(status, had_work=page.has_work)
            self._last_used, self._page = self.last_used, None
            page.close()
        if not self.started.done():
            how = describe(status)
            text = f"the engine died while it was loading ({how}); it may lack memory or threads"
            raise EngineError(text)
        text = "engine process %d of %s ended (%s)"
        logger.error(text, child.pid, self.name, describe(status))
        return was_useful, is_outside

    async def _wait_for_load(self, child: Child) -> ControlMessage | None:
        """The process's first message; None once it has died.

        Raises EngineError if the first process makes no progress for too long.
        """
        limit, is_logged = self._load, False
        progress = LoadProgress(child.pid, limit)
        reply = asyncio.ensure_future(child.receive())
        try:
            while not reply.done():
                await asyncio.wait({reply}, timeout=progress.tick)
                idle = progress.idle_seconds()
                if idle > limit > 0:
                    text = (
                        f"engine process {child.pid} of {self.name} made no progress for "
                        f"{idle:.0f} s while it loaded the model, and is killed; it has "
                        f"{open_files(child.pid)} open; see whether the storage of its files "
                        "answers, or raise --engine-load-timeout"
                    )
                    if not self.started.done():
                        raise EngineError(text)
                    logger.error("%s", text)
                    return None
                if idle > NOTE_SECONDS and not is_logged:
                    is_logged = True
                    logger.warning(
                        "engine process %d of %s has made no progress for %.0f s while it loads "
                        "the model; it has %s open",
                        child.pid, self.name, idle, open_files(child.pid),
                    )  # fmt: skip
            return reply.result()
        finally:
            reply.cancel()

    def _on_started(self, info: EngineInfo, address: str, page: int) -> None:
        self.up = EngineUp(
            name=self.name,
            config=self._first.config,
            info=info,
            address=address,
            page=page,
        )
        if not self.started.done():
            self.started.set_result(info)
        self._on_change(self.up)

    async def _watch(self, child: Child, page: StatusPage, cause: DeathCause) -> None:
        """Wait until the process has died, or its heartbeat is too old."""
        silence = Silence(self._hang)
        # an engine sends nothing more, so this is its end
        end = asyncio.ensure_future(child.receive())
        try:
            while not end.done():
                cause.watch()
                await asyncio.wait({end}, timeout=silence.tick)
                if silence.seconds(page.age()) > self._hang > 0:
                    cause.hung(child.pid)
                    logger.error(
                        "engine process %d has had no heartbeat for %.0f s; it is killed",
                        child.pid,
                        page.age(),
                    )
                    return
        finally:
            end.cancel()
