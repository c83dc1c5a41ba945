"""Folders of the user's cache, and the order in which their entries were used.

That order is kept in the entries' modification times.

The clock may be set, back or forward. An entry that is used gets a time after those of all others,
so the order holds whatever the clock says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

NO_HOME = "there is no home folder; set HOME, or XDG_CACHE_HOME to a folder for caches"
_STEP = 1_000_000  # ns between two entries; some file systems store less than ns


def user_cache(name: str) -> Path | None:
    """Quire's folder of that name in the user's cache; None for a user without a home folder.

    A relative XDG_CACHE_HOME is ignored, as its standard says: the folder would be another one in
    each folder that a command is run in.
    """
    home = os.path.expanduser("~")  # unlike Path's, raises nothing where the system knows none
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.join(home, ".cache") if home != "~" else ""
    return Path(cache, "quire", name) if cache else None


def mark_used(entry: Path, others: Iterable[Path]) -> None:
    """Make an entry the one that was used last. others: those of its folder. Raises OSError."""
    os.utime(entry)
    latest = max((last_use(other) for other in others if other != entry), default=0)
    if latest >= last_use(entry):
        os.utime(entry, ns=(latest + _STEP, latest + _STEP))


def last_use(entry: Path) -> int:
    """A number that is greater for an entry used later; 0 for one that has gone, or is none."""
    try:
        return entry.stat().st_mtime_ns
    except OSError:  # also a link to itself
        return 0
