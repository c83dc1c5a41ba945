"""Small files, read in bounded time and memory whatever they are, and standard input."""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import sys
import time
from typing import TextIO

from quire.errors import ConfigError

PIPE_SECONDS = 10.0  # for `<(command)`: its writer may have to start first


FIRST_SECONDS = 0.5  # for what is piped in beside a prompt; a script's stdin may stay open


def standard_input() -> TextIO:
    """Standard input, read as text files are: UTF-8, a BOM or none, ends of lines of any kind."""
    stdin = sys.stdin
    if isinstance(stdin, io.TextIOWrapper) and stdin.encoding != "utf-8-sig":
        stdin.reconfigure(encoding="utf-8-sig", errors="strict", newline=None)
    return stdin


def piped_text() -> str:
    """All of standard input. Raises ConfigError where it is no text."""
    try:
        return standard_input().read()
    except UnicodeDecodeError:
        raise ConfigError("standard input is not UTF-8 text; convert it") from None


def has_piped_text() -> bool:
    """Whether a file or a pipe comes in that has something; tells of a pipe that stays empty."""
    try:
        file = sys.stdin.fileno()
        mode = os.fstat(file).st_mode
    except (OSError, ValueError):  # it is closed, or no file
        return False
    if stat.S_ISREG(mode):  # of which a loop over its lines has read some
        return os.lseek(file, 0, os.SEEK_CUR) == 0 < os.fstat(file).st_size
    return stat.S_ISFIFO(mode) and _has_data(file)


def _has_data(pipe: int) -> bool:
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    events = poller.poll(FIRST_SECONDS * 1000.0)
    if not events:
        text = "nothing is piped in yet, so it is left out; - as the prompt waits for it"
        print(f"note: {text}", file=sys.stderr)
    return any(event & select.POLLIN for _, event in events)


def read_file(path: str, most: int) -> bytes:
    """The contents of a file or pipe of at most `most` bytes. Raises OSError.

    A pipe that nobody writes to is empty.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, "it is a folder")
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise OSError(errno.EINVAL, "it is a device, not a file")
        return _contents(file, most)
    finally:
        os.close(file)


def _contents(file: int, most: int) -> bytes:
    data, end = bytearray(), time.monotonic() + PIPE_SECONDS
    while part := _next_part(file, end):
        data += part
        if len(data) > most:
            raise OSError(errno.EFBIG, f"it is larger than {most >> 10} KiB")
    return bytes(data)


def _next_part(file: int, end: float) -> bytes:
    while True:
        try:
            return os.read(file, 1 << 16)
        except BlockingIOError:
            poller = select.poll()
            poller.register(file, select.POLLIN)
            if not poller.poll(max(0.0, end - time.monotonic()) * 1000.0):
                text = f"nothing was written to it for {PIPE_SECONDS:g} s"
                raise OSError(errno.ETIMEDOUT, text) from None
