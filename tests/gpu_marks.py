"""The mark `gpu`, of tests that need one: `gpu`, `gpu("FP8")` or `gpu("Hopper")`."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import pytest

Capability = tuple[int, int]
# the least and the greatest compute capability of each kind
GPUS: dict[str, tuple[Capability, Capability]] = {
    "CUDA": ((1, 0), (99, 0)),
    "FP8": ((8, 9), (99, 0)),
    "Hopper": ((9, 0), (9, 0)),
}


@functools.cache
def capability_here() -> Capability:
    """The first GPU's; (0, 0) where there is none."""
    if not Path("/dev/nvidiactl").exists():
        return 0, 0  # without an import of torch, which many tests do without
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)


def missing_gpu(marks: Iterable[pytest.Mark], capability: Capability) -> str | None:
    """The kind of GPU that a test with these marks needs, if this one is not."""
    for mark in marks:
        (kind,) = mark.args or ("CUDA",)
        least, most = GPUS[kind]
        if not least <= capability <= most:
            return str(kind)
    return None
