"""Unmapping of pages of PyTorch's libraries that only its import needed.

The import runs thousands of functions, one for each operator, all over a library of 400 MB, and the
system maps pages around each. These are the file's pages, so they can be unmapped at any time; what
is run again comes back from the page cache.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path


def give_back_code() -> int:
    """Unmap the pages; returns how many bytes they may lie in. Does nothing but on Linux."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return 0
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    total = 0
    for line in maps.read_text().splitlines():
        span, access, *_, path = line.split(maxsplit=5)
        if access == "r-xp" and Path(path).name.startswith("libtorch"):  # never written
            begin, end = (int(address, 16) for address in span.split("-"))
            advise(begin, end - begin, mmap.MADV_DONTNEED)
            total += end - begin
    return total
