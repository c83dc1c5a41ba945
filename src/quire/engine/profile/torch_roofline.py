"""The roofline measured with PyTorch, and how long calls take on its devices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from quire.dtypes import FP8_CAPABILITY
from quire.engine.profile.roofline import Call, Roofline, repeat
from quire.kernels.reference import FP8

_GPU_BYTES, _CPU_BYTES = 1 << 30, 1 << 28
_GPU_SIDE, _CPU_SIDE = 8192, 1024  # of the matrices


def measure_roofline(device: torch.device, dtype: torch.dtype, *, in_fp8: bool) -> Roofline:
    """Run the probes: about a second. in_fp8: whether there are weights in FP8."""
    on_gpu = device.type == "cuda"
    count = (_GPU_BYTES if on_gpu else _CPU_BYTES) // 4
    data, copy = _ones(count, device), _ones(count, device)
    reading = 4 * count / time_calls([data.sum], device)
    copying = 8 * count / time_calls([lambda: copy.copy_(data)], device)
    side = _GPU_SIDE if on_gpu else _CPU_SIDE
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    flops = 2 * side**3 / time_calls([lambda: a @ b], device)
    in_fp8 = in_fp8 and on_gpu and torch.cuda.get_device_capability(device) >= FP8_CAPABILITY
    return Roofline(max(reading, copying), flops, _fp8_rate(device) if in_fp8 else None)


def _ones(count: int, device: torch.device) -> torch.Tensor:
    """`count` ones in float32; on a CPU in pages of 2 MB, for which NumPy asks the system."""
    if device.type == "cpu":
        return torch.from_numpy(np.ones(count, np.float32))
    return torch.ones(count, device=device)


def _fp8_rate(device: torch.device) -> float:
    a, b = (torch.randn(_GPU_SIDE, _GPU_SIDE, device=device).to(FP8) for _ in range(2))
    one = torch.ones((), device=device)

    def matmul() -> torch.Tensor:
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return 2 * _GPU_SIDE**3 / time_calls([matmul], device)


def time_calls(calls: Sequence[Call], device: torch.device) -> float:
    """Seconds that all the calls take, one after the other: the median of several runs.

    On a GPU they are replayed from a graph, so that launching them costs nothing, as in a step.
    """
    for call in calls:
        call()
    return statistics.median(repeat(_replay(calls) if device.type == "cuda" else _on_host(calls)))


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
