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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module

MODULE = "quire.background"
# A tenth of what an equal would get where all cores are busy: it goes on, whatever others do.
NICENESS = 10
# Of a process with an event loop, for work that would block it, such as encoding long texts. With
# one for each core, or asyncio's own number (cores + 4), a flood of it would take the engine's.
NUM_THREADS = max(2, (os.cpu_count() or 1) // 2)
# After which a thread of an event loop's process gives the GIL to another: Python's own 5 ms, each
# time that the event loop wants it, would be most of a step.
SWITCH_SECONDS = 5e-4

# How often work that waits looks whether its caller is still there.
CHECK_SECONDS = 0.1
MOST_SECONDS = 2.0  # that a look may be late on a busy machine

# is_background: one of BackgroundThreads; is_hurried: inside `hurry`; caller: see `working_for`
_here = threading.local()


class TooLongError(Exception):
    """Work on an event loop takes too long; it is to begin anew in a thread."""


class CallerGoneError(Exception):
    """Nobody waits for the work any more: its client has gone, or its deadline has passed."""


class Caller:
    """Who waits for work in another thread; is_gone: no longer."""

    __slots__ = ("is_gone",)

    def __init__(self) -> None:
        self.is_gone = False


@contextmanager
def working_for(caller: Caller) -> Iterator[None]:
    """A context in which `check_caller` of this thread looks at this caller."""
    _here.caller = caller
    try:
        yield
    finally:
        _here.caller = None


def check_caller() -> None:
    """Raise CallerGoneError if nobody waits for what the calling thread does."""
    caller: Caller | None = getattr(_here, "caller", None)
    if caller is not None and caller.is_gone:
        raise CallerGoneError


def waits(seconds: float) -> Iterator[float]:
    """The seconds to wait for something, piece by piece, at least one, until they are over.

    A piece in which the process was stopped (SIGSTOP) counts as MOST_SECONDS. Raises
    CallerGoneError between two pieces.
    """
    left, before = seconds, time.monotonic()
    while True:
        check_caller()
        yield max(0.0, min(CHECK_SECONDS, left))
        before, begin = time.monotonic(), before
        left -= min(before - begin, MOST_SECONDS)
        if left <= 0.0:
            return


def lower_priority(process: int = 0, steps: int = NICENESS) -> None:
    """Lower the priority of a process that has just started; 0: the calling thread. Linux only."""
    if sys.platform == "linux":
        usual = os.getpriority(os.PRIO_PROCESS, 0)  # of the thread, whatever POSIX says
        os.setpriority(os.PRIO_PROCESS, process, min(19, usual + steps))


class BackgroundThreads(ThreadPoolExecutor):
    """Threads for Python code beside an event loop."""

    def __init__(self, num_threads: int, name: str) -> None:
        super().__init__(num_threads, name, partial(setattr, _here, "is_background", True))


def is_background() -> bool:
    """Whether the calling thread is one of BackgroundThreads."""
    return getattr(_here, "is_background", False)


@contextmanager
def hurry() -> Iterator[None]:
    """A context for work that delays an event loop; it may raise TooLongError."""
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
