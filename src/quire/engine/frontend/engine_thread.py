"""The engine core in a thread of its own. Messages go in by `send`, steps come out by a callback.

Owns the thread and its inbox. Importing this module does not import torch: the thread does.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from quire.config import EngineConfig
from quire.core.messages import EngineMessage, StepOutput

if TYPE_CHECKING:
    from quire.engine.core.engine_core import EngineCore
    from quire.engine.frontend.engine_info import EngineInfo

logger = logging.getLogger(__name__)


class EngineThread:
    """Runs one engine core until told to stop.

    on_step is called in this thread after each step, on_failure once if the loop breaks.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_step: Callable[[StepOutput], None],
        on_failure: Callable[[], None],
    ) -> None:
        self.started: Future[EngineInfo] = Future()
        self._config = config
        self._on_step = on_step
        self._on_failure = on_failure
        self._inbox: queue.SimpleQueue[EngineMessage | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="quire-engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs, or is about to."""
        return self._thread.is_alive()

    def send(self, message: EngineMessage) -> None:
        """Pass a message to the core; never blocks."""
        self._inbox.put(message)

    def stop(self) -> None:
        """End the loop after the step it is in, and wait for it; a start is not waited for."""
        self._inbox.put(None)
        if self.started.done():
            self._thread.join()

    def _run(self) -> None:
        from quire.engine.startup.start_engine import start_engine

        self.started.set_running_or_notify_cancel()  # whoever stops waiting cannot break it
        try:
            core, info = start_engine(self._config)
        except BaseException as failure:  # told to whoever waits for the start
            self.started.set_exception(failure)
            return
        self.started.set_result(info)
        try:
            self._serve(core)
        except Exception:
            logger.exception("the engine's loop broke")
            self._on_failure()

    def _serve(self, core: EngineCore) -> None:
        while True:
            while not core.has_work or not self._inbox.empty():
                message = self._inbox.get()
                if message is None:
                    return
                core.handle(message)
            self._on_step(core.step())
