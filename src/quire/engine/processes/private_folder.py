"""The private folder of a server: sockets of its engines, and metrics of its API processes."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quire.errors import ConfigError

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

    Its lock tells others that it is in use: programs that clean folders for temporary files
    (systemd-tmpfiles), and the next server, which removes what killed ones have left. Raises
    ConfigError.
    """
    for parent in _candidates():
        with suppress(OSError):
            _remove_left(Path(parent))
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
            while True:
                folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))  # mode 0700
                if (lock := _locked(folder)) is not None:
                    return folder, lock
    raise ConfigError(
        f"there is no folder for temporary files that can be written and has at most {MOST_BYTES} "
        "bytes of UTF-8 in its path; set the environment variable TMPDIR to one"
    )


def _locked(folder: Path) -> int | None:
    """Lock a new folder; None if another server has taken it for one that was left."""
    with suppress(FileNotFoundError):
        lock = os.open(folder, os.O_RDONLY)
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_SH)
        if folder.exists():
            return lock
        os.close(lock)
    return None


def _remove_left(parent: Path) -> None:
    """Remove this user's folders of servers that were killed: nobody locks them any more."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is in use, another user's, or there are no locks
            file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_own(folder.name, os.fstat(file)):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(file)


def _is_own(name: str, status: os.stat_result) -> bool:
    """Whether `_make` made a folder, for this user; others may have named theirs alike."""
    made = re.fullmatch(rf"{PREFIX}[a-z0-9_]{{8}}", name)
    return (
        made is not None
        and stat.S_IMODE(status.st_mode) == stat.S_IRWXU
        and status.st_uid == os.geteuid()
    )


def _candidates() -> Iterator[str]:
    with suppress(OSError):  # none that Python knows can be written
        folder = tempfile.gettempdir()
        is_text = os.fsencode(folder) == folder.encode(errors="replace")
        if is_text and len(os.fsencode(folder)) <= MOST_BYTES:
            yield folder
    yield from OTHERS
