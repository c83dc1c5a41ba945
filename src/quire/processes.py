"""Other processes of this machine, and the end of this one."""

from __future__ import annotations

import os
import threading

# Set by whoever sees Ctrl-C end what this process does: its end then waits for nothing.
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
