"""ThreadLink: an engine core in a thread of this process. Only that thread imports torch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from quire.config import EngineConfig
from quire.core.messages import EngineMessage
from quire.engine.core.engine_info import EngineInfo
from quire.engine.frontend.request_tracker import RequestTracker
from quire.errors import EngineError, QuireError
from quire.processes import start_thread

if TYPE_CHECKING:  # the thread imports it, and NumPy with it
    from quire.engine.core.engine_core import EngineCore

logger = logging.getLogger(__name__)


class ThreadLink:
    """A link to an engine core that runs in a thread. Made on the event loop of its listener.

    Raises OverloadedError where no thread can be started.
    """

    client = "request"
    last_work = seconds_since_heartbeat = 0.0  # a thread has no status page

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._listener: RequestTracker | None = None
        self._loop = asyncio.get_running_loop()
        self._started: Future[EngineInfo] = Future()
        self._inbox: queue.SimpleQueue[Sequence[EngineMessage] | None] = queue.SimpleQueue()
        self._thread = start_thread(self._run, "quire-engine")

    async def started(self) -> EngineInfo:
        """Wait until the engine has started. Raises CheckpointError or ConfigError."""
        return await asyncio.wrap_future(self._started)

    @property
    def is_alive(self) -> bool:
        """Whether the engine's loop is running."""
        return self._thread.is_alive()

    def attach(self, listener: RequestTracker) -> None:
        """See `EngineLink`."""
        self._listener = listener

    def send(self, messages: Sequence[EngineMessage]) -> Mapping[str, QuireError]:
        """Pass messages to the core; see `EngineLink`. No request is too large."""
        self._inbox.put(messages)
        return {}

    async def close(self) -> None:
        """End the loop after the step in progress; a start in progress is not waited for."""
        self._inbox.put(None)
        if self._started.done():
            await asyncio.to_thread(self._thread.join)

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        from quire.engine.startup.start_engine import start_engine

        self._started.set_running_or_notify_cancel()  # a caller that stops waiting cannot break it
        try:
            core, info = start_engine(self._config)
        except BaseException as failure:  # raised where the start is awaited
            self._started.set_exception(failure)
            return
        self._started.set_result(info)
        try:
            self._serve(core)
        except Exception:
            logger.exception("the engine's loop failed")
            stopped = EngineError("the engine stopped; restart the server")
            self._on_loop(lambda it: it.on_failure(stopped))

    def _serve(self, core: EngineCore) -> None:
        while True:
            while not core.has_work or core.plan_delay or not self._inbox.empty():
                try:
                    messages = self._inbox.get(timeout=core.plan_delay if core.has_work else None)
                except queue.Empty:
                    break
                if messages is None:
                    return
                for message in messages:
                    core.handle(message)
            self._on_loop(partial(RequestTracker.on_step, step=core.step()))

    def _on_loop(self, call: Callable[[RequestTracker], None]) -> None:
        """Call the listener on its event loop; without effect once that is closed."""

        def run() -> None:
            if self._listener is not None:
                call(self._listener)

        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(run)
