"""What a device can do at best, measured, and how long calls take on it.

Two rates bound every operation (Williams et al., 2009): bytes a second, by reading and copying more
than the caches hold, and FLOP a second, by one large matrix product.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]

_GPU_BYTES, _CPU_BYTES = 1 << 30, 1 << 28
_GPU_SIDE, _CPU_SIDE = 8192, 1024  # of the matrices
_LEAST_SECONDS = 0.2  # of repeating what is timed
_LEAST_RUNS, _MOST_RUNS = 3, 50


@dataclass(frozen=True, slots=True)
class Roofline:
    """Measured rates of a device for one data type."""

    bytes_per_second: float
    flops_per_second: float

    def floor(self, num_bytes: float, flops: float) -> float:
        """The least seconds for such work."""
        return max(num_bytes / self.bytes_per_second, flops / self.flops_per_second)

    def is_memory_bound(self, num_bytes: float, flops: float) -> bool:
        """Whether the bytes take longer than the arithmetic."""
        return num_bytes / self.bytes_per_second >= flops / self.flops_per_second


def measure_roofline(device: torch.device, dtype: torch.dtype) -> Roofline:
    """Run the probes: about a second."""
    on_gpu = device.type == "cuda"
    count = (_GPU_BYTES if on_gpu else _CPU_BYTES) // 4
    data, copy = torch.ones(count, device=device), torch.empty(count, device=device)
    reading = 4 * count / time_calls([data.sum], device)
    copying = 8 * count / time_calls([lambda: copy.copy_(data)], device)
    side = _GPU_SIDE if on_gpu else _CPU_SIDE
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    product = 2 * side**3 / time_calls([lambda: a @ b], device)
    return Roofline(max(reading, copying), product)


def time_calls(calls: Sequence[Call], device: torch.device) -> float:
    """Seconds that all the calls take, one after the other: the median of several runs.

    On a GPU they are replayed from a graph, so that launching them costs nothing, as in a step.
    """
    for call in calls:
        call()
    run = _replay(calls) if device.type == "cuda" else _on_host(calls)
    times: list[float] = []
    begin = time.monotonic()
    while len(times) < _LEAST_RUNS or (
        len(times) < _MOST_RUNS and time.monotonic() - begin < _LEAST_SECONDS
    ):
        times.append(run())
    return statistics.median(times)


def _on_host(calls: Sequence[Call]) -> Callable[[], float]:
    def run() -> float:
        begin = time.perf_counter()
        for call in calls:
            call()
        return time.perf_counter() - begin

    return run


def _replay(calls: Sequence[Call]) -> Callable[[], float]:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()

    def run() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return run
