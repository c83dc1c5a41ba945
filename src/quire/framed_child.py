"""A child process that exchanges frames with its parent, over pipes: both ends.

A frame is a length of LENGTH_BYTES, then as many bytes.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from quire.background import lower_priority, poll_intervals

START_SECONDS = 60.0  # for the process to start, on a busy machine
NICENESS = 5  # a third of what an equal would get: an answer waits for it, quick as it mostly is
LENGTH_BYTES = 4

Answer = Callable[[bytes], bytes]


class FramedChild:
    """A process that serves frames. first: the frame that it begins with."""

    def __init__(self, program: list[str], first: bytes) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # only the parent handles Ctrl-C
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.pid = self._process.pid
        self.wait = self._process.wait
        os.set_blocking(self._stdin.fileno(), False)
        self._unsent = _framed(first)
        self._is_ready = False

    def make_ready(self) -> None:
        """Wait until it has started, at a lower priority, for at most START_SECONDS.

        Raises TimeoutError, EOFError, BrokenPipeError. After CallerGoneError it goes on starting,
        and another call waits for it anew.
        """
        if self._is_ready:
            return
        lower_priority(self.pid, NICENESS)
        end = time.monotonic() + START_SECONDS
        self._write_unsent(0.0)  # also if the caller has gone, so that the child begins
        self._flush(end - time.monotonic())
        if not any(map(self.has_answered, poll_intervals(end - time.monotonic()))):
            raise TimeoutError
        self.receive()
        self._is_ready = True

    def send(self, frame: bytes, seconds: float) -> None:
        """Write a frame. Raises TimeoutError and BrokenPipeError."""
        self._unsent = _framed(frame)
        self._flush(seconds)

    def _flush(self, seconds: float) -> None:
        for most in poll_intervals(seconds):
            self._write_unsent(most)
            if not self._unsent:
                return
        raise TimeoutError

    def _write_unsent(self, seconds: float) -> None:
        """Write until all is sent, or the pipe has been full for so many seconds."""
        pipe = self._stdin.fileno()
        while self._unsent and _is_ready(pipe, select.POLLOUT, seconds):
            self._unsent = self._unsent[os.write(pipe, self._unsent) :]

    def has_answered(self, seconds: float) -> bool:
        """Whether a frame begins, or its output ends, within so many seconds."""
        return _is_ready(self._stdout.fileno(), select.POLLIN, max(1e-3, seconds))

    def receive(self) -> bytes:
        """The next frame. Raises EOFError."""
        return _read_frame(self._stdout.read)

    def worked_seconds(self) -> float:
        """Processor seconds that it has used; the resolution is some milliseconds."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """End it and release its pipes."""
        self._process.kill()
        self.wait()
        self._stdin.close()
        self._stdout.close()


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

    begin: from the first frame to the function that answers. memory: bytes besides what the
    process has at its start.
    """
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not reach the frames on stdout
    answer = begin(_read_frame(_read))
    _bound_memory(memory)
    _write(out, b"")
    with suppress(EOFError):
        while True:
            reply = answer(_read_frame(_read))
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


def _read(count: int) -> bytes:
    return os.read(0, count)


def _write(out: int, frame: bytes) -> None:
    data = _framed(frame)
    while data:
        data = data[os.write(out, data) :]
