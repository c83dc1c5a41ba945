"""KillableProcess: work in a child process that is killed when it takes too long.

For libraries that cannot be interrupted inside a thread. Parent and child exchange frames over
pipes: a length of LENGTH_BYTES, then as many bytes.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from quire.background import lower_priority
from quire.errors import OverloadedError

logger = logging.getLogger(__name__)

START_SECONDS = 60.0  # for the process to start, on a busy machine
NICENESS = 5  # a third of what an equal would get: an answer waits for it, quick as it mostly is
LENGTH_BYTES = 4


Answer = Callable[[bytes], bytes]


class ChildDiedError(Exception):
    """The child has died of what it was asked, such as of a lack of memory."""


class KillableProcess:
    """A child process that answers one caller at a time.

    program: arguments of the interpreter for a program that calls `serve_frames`. name: for
    messages. first_frame: called when a process is started, which is before the first question.
    not_now: the message of errors that say nothing about what was asked.
    """

    def __init__(
        self, program: list[str], name: str, first_frame: Callable[[], bytes], not_now: str
    ) -> None:
        self._program, self._name = program, name
        self._first_frame = first_frame
        self._not_now = not_now
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is none."""
        return None if self._child is None else self._child.pid

    def ask(self, frame: bytes, seconds: float, wall_seconds: float) -> bytes:
        """The child's answer.

        seconds: of the child's processor time. Raises TimeoutError after them; OverloadedError if
        it had less in wall_seconds, if no child can be started or it was killed from outside; and
        ChildDiedError. After TimeoutError and ChildDiedError another child is there, if one can be
        started; after any other error the next question starts it.
        """
        child = self._child or self._start()
        try:
            return self._answer(child, frame, seconds, time.monotonic() + wall_seconds)
        except (EOFError, BrokenPipeError):
            status = child.wait()
            self.close()
            if status == -signal.SIGKILL:
                raise OverloadedError(self._not_now) from None
            self._restart()
            if status == -signal.SIGPROF:  # its own timer, see end_self_after
                raise TimeoutError from None
            raise ChildDiedError from None
        except TimeoutError:
            self._restart()
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill the child; the next question starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                pipe.close()

    def __del__(self) -> None:
        self.close()

    def _restart(self) -> None:
        """Replace a child that was lost; its caller waits, so that the next does not."""
        self.close()
        with suppress(OverloadedError):
            self._start()

    def _answer(
        self, child: subprocess.Popen[bytes], frame: bytes, seconds: float, deadline: float
    ) -> bytes:
        try:
            _send(child, frame, deadline)
        except TimeoutError:  # it does not even read
            raise OverloadedError(self._not_now) from None
        started = _worked_seconds(child.pid)
        left = seconds
        while True:
            try:
                return _receive(child, left)
            except TimeoutError:
                left = started + seconds - _worked_seconds(child.pid)
                if left <= 0.0:
                    raise
                if time.monotonic() > deadline:
                    raise OverloadedError(self._not_now) from None

    def _start(self) -> subprocess.Popen[bytes]:
        first = self._first_frame()
        try:
            child = self._child = self._open()
        except OSError as error:  # no memory, no file descriptor, no process
            logger.error("the %s could not be started: %s", self._name, error.strerror)
            raise OverloadedError(self._not_now) from None
        try:
            lower_priority(child.pid, NICENESS)
            _send(child, first, time.monotonic() + START_SECONDS)
            _receive(child, START_SECONDS)
        except (TimeoutError, EOFError, BrokenPipeError):
            self.close()
            logger.error("the %s could not be started", self._name)
            raise OverloadedError(self._not_now) from None
        except BaseException:  # without its first frame the child is of no use to the next caller
            self.close()
            raise
        return child

    def _open(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", *self._program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # only the parent handles Ctrl-C
        )


def _worked_seconds(pid: int) -> float:
    """Processor seconds that a process has used; the resolution is some milliseconds."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _send(child: subprocess.Popen[bytes], frame: bytes, deadline: float) -> None:
    """Write a frame. Raises TimeoutError and BrokenPipeError."""
    assert child.stdin is not None
    pipe = child.stdin.fileno()
    os.set_blocking(pipe, False)
    poller = select.poll()  # select() itself knows no file descriptors above 1023
    poller.register(pipe, select.POLLOUT)
    data = memoryview(len(frame).to_bytes(LENGTH_BYTES) + frame)
    while data:
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000.0):
            raise TimeoutError
        data = data[os.write(pipe, data) :]


def _receive(child: subprocess.Popen[bytes], seconds: float) -> bytes:
    """The next frame; `seconds`: to wait for its beginning. Raises TimeoutError or EOFError."""
    assert child.stdout is not None
    poller = select.poll()
    poller.register(child.stdout, select.POLLIN)
    if not poller.poll(max(1.0, seconds * 1000.0)):
        raise TimeoutError
    return _read_frame(child.stdout.read)


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
    data = memoryview(len(frame).to_bytes(LENGTH_BYTES) + frame)
    while data:
        data = data[os.write(out, data) :]
