"""The way from a front to an engine that runs in one process after another. No torch.

Owns which process it leads to; frames and sockets are ipc.py's.
"""

from __future__ import annotations

from pathlib import Path

from quire.core.messages import EngineMessage, StepOutput
from quire.engine.core.engine_info import EngineInfo
from quire.engine.frontend.engine_link import EngineListener
from quire.engine.processes.ipc import EngineConnection
from quire.engine.processes.status_page import StatusPage


class ProcessLink:
    """The way to an engine that runs in one process after another.

    Made for the first one. Raises FileNotFoundError if that is gone already.
    """

    def __init__(self, client: str, address: str, page_path: str) -> None:
        self.client = client
        self._listener: EngineListener | None = None
        self._connect(address, StatusPage(Path(page_path)))

    def attach(self, listener: EngineListener) -> None:
        """Tell this listener from now on."""
        self._listener = listener

    @property
    def is_alive(self) -> bool:
        """Whether the engine has not died, as far as is known here."""
        return self._connection is not None

    @property
    def num_bad_frames(self) -> int:
        """Frames of the engine that runs now which made no sense."""
        return 0 if self._connection is None else self._connection.num_bad_frames

    @property
    def last_work(self) -> float:
        """When it had work for the last time, as it shows; of a dead one, the last."""
        return self._page.last_work

    @property
    def seconds_since_heartbeat(self) -> float:
        """Since its last sign of life, as the parent sees it, too."""
        return self._page.age()

    def send(self, message: EngineMessage) -> None:
        """Pass a message on; without effect while there is no engine."""
        if self._connection is not None:
            self._connection.send(message)

    def engine_died(self, *, will_return: bool, why: str = "") -> None:
        """Deliver what it had told, then tell that it has ended. why: if it does not return."""
        if self._listener is None:
            return
        was_alive = self.is_alive
        self._hang_up()
        if not will_return:
            self._listener.on_failure(why or "the engine has stopped; restart the server")
        elif was_alive:
            self._listener.on_down(self._page.find_started)

    def engine_returned(self, info: EngineInfo, address: str, page_path: str) -> None:
        """Go on with another process. Raises FileNotFoundError if that is gone again."""
        page = StatusPage(Path(page_path))
        self._hang_up()
        self._page.close()
        self._connect(address, page)
        if self._listener is not None:
            self._listener.on_up(info)

    async def close(self) -> None:
        """Hang up; the engine forgets this client when the supervisor says so."""
        self._hang_up()

    def _connect(self, address: str, page: StatusPage) -> None:
        self._page = page
        self._connection: EngineConnection | None = EngineConnection(
            address, self.client, self._deliver
        )

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _deliver(self, step: StepOutput) -> None:
        if self._listener is not None:
            self._listener.on_step(step)
