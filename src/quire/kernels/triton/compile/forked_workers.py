"""A pool of forked processes for calls whose results go to disk.

Processes do not share the interpreter's lock. They are forked with the first call, so they have
this process's modules as of that moment; calls are sent to them as messages, and an idle process
takes the next one. Knows nothing of kernels.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from quire.processes import die_with_parent

_MOST_BYTES = 1 << 16  # of a message
_PATIENCE = 300.0  # seconds that `finish` waits


class ForkedWorkers:
    """num_processes processes that call `work` with the arguments given to `put`.

    Return values and exceptions are dropped: a call's only effect is what it writes to disk.
    """

    def __init__(self, num_processes: int, work: Callable[..., object]) -> None:
        self._num_processes = num_processes
        self._work = work
        self._parent_pid = 0
        self._socket: socket.socket | None = None

    def put(self, *arguments: Any) -> None:
        """Have a process call `work` with these arguments, which must be JSON-serialisable."""
        with suppress(OSError):  # no process can be forked, or they have died
            if self._socket is None:
                self._socket = self._start()
            self._socket.send(json.dumps(arguments).encode())

    def finish(self) -> None:
        """Wait until all calls are done, for _PATIENCE seconds at most."""
        if self._socket is None:
            return
        self._socket.close()
        self._socket, deadline = None, time.monotonic() + _PATIENCE
        while os.waitpid(self._parent_pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:  # one hangs on a lock that a thread held at the fork
                os.kill(self._parent_pid, signal.SIGKILL)
                os.waitpid(self._parent_pid, 0)
                return
            time.sleep(0.002)

    def _start(self) -> socket.socket:
        """Fork a parent process that forks and awaits the workers; return the socket to them."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._parent_pid = _fork()
        if self._parent_pid == 0:
            try:
                ours.close()
                if not all(_fork() for _ in range(self._num_processes)):
                    self._serve(theirs)
                while True:
                    os.wait()
            finally:  # all children have ended
                os._exit(0)
        theirs.close()
        return ours

    def _serve(self, line: socket.socket) -> None:
        """Make calls until the socket is closed."""
        while message := line.recv(_MOST_BYTES):
            with suppress(Exception):
                self._work(*json.loads(message))


def _fork() -> int:
    """os.fork, with a child that is killed when its parent ends."""
    parent = os.getpid()
    with warnings.catch_warnings():
        # it warns that threads are not forked; the children need none of them
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        die_with_parent()
        if os.getppid() != parent:
            os._exit(0)
    return pid
