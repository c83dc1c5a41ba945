"""Small files that a user names: read in bounded time and memory, whatever they are."""

from __future__ import annotations

import errno
import os
import select
import stat
import time

PIPE_SECONDS = 10.0  # for `<(command)`: its writer may have to start first


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
