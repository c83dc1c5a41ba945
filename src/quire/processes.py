"""Other processes of this machine, and the end of this one."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Set when Ctrl-C ends this process: nothing is then waited for at exit.
interrupted = threading.Event()
_DETACHED = "quire-detached"  # the name of threads that are not waited for
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def is_alive(pid: int) -> bool:
    """Whether some process that can be seen from here has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, even if no thread can run."""
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def in_detached_thread(work: Callable[[], T]) -> T:
    """The result of work, such as a download, that may be left behind when this process ends."""
    import asyncio  # takes a while
    from concurrent.futures import Future

    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # a caller that stops waiting cannot break it

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as failure:  # raised where it is awaited
            done.set_exception(failure)

    threading.Thread(target=run, name=_DETACHED, daemon=True).start()
    return await asyncio.wrap_future(done)


def end_with(status: int) -> int:
    """The exit status; where a detached thread still runs, this process ends here.

    Python would wait for the threads which that one has started.
    """
    if any(thread.name == _DETACHED for thread in threading.enumerate()):
        import logging

        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
