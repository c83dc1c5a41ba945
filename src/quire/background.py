"""Work of low priority, which gives way to what makes or sends tokens.

A thread of low priority must not run Python beside an event loop: on a busy machine it may not run
for a tenth of a second, and while it has the GIL, the event loop waits with it. So Python code in
the background keeps the usual priority, and gives the GIL away within SWITCH_SECONDS; only compiled
code without the GIL (tokenizer/encoding_guard.py) and other processes have a low priority.

A thread that has lowered its priority cannot raise it again without privilege. So what gives way
only at first, such as a process that imports while others serve, does that in a thread that ends:
`python -m quire.background MODULE` imports so, and then runs the module's `main`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module

from quire.processes import no_thread

MODULE = "quire.background"
# Where all cores are busy, work in the background gets a tenth of the time of other work.
NICENESS = 10
# Threads of a process with an event loop for work that would block it, such as encoding long texts.
# With more, such as one for each core, much of such work would take the engine's cores.
NUM_THREADS = max(2, (os.cpu_count() or 1) // 2)
# In a process with an event loop, a thread gives the GIL to another after this time. With Python's
# default of 5 ms, the event loop would wait for most of a step whenever it needs the GIL.
SWITCH_SECONDS = 5e-4

POLL_SECONDS = 0.1  # between two checks whether a waiting thread's work was cancelled
MAX_POLL_SECONDS = 2.0  # the most that one such interval counts for, however long it took

# State of each thread. is_background: it is one of BackgroundThreads; is_hurried: it is inside
# `hurry`; cancel_flag: of the innermost `working_for`
_here = threading.local()


class TooLongError(Exception):
    """Work takes too long for an event loop; the caller repeats it in a thread."""


class CallerGoneError(Exception):
    """The work was cancelled: its client has gone, or its deadline has passed."""


class CancelFlag:
    """Tells work in another thread that its result is no longer needed, once is_set is True."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False


@contextmanager
def working_for(flag: CancelFlag) -> Iterator[None]:
    """A context in which this thread's work can be cancelled by a flag."""
    _here.cancel_flag = flag
    try:
        yield
    finally:
        _here.cancel_flag = None


def check_caller() -> None:
    """Raise CallerGoneError if the calling thread's work was cancelled."""
    flag: CancelFlag | None = getattr(_here, "cancel_flag", None)
    if flag is not None and flag.is_set:
        raise CallerGoneError


def poll_intervals(seconds: float) -> Iterator[float]:
    """Split a wait into intervals of at most POLL_SECONDS; there is at least one.

    Raises CallerGoneError before an interval if the calling thread's work was cancelled. An
    interval in which the process was stopped (SIGSTOP) counts as MAX_POLL_SECONDS.
    """
    left, before = seconds, time.monotonic()
    while True:
        check_caller()
        yield max(0.0, min(POLL_SECONDS, left))
        before, begin = time.monotonic(), before
        left -= min(before - begin, MAX_POLL_SECONDS)
        if left <= 0.0:
            return


def lower_priority(process: int = 0, steps: int = NICENESS) -> None:
    """Lower the priority of a process that has just started; 0: the calling thread. Linux only."""
    if sys.platform == "linux":
        usual = os.getpriority(os.PRIO_PROCESS, 0)  # Linux: of the thread, unlike in POSIX
        os.setpriority(os.PRIO_PROCESS, process, min(19, usual + steps))


def thread_clock() -> Callable[[], float]:
    """The processor seconds of the calling thread, for other threads to read; 0 once it ended."""
    if sys.platform != "linux":
        begin = time.monotonic()
        return lambda: time.monotonic() - begin
    clock = time.pthread_getcpuclockid(threading.get_ident())

    def seconds() -> float:
        with suppress(OSError):  # it has ended
            return time.clock_gettime(clock)
        return 0.0

    return seconds


class LazyThreads(ThreadPoolExecutor):
    """Threads that are started when first needed, where the system may have none left.

    With fewer of them work takes longer; `submit` raises OverloadedError while there is none.
    """

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                self._work_queue.get_nowait()  # else it would run later, though it was refused
                raise no_thread() from None


class BackgroundThreads(LazyThreads):
    """Threads for Python code beside an event loop."""

    def __init__(self, num_threads: int, name: str) -> None:
        super().__init__(num_threads, name, partial(setattr, _here, "is_background", True))


def is_background() -> bool:
    """Whether the calling thread is one of BackgroundThreads."""
    return getattr(_here, "is_background", False)


@contextmanager
def hurry() -> Iterator[None]:
    """A context for work on an event loop; what would take long there raises TooLongError."""
    before, _here.is_hurried = is_hurried(), True
    try:
        yield
    finally:
        _here.is_hurried = before


def is_hurried() -> bool:
    """Whether the calling thread is inside `hurry`."""
    return getattr(_here, "is_hurried", False)


def main() -> None:
    """Import the module that the command line names, and run it."""
    name = sys.argv[1]
    with ThreadPoolExecutor(1, initializer=lower_priority) as beside:
        module = beside.submit(import_module, name).result()
    module.main()


if __name__ == "__main__":
    main()
