"""Ctrl-C, and errors of other signals' handlers, between two steps instead of within one.

Has effect in the main thread, which handles signals.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from threading import current_thread, main_thread
from types import FrameType

PATIENCE = 1.0  # seconds
# that a program may have a handler for: to look for one takes a microsecond
_NAMES = [
    "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1",
    "SIGUSR2", "SIGXCPU",
]  # fmt: skip
_SIGNALS = [number for number in signal.Signals if number.name in _NAMES]


class DeferredInterrupt:
    """A context in which what handlers of signals raise waits for `deliver`; they run at once.

    Python's and IPython's handlers of SIGINT raise KeyboardInterrupt, asyncio's cancels the task
    that runs, a timeout's raises an error of its own. What is raised when something else has waited
    for PATIENCE is not held back, so that a step that hangs can be left.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._is_active = True  # else handlers are called as if they were still the program's
        self._raised: BaseException | None = None
        self._since = 0.0  # when that was raised

    def __enter__(self) -> DeferredInterrupt:
        if current_thread() is main_thread():
            for number in _SIGNALS:
                if callable(handler := signal.getsignal(number)):
                    self._handlers[number] = handler
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_active = False
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._handle:  # not changed by the program meanwhile
                signal.signal(number, handler)
        self.deliver()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        cancels = _num_cancels()
        try:
            self._handlers[number](number, frame)
            if _num_cancels() > cancels:  # code that does not await would not notice it
                raise asyncio.CancelledError
        except BaseException as error:
            if self._raised is None:
                self._raised, self._since = error, time.monotonic()
            elif isinstance(self._raised, Exception):  # Ctrl-C goes before an error
                self._raised = error
            if not self._is_active or time.monotonic() - self._since > PATIENCE:
                self.deliver()

    def deliver(self) -> None:
        """Raise what the handler of a signal raised meanwhile.

        That is CancelledError where it has cancelled the running task.
        """
        error, self._raised = self._raised, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # which has this frame


def _num_cancels() -> int:
    """Requests to cancel the task that runs; 0 where there is none."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        return 0
    return 0 if task is None else task.cancelling()
