"""Folders for temporary files of one process, which the next one removes if it was killed.

Their lock tells others that they are in use: programs that clean folders for temporary files
(systemd-tmpfiles), and later processes of this user, which remove what killed ones have left.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def make_locked_folder(prefix: str, parent: Path) -> tuple[Path, int]:
    """A new folder that only this user can open, and the file descriptor that locks it.

    Its name is the prefix and eight characters. Raises OSError.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))  # mode 0700
        if (lock := _locked(folder)) is not None:
            return folder, lock


def _locked(folder: Path) -> int | None:
    """Lock a new folder; None if another process has taken it for one that was left."""
    with suppress(FileNotFoundError):
        lock = os.open(folder, os.O_RDONLY)
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_SH)
        if folder.exists():
            return lock
        os.close(lock)
    return None


def remove_left_folders(prefix: str, parent: Path) -> None:
    """Remove this user's folders of processes that were killed: nobody locks them any more."""
    with suppress(OSError):
        for folder in parent.glob(f"{prefix}*"):
            _remove_if_left(folder, prefix)


def _remove_if_left(folder: Path, prefix: str) -> None:
    with suppress(OSError):  # it is in use, another user's, or there are no locks
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_own(folder.name, prefix, os.fstat(file)):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(file)


def _is_own(name: str, prefix: str, status: os.stat_result) -> bool:
    """Whether it was made here, for this user; others may have named theirs alike."""
    made = re.fullmatch(rf"{re.escape(prefix)}[a-z0-9_]{{8}}", name)
    return (
        made is not None
        and stat.S_IMODE(status.st_mode) == stat.S_IRWXU
        and status.st_uid == os.geteuid()
    )
