"""Ctrl-C between two steps instead of within one. Has effect in the main thread, which gets it."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

PATIENCE = 1.0  # seconds


class DeferredInterrupt:
    """A context in which SIGINT waits for `deliver`, where the handler from before is called.

    That may raise KeyboardInterrupt (as Python's and IPython's do), cancel the task that runs
    (asyncio's), or do anything else. One that comes when another has waited for PATIENCE is handled
    at once, so that a step that hangs can be left.
    """

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], object] | None = None
        self._since: float | None = None  # when the one that waits came
        self._frame: FrameType | None = None

    def __enter__(self) -> DeferredInterrupt:
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._handler = handler
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        self.deliver()

    def _note(self, _number: int, frame: FrameType | None) -> None:
        now, self._frame = time.monotonic(), frame
        if self._since is None:
            self._since = now
        elif now - self._since > PATIENCE:
            self.deliver()

    def deliver(self) -> None:
        """Handle a SIGINT that came meanwhile. Raises what its handler raises, or CancelledError.

        The latter where the handler has cancelled the running task: code that does not await would
        not notice it.
        """
        if self._since is not None and self._handler is not None:
            frame, self._frame, self._since = self._frame, None, None
            self._handler(signal.SIGINT, frame)
            if _is_cancelled():
                raise asyncio.CancelledError


def _is_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        return False
    return task is not None and task.cancelling() > 0
