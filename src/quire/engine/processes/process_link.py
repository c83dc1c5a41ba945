"""ProcessLink: the link from a frontend to an engine process and its successors. No torch.

Owns which process it is connected to. Frames and sockets are in ipc.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.core.messages import EngineMessage, StepOutput
from quire.engine.core.engine_info import EngineInfo
from quire.engine.frontend.request_tracker import RequestTracker
from quire.engine.processes.control_channel import EngineDown
from quire.engine.processes.ipc import EngineConnection
from quire.engine.processes.status_page import StatusPage
from quire.errors import EngineError, OverloadedError, QuireError


class ProcessLink:
    """A link to an engine process, and to the one that replaces it after a death."""

    def __init__(self, client: str, address: str, page: StatusPage) -> None:
        self.client = client
        self._listener: RequestTracker | None = None
        self._connect(address, page)

    def attach(self, listener: RequestTracker) -> None:
        """See `EngineLink`."""
        self._listener = listener

    @property
    def is_alive(self) -> bool:
        """Whether there is a connection to an engine process."""
        return self._connection is not None

    @property
    def last_work(self) -> float:
        """When the engine last had work, in monotonic seconds, by its status page."""
        return self._page.last_work

    @property
    def seconds_since_heartbeat(self) -> float:
        """Seconds since the last heartbeat on the status page."""
        return self._page.age()

    def send(self, messages: Sequence[EngineMessage]) -> Mapping[str, QuireError]:
        """Send messages, see `EngineLink`; without effect while there is no engine."""
        return {} if self._connection is None else self._connection.send(messages)

    def engine_died(self, down: EngineDown) -> None:
        """Deliver what has arrived, then report the engine's end."""
        was_alive = self.is_alive
        self._disconnect()
        if self._listener is None:  # nothing was sent yet
            return
        if not down.will_return:
            kind = OverloadedError if down.is_unload else EngineError
            text = down.why or "the engine has stopped; restart the server"
            self._listener.on_failure(kind(text))
        elif was_alive:
            self._listener.on_down(self._page.find_started, is_blameless=down.is_blameless)

    def engine_returned(self, info: EngineInfo, address: str, page: StatusPage) -> None:
        """Connect to another process."""
        self._disconnect()
        self._page.close()
        self._connect(address, page)
        if self._listener is not None:
            self._listener.on_up(info)

    async def close(self) -> None:
        """Disconnect; the engine aborts what it still runs for this client."""
        self._disconnect()

    def _connect(self, address: str, page: StatusPage) -> None:
        self._page = page
        self._connection: EngineConnection | None = EngineConnection(
            address, self.client, self._deliver
        )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _deliver(self, step: StepOutput) -> None:
        if self._listener is not None:
            self._listener.on_step(step)
