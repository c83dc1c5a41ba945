"""Shared memory of a server's processes: pages of an anonymous file that every child inherits.

Where the system has one, it is on no disk: mapping a file of a full disk ends the process that
touches it (SIGBUS). For the same reason a page is allocated before it is mapped.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys

PAGE_BYTES = 1 << 16  # a multiple of what systems map


def create_shared_memory() -> int:
    """Memory without pages, as a file descriptor for children to inherit. Raises OSError."""
    if sys.platform == "linux":
        return os.memfd_create("quire")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def clear_page(memory: int, number: int) -> None:
    """Allocate a page, and fill it with zeros. Raises OSError if there is no room for it."""
    if os.pwrite(memory, bytes(PAGE_BYTES), number * PAGE_BYTES) < PAGE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # there was room for a part


def map_page(memory: int, number: int, *, writable: bool = False) -> mmap.mmap:
    """Map a page that was allocated."""
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    return mmap.mmap(memory, PAGE_BYTES, access=access, offset=number * PAGE_BYTES)
