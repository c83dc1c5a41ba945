"""AnswerFile: the output of a batch, which holds whole lines only, whatever ends the run."""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from types import TracebackType

from quire.cli import FULL
from quire.errors import ConfigError
from quire.input_file import PIPE_SECONDS


class AnswerFile:
    """Lines that are appended to a file as they come. Raises ConfigError where it cannot be.

    num_lines: written so far.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.num_lines = 0
        try:
            self._file = _opened(path)
        except OSError as error:
            raise self._wrong("opened", error) from None
        status = os.fstat(self._file)
        # not a device, a pipe, or standard output, which others may write as well
        self._is_regular = stat.S_ISREG(status.st_mode) and path != "-"
        self._size = status.st_size

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def clear(self) -> None:
        """Remove what was there before."""
        if self._is_regular:
            os.ftruncate(self._file, 0)
            self._size = 0

    def write(self, line: bytes) -> None:
        """Append a line. Where only a part can be written, that is removed again."""
        data = memoryview(line + b"\n")
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except BaseException as error:
            if self._is_regular:
                os.ftruncate(self._file, self._size)
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                raise self._wrong("written", error) from None
            raise
        self._size += len(line) + 1
        self.num_lines += 1

    def _wrong(self, verb: str, error: OSError) -> ConfigError:
        fix = "free some space" if error.errno in FULL else "correct it"
        rest = f"; its {self.num_lines} lines are whole" if self.num_lines else ""
        return ConfigError(
            f"output_file {self._path!r} cannot be {verb} ({error.strerror}){rest}; "
            f"{fix}, or write elsewhere"
        )


def _opened(path: str) -> int:
    """The file at a path, or standard output for -.

    Raises OSError, also for a pipe that nobody reads within a while.
    """
    if path == "-":
        return os.dup(sys.stdout.fileno())
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    end = time.monotonic() + PIPE_SECONDS
    while True:
        try:
            file = os.open(path, flags, 0o666)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > end:
                text = f"it is a pipe, and nobody read it for {PIPE_SECONDS:g} s"
                raise OSError(errno.ENXIO, text) from None
            time.sleep(0.05)
        else:
            os.set_blocking(file, True)  # a reader may be slow
            return file
