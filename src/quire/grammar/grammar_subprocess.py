"""Compiling forms in a process of its own, which can be killed: the side that asks.

The library bounds its own work in most places but not in all, and a thread inside it cannot be
stopped. Owns the child process and the limit on its time; what a form means is the compiler's.
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

import msgspec

from quire.core.structured_outputs import StructuredOutputs
from quire.errors import OverloadedError
from quire.grammar.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

START_SECONDS = 60.0  # for the process to be there, on however busy a machine
BUSY_FACTOR = 4  # so many times longer may a form take on a machine that is busy with others
LENGTH_BYTES = 4
NOT_NOW = "forms cannot be compiled at the moment; send it again later"
TOO_MUCH = "it takes too much memory to compile; make it simpler"


class SentVocabulary(msgspec.Struct, frozen=True):
    """What the child is told first: the vocabulary, and after how long to give itself up.

    seconds: of work on one form; the child dies of itself if nobody kills it after twice that.
    """

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_ids: list[int]
    seconds: float


class GrammarSubprocess:
    """Asks a child process what is wrong with forms; one caller at a time.

    vocabulary: called when a process is started, which is when there is something to ask.
    seconds: of the child's work on one form.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], seconds: float) -> None:
        self._vocabulary = vocabulary
        self._seconds = seconds
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id, if there is one."""
        return None if self._child is None else self._child.pid

    def problem(self, wish: StructuredOutputs) -> str:
        """What is wrong with a form; empty if nothing is.

        Raises TimeoutError if that takes too long, OverloadedError where no process can be had.
        """
        child = self._child or self._start()
        try:
            _send(child, msgspec.msgpack.encode(wish))
            answer = self._answer(child)
        except (EOFError, BrokenPipeError):
            status = child.wait()
            self.close()
            if status == -signal.SIGKILL:  # from outside, whatever the form was
                raise OverloadedError(NOT_NOW) from None
            return TOO_MUCH
        except BaseException:
            self.close()
            raise
        return answer.decode()

    def close(self) -> None:
        """Kill the child, whatever it does; the next question starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                pipe.close()

    def _answer(self, child: subprocess.Popen[bytes]) -> bytes:
        """Raises TimeoutError if the child works for too long, OverloadedError if it cannot."""
        begun = _worked_seconds(child.pid)
        last = time.monotonic() + BUSY_FACTOR * self._seconds
        left = self._seconds
        while True:
            try:
                return _receive(child, left)
            except TimeoutError:
                left = begun + self._seconds - _worked_seconds(child.pid)
                if left <= 0.0:
                    raise
                if time.monotonic() > last:  # which says nothing of the form
                    raise OverloadedError(NOT_NOW) from None

    def _start(self) -> subprocess.Popen[bytes]:
        known = self._vocabulary()
        told = SentVocabulary(
            known.tokens, known.special_token_ids, known.eos_token_ids, self._seconds
        )
        child = self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "quire.grammar.grammar_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # Ctrl-C is for the parent alone to handle
        )
        try:
            _send(child, msgspec.msgpack.encode(told))
            _receive(child, START_SECONDS)
        except (TimeoutError, EOFError, BrokenPipeError):
            self.close()
            logger.error("the process that compiles forms could not be started")
            raise OverloadedError(NOT_NOW) from None
        return child


def _worked_seconds(pid: int) -> float:
    """The processor time that a process has had, in steps of some milliseconds."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _send(child: subprocess.Popen[bytes], frame: bytes) -> None:
    assert child.stdin is not None
    data = memoryview(len(frame).to_bytes(LENGTH_BYTES) + frame)
    while data:
        data = data[child.stdin.write(data) :]


def _receive(child: subprocess.Popen[bytes], seconds: float) -> bytes:
    """The next frame; waits so long for its beginning. Raises TimeoutError or EOFError."""
    assert child.stdout is not None
    poller = select.poll()  # select() itself knows no file descriptors above 1023
    poller.register(child.stdout, select.POLLIN)
    if not poller.poll(max(1.0, seconds * 1000.0)):
        raise TimeoutError
    return read_frame(child.stdout.read)


def read_frame(read: Callable[[int], bytes | None]) -> bytes:
    """One frame: its length, and so many bytes. Raises EOFError."""

    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = read(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    return exactly(int.from_bytes(exactly(LENGTH_BYTES)))
