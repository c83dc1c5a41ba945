"""Warnings of options without effect, which point at the caller's line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from types import FrameType

from quire.errors import NoEffectWarning


def warn_no_effect(notices: Iterable[str]) -> None:
    """A NoEffectWarning for each sentence, at the first line outside of Quire."""
    for notice in notices:
        warnings.warn(notice, NoEffectWarning, stacklevel=_depth_of_caller())


def _depth_of_caller() -> int:
    """The `stacklevel` of the first frame outside of this package, as seen from the caller."""
    frame: FrameType | None = sys._getframe(1)
    depth = 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("quire."):
        frame, depth = frame.f_back, depth + 1
    return depth
