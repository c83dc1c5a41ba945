"""Work that leaves something on disk, done by forked processes: these have interpreters of their
own, and so do not share a lock. Owns the processes; knows nothing of kernels.

They are forked when the first piece of work is there, begin with it while others are still being
found, and whoever is free takes the next. They have what this process had at that moment, and hear
of all that came later by messages.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_PR_SET_PDEATHSIG = 1
_MOST_BYTES = 1 << 16  # of a piece of work
_PATIENCE = 300.0  # seconds at the end


class ForkedWorkers:
    """So many processes that call `work` with what is put.

    Nobody hears what a call gives, or how it fails: what it leaves on disk is all.
    """

    def __init__(self, num_processes: int, work: Callable[..., object]) -> None:
        self._num_processes = num_processes
        self._work = work
        self._foreman = 0
        self._line: socket.socket | None = None

    def put(self, *arguments: Any) -> None:
        """Have one of them make a call with these, which JSON can carry."""
        with suppress(OSError):  # there is no process to be had, or they have died
            if self._line is None:
                self._line = self._start()
            self._line.send(json.dumps(arguments).encode())

    def finish(self) -> None:
        """Wait until all calls have been made, but not for ever."""
        if self._line is None:
            return
        self._line.close()
        self._line, deadline = None, time.monotonic() + _PATIENCE
        while os.waitpid(self._foreman, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:  # one hangs, by a lock that a thread held at the fork
                os.kill(self._foreman, signal.SIGKILL)
                os.waitpid(self._foreman, 0)
                return
            time.sleep(0.002)

    def _start(self) -> socket.socket:
        """Fork one that forks all of them and waits for them; the way to these."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._foreman = _fork()
        if self._foreman == 0:
            try:
                ours.close()
                if not all(_fork() for _ in range(self._num_processes)):
                    self._serve(theirs)
                while True:
                    os.wait()
            finally:  # there is nobody left to wait for
                os._exit(0)
        theirs.close()
        return ours

    def _serve(self, line: socket.socket) -> None:
        """A child's life."""
        while message := line.recv(_MOST_BYTES):
            with suppress(Exception):
                self._work(*json.loads(message))


def _fork() -> int:
    """As os.fork; a child is ended when its parent has ended."""
    parent = os.getpid()
    with warnings.catch_warnings():
        # that threads do not go along: children wait for none of them
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0 and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
    return pid
