"""The private folder of a server: sockets of its engines, and metrics of its API processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quire.errors import ConfigError

# A socket's path has at most 103 bytes on some systems; the folder's own name and the socket's
# take the rest.
MOST_BYTES = 60
# Where the usual folder for temporary files cannot be used. The last is in memory: containers with
# a read-only file system have it.
OTHERS = ("/tmp", "/dev/shm")


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new folder that only this user can open, with a path that sockets may have.

    Its lock tells programs that clean folders for temporary files (systemd-tmpfiles) to leave what
    is in it, however old. Raises ConfigError.
    """
    folder = _make()
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def _make() -> Path:
    for folder in _candidates():
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix="quire-", dir=folder))  # mode 0700
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
