"""Calls that leave something on disk, made by forked processes first: the interpreter's lock is not
shared with these. Owns the processes; knows nothing of kernels.

A call is a closure, which no queue between processes could carry: so children are forked when all
calls are known, and each takes the next number from a pipe. Then this process makes every call once
more, which finds on disk what the children left there, or makes up for what they failed in.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

_NUMBER = struct.Struct("=i")
_PR_SET_PDEATHSIG = 1


def _nothing(_: Any) -> None:
    pass


class Call(Future[Any]):
    """A call that is made here at last when its result is asked for.

    is_quick: it finds on disk what it wants, so no child has to make it. follow_up: what else a
    child does with the result, for this process to find on disk.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self.call = call
        self.is_quick = False
        self.follow_up: Callable[[Any], object] = _nothing

    def result(self, timeout: float | None = None) -> Any:
        """As Future says."""
        self.make()
        return super().result(timeout)

    def make(self) -> None:
        """Make the call, unless it has been made in this process."""
        if self.done():
            return
        try:
            self.set_result(self.call())
        except Exception as failure:  # whoever asks for the result is told
            self.set_exception(failure)


class ForkedExecutor(Executor):
    """Notes the calls that are submitted, until `run` makes them, or somebody asks for one."""

    def __init__(self, num_processes: int) -> None:
        self._num_processes = num_processes
        self._calls: list[Call] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Call:
        """As Executor says."""
        self._calls.append(Call(lambda: call(*args, **options)))
        return self._calls[-1]

    def run(self) -> None:
        """Make the calls that were noted: in children, then here."""
        slow = [call for call in self._calls if not (call.is_quick or call.done())]
        if len(slow) > 1:
            self._fork(slow)
        for call in self._calls:
            call.make()
        self._calls.clear()

    def _fork(self, calls: list[Call]) -> None:
        reading, writing = os.pipe()
        try:
            children = [
                self._start(calls, reading, writing)
                for _ in range(min(self._num_processes, len(calls)))
            ]
            os.close(reading)
            reading = -1
            self._deal(len(calls), writing)
        finally:
            for end in (reading, writing):
                if end >= 0:
                    os.close(end)
        for pid in children:
            os.waitpid(pid, 0)

    def _deal(self, count: int, writing: int) -> None:
        """Offer the number of each call to whoever is free."""
        for number in range(count):
            try:
                os.write(writing, _NUMBER.pack(number))
            except BrokenPipeError:  # all children have died: this process makes the calls
                return

    def _start(self, calls: list[Call], reading: int, writing: int) -> int:
        parent = os.getpid()
        with warnings.catch_warnings():
            # that threads do not go along: children wait for none of them
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                os.close(writing)
                _die_with(parent)
                self._work(calls, reading)
            finally:
                os._exit(0)
        return pid

    def _work(self, calls: list[Call], reading: int) -> None:
        """A child's life. Nobody reads what its calls give, or how they fail."""
        while number := os.read(reading, _NUMBER.size):
            call = calls[_NUMBER.unpack(number)[0]]
            try:
                call.follow_up(call.call())
            except Exception:
                continue


def _die_with(parent: int) -> None:
    """Let the system end this process when its parent has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
