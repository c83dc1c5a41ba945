"""Other processes of this machine, and the end of this one."""

from __future__ import annotations

import os
import threading

# Set when Ctrl-C ends this process: nothing is then waited for at exit.
interrupted = threading.Event()


def is_alive(pid: int) -> bool:
    """Whether some process that can be seen from here has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True
