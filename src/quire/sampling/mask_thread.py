"""MaskThread: work in a thread that is left behind where one piece of it takes too long.

A grammar may be written so that one mask takes many seconds (docs/structured-outputs.md, "What it
costs"), and the library that computes it cannot be stopped. All other requests of the step wait for
this work, so it is given up; the thread goes on, with low priority, until its end.
"""

from __future__ import annotations

import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from quire.background import lower_priority, thread_clock

Work = Callable[[], object]
Report = Callable[[int, float | None], object]
_POLL_SECONDS = 0.02
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


class MaskThread:
    """Calls functions one after another in a thread, which is started when first needed."""

    def __init__(self) -> None:
        self._thread: _Thread | None = None

    def run(self, work: Sequence[Work], most: float, report: Report) -> None:
        """Call functions in order; report (index, seconds of processor time) of each.

        None where it would be more than `most`, or an interrupt has come meanwhile: such a function
        may go on, and none is called before that is reported. Raises what a function raises.
        """
        done = 0
        while done < len(work):
            part = _Part(work[done:])
            try:
                self._run_part(part, most)
            finally:
                for seconds in part.seconds:
                    report(done, seconds)
                    done += 1
            if part.error is not None:
                raise part.error

    def _run_part(self, part: _Part, most: float) -> None:
        """Run functions until the first that is given up."""
        if (thread := self._thread) is None:
            thread = _Thread()
            try:
                thread.start()
            except RuntimeError:  # the system has none left: nothing is given up then
                part.call(time.thread_time)
                return
            thread.at_end = weakref.finalize(self, partial(thread.parts.put, None))
        self._thread = None  # in case that it is left behind
        try:
            thread.parts.put(part)
            while not part.is_done.wait(_POLL_SECONDS):
                if part.takes_more(thread.clock, most):
                    part.leave()
                    lower_priority(thread.native_id or 0)
                    return
            self._thread = thread
        finally:
            if self._thread is None:
                part.leave()
                thread.at_end.detach()
                thread.parts.put(None)


class _Part:
    """Functions that are called in order, until one is given up. seconds: those of each so far."""

    def __init__(self, work: Sequence[Work]) -> None:
        self._work = work
        self.seconds: list[float | None] = []
        self.error: BaseException | None = None
        self.is_done = threading.Event()
        self._begin: float | None = None  # of the function that is being called
        self._lock = threading.Lock()

    def call(self, clock: Callable[[], float]) -> None:
        """Call them in this thread, whose clock it is."""
        try:
            for function in self._work:
                self._begin = clock()
                function()
                with self._lock:
                    if self.is_done.is_set():  # given up
                        return
                    self.seconds.append(clock() - self._begin)
                    self._begin = None
        except BaseException as error:  # raised where it is waited for
            self.error = error
        self.is_done.set()

    def takes_more(self, clock: Callable[[], float], most: float) -> bool:
        """Whether its present function has taken more than `most`."""
        begin = self._begin
        return begin is not None and clock() - begin > most

    def leave(self) -> None:
        """Let the function that is being called, if there is one, be the last."""
        with self._lock:
            if self._begin is not None and not self.is_done.is_set():
                self.seconds.append(None)
            self.is_done.set()


class _Thread(threading.Thread):
    """Calls the functions of parts in turn; None ends it."""

    def __init__(self) -> None:
        super().__init__(name="quire-masks", daemon=True)
        self.parts: SimpleQueue[_Part | None] = SimpleQueue()
        self.clock: Callable[[], float] = lambda: 0.0  # until it has started
        self.at_end: weakref.finalize[[], MaskThread]

    def run(self) -> None:
        # else it might take a signal, and the main thread hear of it when this one runs next
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self.clock = thread_clock()
        while (part := self.parts.get()) is not None:
            part.call(self.clock)
