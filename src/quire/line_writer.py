"""Lines written by a thread: who logs must not wait for a reader, who may never come.

Owns the queue between the two, and its bound. What a line looks like is in logs.py.
"""

from __future__ import annotations

import io
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from quire.processes import try_start

MAX_QUEUED_BYTES = 1 << 20
PACE = 0.02  # seconds between two writes: a thread that is woken for each line slows the others
BRIEF_WAIT_SECONDS = 0.05  # for a line that must not be lost with the process
_POLL = 0.0002  # seconds
_AT_ONCE = 1 << 16  # bytes of a write
_RETRY = 0.05  # seconds, where somebody has made the stream non-blocking


class LineWriter:
    """Writes text with a thread of its own, which starts with the first line.

    write: writes bytes, which may take forever, and returns how many it has written. describe: the
    line about that many dropped ones, which is written once there is room again.
    """

    def __init__(self, write: Callable[[bytes], int], describe: Callable[[int], str]) -> None:
        self.num_dropped = 0
        self._write, self._describe = write, describe
        self._start()
        os.register_at_fork(after_in_child=self._start)

    def _start(self) -> None:
        """Start empty; also in a forked process, which has neither the thread nor its lines."""
        self._lock = threading.RLock()  # signal handlers log too
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._hurry: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._num_put = self._num_done = 0  # bytes; the thread alone changes the second
        self._num_described = self.num_dropped
        self._is_slow = False  # a line was waited for in vain, and some still wait
        self._thread: threading.Thread | None = None

    def put(self, text: str, *, hurry: bool = False) -> None:
        """Queue text, or drop it; never waits. hurry: write it at once."""
        line = text.encode(errors="backslashreplace")
        with self._lock:
            before = self._num_put - self._num_done
            after = before + len(line)
            self._is_slow = self._is_slow and before > 0
            if after > MAX_QUEUED_BYTES:
                self.num_dropped += 1
                return
            self._num_put += len(line)
            self._lines.put(line)
            if hurry or before < _AT_ONCE <= after:
                self._hurry.put(None)
            if self._thread is None:  # also where the system had none left for the line before
                self._thread = try_start(self._run, "quire-log")

    @property
    def _num_waiting(self) -> int:
        """Bytes that are not written."""
        return self._num_put - self._num_done

    def wait(self, seconds: float) -> None:
        """Wait until all is written, for so long at most."""
        end = time.monotonic() + seconds
        self._hurry.put(None)
        while self._num_waiting > 0 and time.monotonic() < end:
            time.sleep(_POLL)

    def wait_briefly(self) -> None:
        """Wait for BRIEF_WAIT_SECONDS at most, and for a reader that is too slow only once.

        A process may die right after its last line, with the thread that writes it.
        """
        if not self._is_slow:
            self.wait(BRIEF_WAIT_SECONDS)
            self._is_slow = self._num_waiting > 0

    def _run(self) -> None:
        while True:
            data = self._take()
            self._write_all(data)
            self._num_done += len(data)
            if self._num_described < self.num_dropped and self._lines.empty():
                self._describe_dropped()
            if self._num_waiting < _AT_ONCE:
                self._pause()

    def _pause(self) -> None:
        """Let lines come together for PACE seconds, unless one is in a hurry."""
        with suppress(queue.Empty):
            self._hurry.get(timeout=PACE)
            while True:
                self._hurry.get_nowait()

    def _take(self) -> bytes:
        """Wait for lines; returns those that make up one write."""
        lines, size = [self._lines.get()], 0
        with suppress(queue.Empty):
            while size < _AT_ONCE:
                lines.append(self._lines.get_nowait())
                size += len(lines[-1])
        return b"".join(lines)

    def _describe_dropped(self) -> None:
        count, self._num_described = self.num_dropped - self._num_described, self.num_dropped
        self._write_all(self._describe(count).encode())

    def _write_all(self, data: bytes) -> None:
        while data:
            try:
                data = data[self._write(data) :]
            except BlockingIOError:
                time.sleep(_RETRY)
            except (OSError, ValueError):  # no reader is left
                break


class QueuedStream(io.TextIOBase):
    """A text stream in front of a writer. behind: the stream that it stands for."""

    def __init__(self, writer: LineWriter, behind: TextIO) -> None:
        self._writer, self._behind = writer, behind

    encoding = "utf-8"
    errors = "backslashreplace"  # as LineWriter encodes

    def write(self, text: str) -> int:
        """Queue the text, or drop it."""
        self._writer.put(text, hurry=True)
        return len(text)

    def flush(self) -> None:
        """Wait until all is written, but not for long."""
        self._writer.wait_briefly()

    def __getattr__(self, name: str) -> Any:
        """As of the stream behind, such as `buffer`, whose bytes are not queued."""
        return getattr(self._behind, name)

    def writable(self) -> bool:
        """Whether it can be written to: always."""
        return True

    def isatty(self) -> bool:
        """Whether the underlying stream is a terminal."""
        return self._behind.isatty()

    def fileno(self) -> int:
        """The file descriptor of the underlying stream."""
        return self._behind.fileno()
