"""A child process that exchanges frames with its parent, over pipes: both ends.

A frame is a length of LENGTH_BYTES, then as many bytes. What a child begins with may be larger than
a pipe, and its parent may not stay to write it: that is in memory which the child inherits.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from quire.background import lower_priority, poll_intervals
from quire.processes import processor_ticks
from quire.shared_memory import create_shared_memory

START_SECONDS = 60.0  # for the process to start, on a busy machine
NICENESS = 5  # a third of what an equal would get: an answer waits for it, quick as it mostly is
LENGTH_BYTES = 4

Answer = Callable[[bytes], bytes]


class FramedChild:
    """A process that serves frames. first: what it begins with. Raises OSError."""

    def __init__(self, program: list[str], first: bytes) -> None:
        with _in_memory(first) as memory:
            self._process = subprocess.Popen(
                [sys.executable, "-P", *program, str(memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                pass_fds=[memory],
                process_group=0,  # only the parent handles Ctrl-C
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.pid = self._process.pid
        self.wait = self._process.wait
        os.set_blocking(self._stdin.fileno(), False)
        self._is_ready = False

    def make_ready(self) -> None:
        """Wait until it has started, at a lower priority, for at most START_SECONDS.

        Raises TimeoutError and EOFError. After CallerGoneError it goes on starting,
        and another call waits for it anew.
        """
        if self._is_ready:
            return
        lower_priority(self.pid, NICENESS)
        if not any(map(self.has_answered, poll_intervals(START_SECONDS))):
            raise TimeoutError
        self.receive()
        self._is_ready = True

    def send(self, frame: bytes, seconds: float) -> None:
        """Write a frame. Raises TimeoutError and BrokenPipeError."""
        pipe, unsent = self._stdin.fileno(), _framed(frame)
        for most in poll_intervals(seconds):
            while unsent and _is_ready(pipe, select.POLLOUT, most):
                unsent = unsent[os.write(pipe, unsent) :]
            if not unsent:
                return
        raise TimeoutError

    def has_answered(self, seconds: float) -> bool:
        """Whether a frame begins, or its output ends, within so many seconds."""
        return _is_ready(self._stdout.fileno(), select.POLLIN, max(1e-3, seconds))

    def receive(self) -> bytes:
        """The next frame. Raises EOFError."""
        return _read_frame(self._stdout.read)

    def worked_seconds(self) -> float:
        """Processor seconds that it has used; the resolution is some milliseconds."""
        return processor_ticks(self.pid) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """End it and release its pipes."""
        self._process.kill()
        self.wait()
        self._stdin.close()
        self._stdout.close()


@contextmanager
def _in_memory(data: bytes) -> Iterator[int]:
    """The file descriptor of a file in memory. Raises OSError if there is no room for it."""
    memory, at = create_shared_memory(), 0
    try:
        while at < len(data):
            at += os.pwrite(memory, memoryview(data)[at:], at)
        yield memory
    finally:
        os.close(memory)


def _is_ready(pipe: int, event: int, seconds: float) -> bool:
    poller = select.poll()  # select() itself knows no file descriptors above 1023
    poller.register(pipe, event)
    return bool(poller.poll(seconds * 1000.0))


def _framed(data: bytes) -> memoryview:
    return memoryview(len(data).to_bytes(LENGTH_BYTES) + data)


def _read_frame(read: Callable[[int], bytes | None]) -> bytes:
    """One frame. Raises EOFError."""

    def exactly(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = read(count - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    return exactly(int.from_bytes(exactly(LENGTH_BYTES)))


def serve_frames(begin: Callable[[bytes], Answer], memory: int) -> None:
    """The child's loop: answer the frames on stdin on stdout, until stdin ends.

    begin: from what the parent gave to the function that answers. memory: bytes besides what the
    process has at its start.
    """
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not reach the frames on stdout
    with open(int(sys.argv[-1]), "rb") as file:
        first = file.read()
    answer = begin(first)
    del first
    _bound_memory(memory)
    _write(out, b"")
    with suppress(EOFError):
        while True:
            reply = answer(_read_frame(partial(os.read, 0)))
            end_self_after(0.0)
            _write(out, reply)


def end_self_after(seconds: float) -> None:
    """End this process after so much processor time, in case that its parent died; 0: do not."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _bound_memory(most: int) -> None:
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + most
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _write(out: int, frame: bytes) -> None:
    data = _framed(frame)
    while data:
        data = data[os.write(out, data) :]
