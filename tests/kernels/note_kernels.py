"""Records launches of a start for a GPU that need not be present; run by test_compiling.py.

Prints one line of JSON: how many kernels were recorded, how many of them were on disk when the
other processes had ended, and how many launchers those had compiled.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from quire.kernels.triton.compile import precompile
from quire.kernels.triton.step.elementwise import norm_kernel, silu_kernel

LAUNCHERS = Path(os.environ["TRITON_CACHE_DIR"], "launchers")


class Driver:
    """What Triton asks of a driver before it launches."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def launcher_cls(self, _: Any, metadata: Any) -> None:
        with LAUNCHERS.open("a") as file:
            file.write(f"{metadata.name}\n")


def note() -> None:
    """One kernel for two sizes, which have the same launcher, and another."""
    x = torch.zeros(2, 64)
    for block in (64, 32, 64):
        silu_kernel[(2,)](x, x, 32, 64, BLOCK=block, INTERLEAVED=False, GELU=False, PDL=False)
    norm_kernel[(2,)](
        x, None, x[0], x, None, 64, 64, 64, 1e-5,
        HAS_RESIDUAL=False, HAS_SCALE=False, BLOCK=64, PDL=False,
    )  # fmt: skip


if __name__ == "__main__":
    triton.runtime.driver.set_active(Driver())
    found: dict[str, Any] = {}
    finish = precompile.ForkedWorkers.finish

    def count(workers: precompile.ForkedWorkers) -> None:
        finish(workers)
        folders = {path.parent for path in LAUNCHERS.parent.glob("*/__grp__*")}
        found["on_disk"] = len(folders)
        found["launchers"] = len(LAUNCHERS.read_text().splitlines())

    precompile.ForkedWorkers.finish = count  # type: ignore[method-assign]
    with precompile.only_compiling():
        note()
    found["noted"] = sum(len(k.device_caches[0][0]) for k in (norm_kernel, silu_kernel))
    print(json.dumps(found))
