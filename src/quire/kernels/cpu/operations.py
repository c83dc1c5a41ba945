"""What the compiled kernels serve on a CPU; see native.py for when they are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.kernels.cpu import native

OPERATIONS: dict[str, Callable[..., Any]] = {"rms_norm": native.rms_norm}
