"""The engine process: `python -m quire.engine.processes.engine_process`, started by the supervisor
alone.

Owns the loop between the socket and the core. It holds no state that its clients could not send
again, so it may be killed at any time: with its parent, or by a signal.
"""

from __future__ import annotations

import gc
import logging
import signal
import time
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
    EngineStarted,
    ParentConnection,
    StartEngine,
    StartFailed,
)
from quire.engine.processes.ipc import EngineSocket, Sent
from quire.engine.processes.outbox import ClientOutboxes
from quire.engine.processes.status_page import StatusPage
from quire.engine.startup.torch_import import dedicated_start
from quire.errors import EngineError, UserError
from quire.logs import configure_logging, num_dropped_lines

if TYPE_CHECKING:
    from quire.engine.core.engine_core import EngineCore

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.1  # between heartbeats while idle
COLLECT_EVERY = 20_000  # new objects; steps make thousands without cycles
STATS_SECONDS = 0.25  # between frames with statistics to clients that get no deltas


def main() -> None:
    """Start the engine as the parent says, report, and serve until killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    line = ParentConnection()
    start = line.receive()
    assert isinstance(start, StartEngine)
    configure_logging(start.log)
    line.follow(lambda _: None)  # nothing more comes, but its end
    try:
        page = StatusPage(start.memory, start.page, writable=True)
        core, info = _start_engine(start.config, page)
        socket = EngineSocket(start.address)
        engine = EngineProcess(core, socket, page, start.epoch, start.num_restarts)
    except UserError as error:
        line.send(StartFailed.by(error))
        return
    except Exception:
        logger.exception("the engine cannot start")  # the parent has no traceback
        line.send(StartFailed.by(EngineError("the engine could not start; the log says why")))
        return
    line.send(EngineStarted(info=info))
    gc.collect()
    gc.freeze()  # keeps the model out of full collections
    gc.set_threshold(COLLECT_EVERY)
    gc.enable()
    engine.run()


def _start_engine(config: EngineConfig, page: StatusPage) -> tuple[EngineCore, EngineInfo]:
    begin = time.monotonic()
    with dedicated_start(config):
        from quire.engine.startup.start_engine import start_engine

        return start_engine(config, page.heartbeat_within_step, begin)


class EngineProcess:
    """One engine core with its socket, its clients' outboxes and its status page."""

    def __init__(
        self,
        core: EngineCore,
        socket: EngineSocket,
        page: StatusPage,
        epoch: int = 0,
        num_restarts: int = 0,
    ) -> None:
        self._core = core
        self._socket = socket
        self._page = page
        self._clients = ClientOutboxes()
        self._epoch, self._num_restarts = epoch, num_restarts
        self._stats = self._with_epoch(core.stats)
        self._stats_sent_at = 0.0  # when all clients last got statistics
        core.on_start = self._page.record_started

    def run(self) -> None:
        """Run the engine until the process is killed."""
        while True:
            self.run_once(IDLE_SECONDS)

    def run_once(self, timeout: float) -> None:
        """Receive messages, run a step, send outputs. timeout: seconds to wait while idle."""
        core = self._core
        self._receive(0.0 if core.has_work else timeout)
        # after messages: a request may end an idle engine in its first step, and must be blamed
        self._page.heartbeat(self._stats.num_steps, has_work=core.has_requests)
        if core.has_work:
            step = core.step()
            self._clients.put(step.deltas)
            self._stats = self._with_epoch(step.stats)
            if step.view is not None:
                self._clients.put_view(step.view)
        self._send_outputs()

    def _receive(self, timeout: float) -> None:
        """Handle all messages that come before a plan. timeout: seconds to wait for the first."""
        while True:
            for client, messages in self._socket.receive(timeout):
                for message in messages:
                    self._handle(client, message)
            if not (timeout := self._core.plan_delay):
                return

    def _with_epoch(self, stats: EngineStats) -> EngineStats:
        """Add what is of the process: its number, as each of a model counts from zero; its log."""
        stats.epoch, stats.num_restarts = self._epoch, self._num_restarts
        stats.num_dropped_log_lines = num_dropped_lines()
        return stats

    def _handle(self, client: bytes, message: EngineMessage) -> None:
        if isinstance(message, GetEngineView):
            self._clients.outbox_of(client).wants_view = True
        if isinstance(message, AddRequest) and not self._clients.add(client, message.request_id):
            self._socket.num_bad_frames += 1
        else:
            self._core.handle(message)

    def _send_outputs(self) -> None:
        """Send each client a frame with its deltas; now and then one with statistics alone.

        A client that has died is noticed so, and its requests are aborted.
        """
        now = time.monotonic()
        everyone = now - self._stats_sent_at > STATS_SECONDS
        if everyone:
            self._stats_sent_at = now
            self._stats = self._with_epoch(self._core.stats)  # messages change it without a step
        self._stats.num_bad_frames = self._socket.num_bad_frames
        for client, outbox in self._clients.waiting(everyone=everyone):
            deltas = list(outbox.ready.values())
            output = StepOutput(deltas=deltas, stats=self._stats, view=outbox.view)
            match self._socket.send(client, output):
                case Sent.OK:
                    outbox.clear()
                case Sent.GONE:
                    if orphans := self._clients.forget(client):
                        self._core.handle(AbortRequests(request_ids=orphans))
                case Sent.FULL:  # its deltas are joined with later ones
                    outbox.is_full = True


if __name__ == "__main__":
    main()
