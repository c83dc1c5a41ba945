"""Runs grammar compilation in a subprocess that can be killed (the parent's side).

llguidance bounds its own work in most places but not in all, and a thread inside it cannot be
stopped. Owns the child process (grammar_worker.py) and its time limit.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from quire.background import lower_priority
from quire.core.structured_outputs import StructuredOutputs
from quire.errors import OverloadedError
from quire.grammar.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

START_SECONDS = 60.0  # for the process to start, on a busy machine
NICENESS = 5  # a third of what an equal would get: an answer waits for it, quick as it mostly is
BUSY_FACTOR = 4  # wall-clock limit as a multiple of the limit on processor time
LENGTH_BYTES = 4
NOT_NOW = "grammars cannot be compiled at the moment; send it again later"
TOO_MUCH = "it takes too much memory to compile; make it simpler"


class VocabularyMessage(msgspec.Struct, frozen=True):
    """The first frame to the child: the vocabulary and its time limit.

    seconds: of processor time for one grammar; the child ends itself after twice as many.
    """

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_ids: list[int]
    seconds: float


class GrammarSubprocess:
    """Validates structured outputs in a child process, one caller at a time.

    vocabulary: called when a process is started, which is before the first check.
    seconds: the limit on the child's processor time for one grammar.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], seconds: float) -> None:
        self._vocabulary = vocabulary
        self._seconds = seconds
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is none."""
        return None if self._child is None else self._child.pid

    def find_problem(self, structured_outputs: StructuredOutputs, seconds: float = math.inf) -> str:
        """Why they cannot be compiled; empty if they can.

        seconds: a limit on processor time below that of all. Raises TimeoutError after it,
        OverloadedError if no process can be started.
        """
        child = self._child or self._start()
        try:
            _send(child, msgspec.msgpack.encode(structured_outputs))
            answer = self._answer(child, min(seconds, self._seconds))
        except (EOFError, BrokenPipeError):
            status = child.wait()
            self.close()
            if status == -signal.SIGKILL:  # killed from outside, not because of the grammar
                raise OverloadedError(NOT_NOW) from None
            self._restart()
            return TOO_MUCH
        except TimeoutError:
            self._restart()
            raise
        except BaseException:
            self.close()
            raise
        return answer.decode()

    def _restart(self) -> None:
        """Replace a child that a grammar has cost; its caller waits, so that the next does not."""
        self.close()
        with suppress(OverloadedError):
            self._start()

    def close(self) -> None:
        """Kill the child; the next check starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                pipe.close()

    def _answer(self, child: subprocess.Popen[bytes], seconds: float) -> bytes:
        """Wait for the child's reply.

        Raises TimeoutError after too much processor time, OverloadedError if the machine gave it
        too little.
        """
        started = _worked_seconds(child.pid)
        last = time.monotonic() + BUSY_FACTOR * self._seconds
        left = seconds
        while True:
            try:
                return _receive(child, left)
            except TimeoutError:
                left = started + seconds - _worked_seconds(child.pid)
                if left <= 0.0:
                    raise
                if time.monotonic() > last:  # says nothing about the grammar
                    raise OverloadedError(NOT_NOW) from None

    def _start(self) -> subprocess.Popen[bytes]:
        known = self._vocabulary()
        message = VocabularyMessage(
            known.tokens, known.special_token_ids, known.eos_token_ids, self._seconds
        )
        child = self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "quire.grammar.grammar_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # only the parent handles Ctrl-C
        )
        try:
            lower_priority(child.pid, NICENESS)
            _send(child, msgspec.msgpack.encode(message))
            _receive(child, START_SECONDS)
        except (TimeoutError, EOFError, BrokenPipeError):
            self.close()
            logger.error("the grammar subprocess could not be started")
            raise OverloadedError(NOT_NOW) from None
        except BaseException:  # without its vocabulary the child is of no use to the next caller
            self.close()
            raise
        return child


def _worked_seconds(pid: int) -> float:
    """Processor seconds that a process has used; the resolution is some milliseconds."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _send(child: subprocess.Popen[bytes], frame: bytes) -> None:
    assert child.stdin is not None
    data = memoryview(len(frame).to_bytes(LENGTH_BYTES) + frame)
    while data:
        data = data[child.stdin.write(data) :]


def _receive(child: subprocess.Popen[bytes], seconds: float) -> bytes:
    """The next frame; `seconds`: to wait for its beginning. Raises TimeoutError or EOFError."""
    assert child.stdout is not None
    poller = select.poll()  # select() itself knows no file descriptors above 1023
    poller.register(child.stdout, select.POLLIN)
    if not poller.poll(max(1.0, seconds * 1000.0)):
        raise TimeoutError
    return read_frame(child.stdout.read)


def read_frame(read: Callable[[int], bytes | None]) -> bytes:
    """One frame: a length, then as many bytes. Raises EOFError."""

    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = read(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    return exactly(int.from_bytes(exactly(LENGTH_BYTES)))
