"""Timing on a GPU: graphs of launches over more data than the cache holds, medians of replays.

Also compiling beforehand in many processes, and the options that programs share.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import record
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

DEVICE = "cuda"
DTYPE = torch.bfloat16
CACHE = 256 * 2**20  # bytes; several times the L2 of any GPU here
REPLAYS = 7
Config = TypeVar("Config")


def gpu_parser(
    doc: str | None, name: str, seconds: float = 600.0, *, compiles: bool = True
) -> argparse.ArgumentParser:
    """The parser of a program that times kernels. name: of its result file."""
    made = record.parser(doc, name)
    if compiles:
        made.add_argument("--workers", type=int, default=1, help="that compile beforehand")
    made.add_argument("--seconds", type=float, default=seconds, help="for all of it")
    return made


def parse_on_gpu(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options; ends the program where there is no GPU. Random numbers are seeded."""
    args = parser.parse_args()
    record.require_gpu()
    torch.manual_seed(0)
    return args


def save(args: argparse.Namespace, **measured: Any) -> Path:
    """Write the result file that the options name, and return its path."""
    return record.save(args.name, {"gpu": torch.cuda.get_device_name()} | measured, args.out)


@functools.cache
def num_sms() -> int:
    """The GPU's multiprocessors."""
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


class Budget:
    """Seconds that a run may take."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left; negative once over."""
        return self.end - time.monotonic()


def copies_beyond_cache(num_bytes: int, most: int = 64) -> int:
    """Number of buffers of this size to take in turn, so that none is found in the cache."""
    return max(1, min(most, -(-CACHE // num_bytes)))


def time_graph(calls: Sequence[Callable[[], object]], least_us: float = 400.0) -> float:
    """Microseconds of one call, from replays of a graph that holds all of them, several times over.

    Each call is first made once outside the graph, which compiles it.
    """
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph, rounds = capture_rounds(calls, least_us)
    times = [replay(graph) for _ in range(REPLAYS)]
    return statistics.median(times) / (rounds * len(calls))


def time_interleaved(
    calls: dict[Config, Sequence[Callable[[], object]]], least_us: float = 400.0
) -> dict[Config, float]:
    """Times of all calls, interleaved, so that drift does not count as a difference."""
    made = {config: capture_rounds(each, least_us) for config, each in calls.items()}
    us = replay_interleaved({config: graph for config, (graph, _) in made.items()}, 2 * REPLAYS)
    return {config: us[config] / (made[config][1] * len(calls[config])) for config in calls}


def replay_interleaved(
    graphs: Mapping[Config, torch.cuda.CUDAGraph], times: int = REPLAYS
) -> dict[Config, float]:
    """Median microseconds of each graph."""
    found = [{config: replay(graph) for config, graph in graphs.items()} for _ in range(times)]
    return {config: statistics.median(each[config] for each in found) for config in graphs}


def capture_rounds(
    calls: Sequence[Callable[[], object]], least_us: float
) -> tuple[torch.cuda.CUDAGraph, int]:
    """A graph that takes so long, if twenty rounds of all calls do, and how many it has."""
    graph, once = capture(calls, 1)
    rounds = max(1, min(20, int(least_us / max(once, 1.0))))
    if rounds > 1:
        del graph
        graph, _ = capture(calls, rounds)
    return graph, rounds


def capture(
    calls: Sequence[Callable[[], object]], rounds: int
) -> tuple[torch.cuda.CUDAGraph, float]:
    """A graph, and the microseconds of its second replay."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    replay(graph)
    return graph, replay(graph)


def replay(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of one replay."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000


@triton.jit
def _read_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    total = tl.zeros([BLOCK], tl.float32)
    step = tl.num_programs(0) * BLOCK
    for start in tl.range(tl.program_id(0) * BLOCK, n, step, num_stages=4):
        total += tl.load(x_ptr + start + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


def read_bandwidth() -> float:
    """The best rate of reading memory in bytes a second, by a kernel that only reads."""
    n = 2**30
    x, out = torch.randn(n, device=DEVICE), torch.empty(4096, device=DEVICE)
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    best = 0.0
    for per_sm in (4, 8, 16):
        for block in (2048, 4096):
            call = lambda: _read_kernel[(per_sm * num_sms,)](x, out, n, block, num_warps=8)  # noqa: B023, E731
            best = max(best, 4 * n / time_graph([call]) * 1e6)
    return best


def launch_us() -> float:
    """Cost of one kernel in a graph, whatever it does."""
    x, out = torch.randn(4096, device=DEVICE), torch.empty(64, device=DEVICE)
    return time_graph([lambda: _read_kernel[(1,)](x, out, 128, 128, num_warps=4)] * 50)


def precompile(
    run: Callable[..., None], cases: Sequence[tuple[Any, ...]], workers: int, budget: Budget
) -> None:
    """Run each case once in some other process, which leaves its kernels in the cache on disk."""
    if workers < 2:
        return
    begin, failures = time.monotonic(), 0
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        jobs = [pool.apply_async(run, case) for case in cases]
        for case, job in zip(cases, jobs, strict=True):
            try:
                job.get(max(1.0, budget.left))
            except multiprocessing.TimeoutError:
                print("out of time while compiling")
                break
            except Exception as error:
                failures += 1
                if failures <= 3:
                    print(f"FAILED {case}: {type(error).__name__}: {str(error)[:300]}")
    seconds = time.monotonic() - begin
    print(f"{len(cases)} cases compiled in {seconds:.1f} s, {failures} failed", flush=True)


def differs(out: Tensor, expected: Tensor, limit: float = 1e-2) -> str:
    """The relative error of out, as text; empty if it is below the limit."""
    error = ((out.float() - expected.float()).norm() / expected.float().norm()).item()
    return "" if error < limit else f"relative error {error:.2e}"


def time_configs(
    configs: Sequence[Any],
    make: Callable[[Any], Sequence[Callable[[], Tensor]]],
    expected: Tensor | None,
    label: str,
    *,
    limit: float = 1e-2,
    least_us: float = 400.0,
) -> list[dict[str, Any]]:
    """Check and time each config of a kernel; the quickest first.

    make: a config → calls on different data, the first of which should give `expected`. Those that
    fail or are wrong are printed and left out.
    """
    rows = []
    for config in configs:
        try:
            calls = make(config)
            error = "" if expected is None else differs(calls[0](), expected, limit)
            if not error:
                rows.append({"config": asdict(config), "us": time_graph(calls, least_us)})
        except (RuntimeError, TritonError) as failure:
            error = f"{type(failure).__name__}: {str(failure)[:200]}"
        if error:
            print(f"WRONG {label} {config}: {error}", flush=True)
    return sorted(rows, key=lambda row: row["us"])


def brief(config: dict[str, Any]) -> str:
    """A config in few words."""
    return " ".join(f"{key}={value}" for key, value in config.items() if value)
