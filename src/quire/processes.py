"""Other processes of this machine, and the end of this one."""

from __future__ import annotations

import os
import sys
import threading

# Set when Ctrl-C ends this process: nothing is then waited for at exit.
interrupted = threading.Event()
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
