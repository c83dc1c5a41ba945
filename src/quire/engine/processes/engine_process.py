"""The engine process: `python -m quire.engine.processes.engine_process`, started by the supervisor
alone.

Owns the loop between the socket and the core. It has no state that its clients could not replay,
so it ends by being ended: with its parent, or by a signal.
"""

from __future__ import annotations

import gc
import logging
import queue
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from quire.config import EngineConfig
from quire.core.messages import (
    AbortRequests,
    AddRequest,
    EngineMessage,
    EngineStats,
    GetEngineView,
    StepOutput,
)
from quire.engine.core.engine_info import EngineInfo
from quire.engine.processes.control_channel import (
    Control,
    EngineStarted,
    ForgetClient,
    ParentConnection,
    StartEngine,
    StartFailed,
)
from quire.engine.processes.ipc import EngineSocket, Sent
from quire.engine.processes.outbox import Clients
from quire.engine.processes.status_page import StatusPage
from quire.engine.startup.torch_import import dedicated_start
from quire.errors import EngineError, UserError
from quire.logs import configure_logging

if TYPE_CHECKING:
    from quire.engine.core.engine_core import EngineCore

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.1  # between signs of life while there is nothing to do
COLLECT_EVERY = 20_000  # new objects; steps make thousands and leave no cycles
STATS_SECONDS = 0.25  # between the stats of clients that get no other news


def main() -> None:
    """Start as the parent says, report, and serve until killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    line = ParentConnection()
    start = line.receive()
    assert isinstance(start, StartEngine)
    configure_logging(start.log)
    orders: queue.SimpleQueue[Control] = queue.SimpleQueue()
    line.follow(orders.put)
    try:
        page = StatusPage(Path(start.page_path), writable=True)
        core, info = _start_engine(start.config, page)
        socket = EngineSocket(start.address)
        engine = EngineProcess(core, socket, page, orders, start.epoch, start.num_restarts)
    except UserError as error:
        line.send(StartFailed.by(error))
        return
    except Exception:
        logger.exception("this is why the engine cannot start")  # the parent has no trace to show
        line.send(StartFailed.by(EngineError("the engine could not start; the log says why")))
        return
    line.send(EngineStarted(info=info))
    gc.collect()
    gc.freeze()  # model and tables stay; each full collection would look through all of them
    gc.set_threshold(COLLECT_EVERY)
    gc.enable()
    engine.run()


def _start_engine(config: EngineConfig, page: StatusPage) -> tuple[EngineCore, EngineInfo]:
    if config.model.load_format == "null":  # comes up in no time, since it needs no torch
        from quire.engine.startup.null_engine import start_null_engine

        return start_null_engine(config)
    begin = time.monotonic()
    with dedicated_start(config):
        from quire.engine.startup.start_engine import start_engine

        return start_engine(config, page.heartbeat_within_step, begin)


class EngineProcess:
    """One core, its socket and its page."""

    def __init__(
        self,
        core: EngineCore,
        socket: EngineSocket,
        page: StatusPage,
        orders: queue.SimpleQueue[Control],
        epoch: int = 0,
        num_restarts: int = 0,
    ) -> None:
        self._core = core
        self._socket = socket
        self._page = page
        self._orders = orders
        self._clients = Clients()
        self._epoch, self._num_restarts = epoch, num_restarts
        self._stats = self._stamped(core.stats)
        self._told_at = 0.0  # when everyone last got stats
        core.on_start = self._page.record_started

    def run(self) -> None:
        """Serve for ever."""
        while True:
            self.turn(IDLE_SECONDS)

    def turn(self, patience: float) -> None:
        """Take what has come, run a step, tell the news. patience: seconds to wait if idle."""
        core = self._core
        self._page.heartbeat(self._stats.num_steps, has_work=core.has_work)
        for client, messages in self._socket.receive(0.0 if core.has_work else patience):
            for message in messages:
                self._handle(client, message)
        while not self._orders.empty():
            self._obey(self._orders.get())
        if core.has_work:
            step = core.step()
            self._clients.put(step.deltas)
            self._stats = self._stamped(step.stats)
            if step.view is not None:
                self._clients.show(step.view)
        self._tell()

    def _stamped(self, stats: EngineStats) -> EngineStats:
        """Whose figures they are: each process of a model counts from nothing."""
        stats.epoch, stats.num_restarts = self._epoch, self._num_restarts
        return stats

    def _handle(self, client: bytes, message: EngineMessage) -> None:
        if isinstance(message, GetEngineView):
            self._clients.know(client).is_watching = True
        if isinstance(message, AddRequest) and not self._clients.add(client, message.request_id):
            self._socket.num_bad_frames += 1
        else:
            self._core.handle(message)

    def _obey(self, order: Control) -> None:
        if isinstance(order, ForgetClient):
            self._forget(order.client.encode())

    def _forget(self, client: bytes) -> None:
        if orphans := self._clients.forget(client):
            self._core.handle(AbortRequests(request_ids=orphans))

    def _tell(self) -> None:
        """Send each client one frame with what is ready for it; now and then one without news."""
        self._stats.num_bad_frames = self._socket.num_bad_frames
        now = time.monotonic()
        everyone = now - self._told_at > STATS_SECONDS
        if everyone:
            self._told_at = now
        for client, outbox in self._clients.waiting(everyone=everyone):
            deltas = list(outbox.ready.values())
            news = StepOutput(deltas=deltas, stats=self._stats, view=outbox.view)
            match self._socket.send(client, news):
                case Sent.OK:
                    outbox.clear()
                case Sent.GONE:
                    self._forget(client)
                case Sent.FULL:  # it is joined to what comes next
                    pass


if __name__ == "__main__":
    main()
