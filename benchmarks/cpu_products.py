"""Each product of Llama-3.2-1B's layers on this CPU, by every way that can make it, in one run.

    python benchmarks/cpu_products.py --threads 2

For each shape and number of rows: PyTorch's plain product, oneDNN's with packed weights, and the
native one for every instruction set that runs here; interleaved, medians. Weights are taken by
turns from copies that together are larger than the caches. Beside them stands what limits them:
the read bandwidth, and the multiply-adds of a loop that stays in registers.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from record import save
from rich.console import Console
from rich.table import Table
from torch import Tensor

from quire.kernels.cpu import linear, matmul, native

SHAPES = {  # N, K
    "qkv": (3072, 2048),
    "o": (2048, 2048),
    "gate_up": (16384, 2048),
    "down": (2048, 8192),
    "head": (128256, 2048),
}
SETS = ("avx2", "avx512")
MOST_LOGITS = 64  # rows of the head's product: a prompt needs it for its last token alone
CACHES = 80 << 20  # bytes that a round of copies exceeds
PEAK = """
#include <stdio.h>
#include <thread>
#include <time.h>
#include <vector>
typedef float vec __attribute__((vector_size(WIDTH)));
static double seconds() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
                          return t.tv_sec + 1e-9 * t.tv_nsec; }
static void spin(vec* out) {
    vec a[12] = {}, x = *out, y = x + 1;
    for (long i = 0; i < ROUNDS; ++i) {
        for (int j = 0; j < 12; ++j) a[j] = a[j] * x + y;
        asm volatile("" : "+v"(x), "+v"(y));
    }
    for (vec v : a) *out += v;
}
int main() {
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
        const double begin = seconds();
        std::vector<std::thread> all;
        static vec outs[64 * THREADS];
        for (int t = 0; t < THREADS; ++t) all.emplace_back(spin, outs + 64 * t);
        for (auto& one : all) one.join();
        if (seconds() - begin < best) best = seconds() - begin;
    }
    printf("%f", THREADS * 12.0 * ROUNDS * (WIDTH / 4) * 2 / best / 1e9);
}
"""


def multiply_add_peak(threads: int, width: int) -> float:
    """GFLOP/s of multiply-adds on registers of so many bytes, by a program compiled for it."""
    flags = [
        "-O3",
        "-ffast-math",
        "-pthread",
        "-march=native",
        f"-mprefer-vector-width={8 * width}",
    ]
    defines = [f"-DTHREADS={threads}", f"-DWIDTH={width}", "-DROUNDS=20000000L"]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "peak.cpp", Path(folder) / "peak"
        source.write_text(PEAK)
        subprocess.run(["c++", *flags, *defines, "-o", program, source], check=True)
        return float(subprocess.run([program], check=True, capture_output=True).stdout)


def read_bandwidth() -> float:
    """GB/s of reading memory with all threads."""
    data, times = torch.ones(1 << 27), []
    for _ in range(5):
        begin = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - begin)
    return data.nbytes / min(times) / 1e9


def natively(instruction_set: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The native product as compiled for an instruction set."""
    lib = native.library()
    assert lib is not None

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        lib.quire_cpu_choose(instruction_set.encode())
        return linear.linear(x, weight, None)

    return multiply


def ways(weights: list[Tensor]) -> dict[str, tuple[list[Tensor], Callable[..., Tensor]]]:
    """How a product can be made: the weights in their form, and the function that reads it."""
    lib = native.library()
    found: dict[str, tuple[list[Tensor], Callable[..., Tensor]]] = {
        "torch": (weights, F.linear),
        "onednn": (
            [matmul.prepare_linear(w) for w in weights],
            lambda x, w: matmul.linear(x, w, None),
        ),
    }
    if lib is None:
        return found
    packed = [linear.pack(w) for w in weights]
    sets = [name for name in SETS if lib.quire_cpu_choose(name.encode()) is not None]
    return found | {name: (packed, natively(name)) for name in sets}


def measure(name: str, dtype: torch.dtype, rows: list[int], seconds: float) -> list[dict[str, Any]]:
    """One shape at each number of rows: seconds is about what one way of one product may take."""
    n, k = SHAPES[name]
    size = n * k * dtype.itemsize
    torch.manual_seed(0)
    copies = [(torch.randn(n, k) / k**0.5).to(dtype) for _ in range(CACHES // size + 1)]
    made, results = ways(copies), []
    for count in (n for n in rows if name != "head" or n <= MOST_LOGITS):
        x = torch.randn(count, k).to(dtype)
        times: dict[str, list[float]] = {way: [] for way in made}
        begin, turn = time.perf_counter(), 0
        while turn < 3 or time.perf_counter() - begin < seconds * len(made):
            for way, (weights, multiply) in made.items():
                start = time.perf_counter()
                multiply(x, weights[turn % len(weights)])
                times[way].append(time.perf_counter() - start)
            turn += 1
        for way, taken in times.items():
            middle = statistics.median(taken[1:])
            results.append(
                {"product": name, "dtype": str(dtype).removeprefix("torch."), "rows": count}
                | {"way": way, "ms": round(middle * 1e3, 3)}
                | {"gb_per_s": round(size / middle / 1e9, 1)}
                | {"gflop_per_s": round(2 * n * k * count / middle / 1e9, 1)}
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,2,4,8,16,64,512")
    parser.add_argument("--products", default=",".join(SHAPES))
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each way of a product")
    parser.add_argument("--name", default="cpu_products", help="name of the result file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    limits = {
        "read_gb_per_s": round(read_bandwidth(), 1),
        "gflop_per_s_avx2": round(multiply_add_peak(args.threads, 32), 1),
        "gflop_per_s_avx512": round(multiply_add_peak(args.threads, 64), 1)
        if torch.cpu._is_avx512_supported()
        else None,
    }
    print(limits, file=sys.stderr, flush=True)
    rows = [int(n) for n in args.rows.split(",")]
    results = []
    for dtype in args.dtypes.split(","):
        for name in args.products.split(","):
            results += measure(name, getattr(torch, dtype), rows, args.seconds)
            print(dtype, name, file=sys.stderr, flush=True)
    limits["read_gb_per_s_at_the_end"] = round(read_bandwidth(), 1)
    save(args.name, {"threads": args.threads, "limits": limits, "rows": results})
    show(results)


def show(results: list[dict[str, Any]]) -> None:
    """A line for each product and number of rows, a column for each way."""
    names = list(dict.fromkeys(r["way"] for r in results))
    table = Table(title="ms (GB/s of weights, GFLOP/s)")
    for column in ("product", "dtype", "rows", *names):
        table.add_column(column, justify="right")
    lines: dict[tuple[str, str, int], dict[str, str]] = {}
    for r in results:
        cell = f"{r['ms']:.2f} ({r['gb_per_s']:.0f}, {r['gflop_per_s']:.0f})"
        lines.setdefault((r["product"], r["dtype"], r["rows"]), {})[r["way"]] = cell
    for (product, dtype, rows), cells in lines.items():
        table.add_row(product, dtype, str(rows), *(cells.get(name, "") for name in names))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
