"""A file while it is written, under a name of its own, and what a writer that has died left of one.

The writer locks the file, and the system releases the lock when the writer ends, however it does.
Neither the clock nor process ids say as much: others may write here from other containers.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def unfinished_file(path: Path) -> Iterator[Path]:
    """A new empty file, which nobody else removes before the context's end.

    It is removed then, unless it has another name by now. Raises OSError.
    """
    with path.open("wb") as locked:
        with suppress(OSError):  # a file system without locks: `is_left` finds none of its files
            fcntl.flock(locked, fcntl.LOCK_EX)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def is_left(unfinished: Path) -> bool:
    """Whether nobody writes the file any more."""
    try:
        with unfinished.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked, gone, or another user's
        return False
    return True
