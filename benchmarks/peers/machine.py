"""Best rates of the machine, as one more engine: memory bandwidth and matrix products."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peers.worker import Load, Prompt, serve

_BYTES = 1 << 29  # read at once: more than any cache holds
_SIDE = 2048  # of the matrices
_RUNS = 9


class Machine:
    """`load` measures; there is nothing else to ask for."""

    def load(self, load: Load) -> dict[str, Any]:
        torch.set_num_threads(load.threads)
        return {"version": torch.__version__, "settings": {}, "rates": measure()}

    def prefill(self, prompt: Prompt) -> int:
        raise ValueError(f"a machine has no answer to a prompt of {len(prompt)}")

    def decode(self, streams: int, steps: int) -> tuple[float, int]:
        raise ValueError(f"a machine takes no {steps} steps in {streams} streams")


def measure() -> dict[str, float]:
    """GB/s of reading, and T(FL)OP/s of products in float32, bfloat16 and int8, by name."""
    data = torch.ones(_BYTES // 4)
    a, b = torch.randn(_SIDE, _SIDE), torch.randn(_SIDE, _SIDE)
    a16, b16 = a.bfloat16(), b.bfloat16()
    a8, weight, scales = _quantized(_SIDE)
    operations = 2 * _SIDE**3 / 1e12
    return {
        "read_gb_per_s": _BYTES / 1e9 / _seconds(data.sum),
        "float32_tflops": operations / _seconds(lambda: a @ b),
        "bfloat16_tflops": operations / _seconds(lambda: a16 @ b16),
        "int8_tops": operations / _seconds(lambda: _qlinear(a8, weight, scales)),
    }


def _quantized(side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows in uint8, a weight in int8 as oneDNN packs it, and a scale for each output."""
    rows = torch.randint(0, 255, (side, side), dtype=torch.uint8)
    weight = torch.randint(-99, 99, (side, side), dtype=torch.int8).t()
    return rows, torch.ops.onednn.qlinear_prepack(weight, [side, side]), torch.ones(side)


def _qlinear(rows: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    out: Tensor = torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, 128, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return out


def _seconds(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(_RUNS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)  # others may be on the machine: it reaches what it did once


if __name__ == "__main__":
    serve(Machine())
