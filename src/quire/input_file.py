"""Files that a user names, whatever they are: read in bounded memory, settings in bounded time."""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import time

PIPE_SECONDS = 10.0  # for `<(command)`: its writer may have to start first


def read_file(path: str, most: int, *, waits: bool = False, again: bool = False) -> bytes:
    """The contents of a file or pipe of at most `most` bytes. Raises OSError.

    waits: for a pipe's writer, as long as it takes; else a pipe that nobody writes to is empty, and
    one whose writer writes nothing is an error. again: it is read several times, by which a pipe
    would be empty, and an error.
    """
    path = os.path.expanduser(path)  # no shell does so in --config=~/file
    status = os.stat(path)
    mode = status.st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "it is a folder")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise OSError(errno.EINVAL, "it is a device, not a file")
    if again and stat.S_ISFIFO(mode):
        raise OSError(errno.EINVAL, "it is a pipe, not a file")
    if status.st_size > most:
        raise too_large(most)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if waits else os.O_NONBLOCK))
    try:
        return _contents(file, most)
    finally:
        os.close(file)


def read_text(path: str, most: int, *, waits: bool = False, again: bool = False) -> str:
    """The text of a UTF-8 file, as `open` reads it, without a BOM. Options: see `read_file`.

    Raises OSError and UnicodeDecodeError.
    """
    data = read_file(path, most, waits=waits, again=again)
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()


def too_large(most: int) -> OSError:
    """The error for more than so many bytes."""
    size = f"{most >> 20} MiB" if most >> 20 else f"{most >> 10} KiB"
    return OSError(errno.EFBIG, f"it is larger than {size}")


def _contents(file: int, most: int) -> bytes:
    data, end = bytearray(), time.monotonic() + PIPE_SECONDS
    while part := _next_part(file, end):
        data += part
        if len(data) > most:
            raise too_large(most)
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
