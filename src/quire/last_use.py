"""The order in which the entries of a cache's folder were used, kept in their modification times.

The clock may be set, back or forward. An entry that is used gets a time after those of all others,
so the order holds whatever the clock says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_STEP = 1_000_000  # ns between two entries; some file systems store less than ns


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
