"""Files in pages of 2 MB, which Linux maps as one: fewer faults, and quicker products of few rows.

It has a file in such pages where it was written so, or read for a mapping that asked for them. What
an older system or another file system cannot have so stays in small ones. No torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys

LARGE_PAGE = 2 << 20
_WINDOW = 64 << 20  # mapped at a time, as that counts as this process's memory
_POPULATE_READ = 22  # MADV_POPULATE_READ, of Linux 5.14
# mmap's own would keep the interpreter's lock; looked up at once, as that can wait for a library
# that is opened meanwhile
_advise = ctypes.CDLL(None).madvise
_advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def ask_for_large_pages(mapped: mmap.mmap, num_bytes: int) -> None:
    """For the first bytes of a mapping, where they are read from the disk from now on."""
    num_bytes -= num_bytes % LARGE_PAGE  # a page that two mappings share would be small
    if sys.platform == "linux" and num_bytes:
        with contextlib.suppress(OSError):  # a system built without them
            mapped.madvise(mmap.MADV_HUGEPAGE, 0, num_bytes)


def read_in_large_pages(file: int, num_bytes: int) -> bool:
    """Wait until the first bytes of an open file are in the page cache; whether that can be had.

    Not `posix_fadvise`: of one request it reads no more than the device's read-ahead, some MB.
    """
    if sys.platform != "linux":
        return False
    for begin in range(0, num_bytes, _WINDOW):
        length = min(_WINDOW, num_bytes - begin)
        try:
            window = mmap.mmap(file, length, access=mmap.ACCESS_COPY, offset=begin)
        except (OSError, ValueError):  # it cannot be mapped, or is shorter than its header says
            return False
        with window:
            ask_for_large_pages(window, length)
            address = ctypes.addressof(ctypes.c_char.from_buffer(window))
            if _advise(address, length, _POPULATE_READ) != 0:
                return False
    return True
