"""The private folder of a server: sockets of its engines, and metrics of its API processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quire.errors import ConfigError
from quire.locked_folder import make_locked_folder, remove_left_folders

# A socket's path has at most 103 bytes on some systems; the folder's own name and the socket's
# take the rest.
MOST_BYTES = 53
# Where the usual folder for temporary files cannot be used. The last is in memory: containers with
# a read-only file system have it.
OTHERS = ("/tmp", "/dev/shm")
PREFIX = "quire-server-"


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new folder that only this user can open, with a path that sockets may have.

    Those that killed servers have left are removed. Raises ConfigError.
    """
    for parent in _candidates():
        remove_left_folders(PREFIX, Path(parent))
    folder, lock = _make()
    try:
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def _make() -> tuple[Path, int]:
    """A new folder, and the file descriptor that locks it."""
    for parent in _candidates():
        with suppress(OSError):
            return make_locked_folder(PREFIX, Path(parent))
    raise ConfigError(
        f"there is no folder for temporary files that can be written and has at most {MOST_BYTES} "
        "bytes of UTF-8 in its path; set the environment variable TMPDIR to one"
    )


def _candidates() -> Iterator[str]:
    with suppress(OSError):  # none that Python knows can be written
        folder = tempfile.gettempdir()
        is_text = os.fsencode(folder) == folder.encode(errors="replace")
        if is_text and len(os.fsencode(folder)) <= MOST_BYTES:
            yield folder
    yield from OTHERS
