"""Each linear layer of Llama-3.2-1B on this CPU, by every kernel that computes it, in one run.

    python benchmarks/cpu_linear.py --threads 2
    python benchmarks/cpu_linear.py --rows 1,16,512 --seconds 0.03 --without avx2 torch

For each weight format, shape and number of rows: PyTorch's matmuls, oneDNN's with packed
weights, and the native ones of every instruction set that runs here; interleaved, medians. oneDNN's
matmuls of bytes get rows that are rounded already, ours round them. Weights are taken in turn
from copies that together are larger than the caches. A kernel runs for some ms before the
one that is timed: threads that wait for more work keep a core from those of the next kernel. Beside
them stands what limits them: the read bandwidth, and each kind of multiply-add in a loop that stays
in registers (cpu_limits.py).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
import torch
import torch.nn.functional as F
from cpu_limits import BEST_OF, WEIGHT_BYTES, operation_rates, read_bandwidth
from rich.console import Console
from rich.table import Table
from torch import Tensor

from quire.kernels import reference_quantized
from quire.kernels.cpu import native, native_linear
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.dispatch import kernels_for
from quire.kernels.formats.int4 import INT4
from quire.kernels.formats.int8 import INT8

SHAPES = {  # N, K
    "qkv": (3072, 2048),
    "o": (2048, 2048),
    "gate_up": (16384, 2048),
    "down": (2048, 8192),
    "head": (128256, 2048),
}
SETS = {  # those that multiply a fmt in a kernel of their own
    "float32": ("avx2", "avx512"),
    "bfloat16": ("avx2", "avx512", "avx512_bf16", "amx"),
    "int8": ("avx2", "avx2_vnni", "avx512", "avx512_vnni", "amx"),
    "int4": ("avx2", "avx2_vnni", "avx512", "avx512_vnni", "amx"),
}
GROUP = 32  # numbers that share a scale in four bits
WARM_UP = 0.01  # seconds, in which threads of the last kernel stop waiting for more on their core
MOST_LOGITS = 64  # rows of the head's matmul: a prompt needs it for its last token alone
L3 = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")

Kernel = tuple[list[Any], Callable[[Tensor, Any], Tensor]]  # weights in their fmt, what reads them


def kernels(fmt: str, weights: list[Tensor], without: list[str]) -> dict[str, Kernel]:
    """The kernels that compute a linear layer, by name."""
    found = _peers(fmt, weights)
    lib = native.library()
    if lib is not None:
        packed = [_packed(fmt, weight) for weight in weights]
        for name in SETS[fmt]:
            if lib.quire_cpu_choose(name.encode()) is not None:
                found[name] = packed, _natively(name)
        lib.quire_cpu_choose(None)
    return {name: kernel for name, kernel in found.items() if name not in without}


def _natively(instruction_set: str) -> Callable[[Tensor, Any], Tensor]:
    lib = native.compiled()

    def multiply(x: Tensor, weight: Any) -> Tensor:
        lib.quire_cpu_choose(instruction_set.encode())
        return native_linear.linear(x, weight, None)

    return multiply


def _packed(fmt: str, weight: Tensor) -> Any:
    if fmt == "int8":
        return kernels_for("cpu").quantize(weight, INT8.spec)
    if fmt == "int4":
        return kernels_for("cpu").quantize(weight, INT4.spec)
    return native_linear.pack_floats(weight)


def _peers(fmt: str, weights: list[Tensor]) -> dict[str, Kernel]:
    if fmt == "int8":
        codes = [reference_quantized.quantize_int8(weight).codes for weight in weights]
        return {
            "torch": (codes, lambda x, w: torch._weight_int8pack_mm(x, w, x.new_ones(len(w)))),
            "onednn": ([_qlinear_packed(each) for each in codes], _qlinear),
        }
    if fmt == "int4":
        return {"torch": ([_torch_int4(weight) for weight in weights], _torch_int4_matmul)}
    packed = [torch.ops.mkldnn._reorder_linear_weight(weight) for weight in weights]
    return {"torch": (weights, F.linear), "onednn": (packed, _onednn)}


def _onednn(x: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return out


def _qlinear_packed(codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n, k = codes.shape
    zeros = torch.zeros(n, dtype=torch.int64)
    return torch.ops.onednn.qlinear_prepack(codes.t(), [1, k]), torch.ones(n), zeros


def _qlinear(x: Tensor, weight: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    out: Tensor = torch.ops.onednn.qlinear_pointwise(
        x, 1.0, 128, *weight, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return out


def _torch_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    n, k = weight.shape
    codes = torch.randint(0, 16, (n, k), dtype=torch.int32)
    scales = torch.ones(k // GROUP, n, 2, dtype=torch.bfloat16)
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1), scales


def _torch_int4_matmul(x: Tensor, weight: tuple[Tensor, Tensor]) -> Tensor:
    return torch._weight_int4pack_mm_for_cpu(x, weight[0], GROUP, weight[1])


def measure(
    name: str, fmt: str, limits: dict[str, float], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """One shape in one weight format, at each number of rows."""
    n, k = SHAPES[name]
    size, dtype = n * k * WEIGHT_BYTES[fmt], torch.float32 if fmt == "float32" else torch.bfloat16
    torch.manual_seed(0)
    first = torch.randn(n, k).div_(k**0.5).to(dtype)
    copies = [first.clone() for _ in range(int(_cache_bytes() / size) + 2)]
    made, results = kernels(fmt, copies, args.without), []
    rate = max(limits[kind] for kind in BEST_OF[fmt] if kind in limits)
    for count in (int(n) for n in args.rows.split(",")):
        if name == "head" and count > MOST_LOGITS:
            continue
        x = torch.randn(count, k).to(dtype)
        if fmt == "int8":  # what `qlinear` reads is made once
            made |= _with_bytes(made, x)
        floor = max(size / limits["read_gb_per_s"], 2 * n * k * count / rate) / 1e9
        for kernel, seconds in _times(made, x, args.seconds).items():
            row = {"layer": name, "weights": fmt, "rows": count, "kernel": kernel}
            row |= {"ms": round(seconds * 1e3, 3), "floor_ms": round(floor * 1e3, 3)}
            row["gb_per_s"] = round(size / seconds / 1e9, 1)
            row["gop_per_s"] = round(2 * n * k * count / seconds / 1e9, 1)
            results.append(row)
    return results


def _cache_bytes() -> int:
    """Bytes of the last-level cache, which a round of copies should exceed."""
    return int(L3.read_text().strip().removesuffix("K")) << 10 if L3.is_file() else 64 << 20


def _with_bytes(made: dict[str, Kernel], x: Tensor) -> dict[str, Kernel]:
    if "onednn" not in made:
        return {}
    codes = torch.randint(0, 255, x.shape, dtype=torch.uint8)
    return {"onednn": (made["onednn"][0], lambda _, weight: _qlinear(codes, weight))}


def _times(made: dict[str, Kernel], x: Tensor, seconds: float) -> dict[str, float]:
    """Median seconds of each kernel. seconds: about how long each is measured."""
    times: dict[str, list[float]] = {kernel: [] for kernel in made}
    begin, turn, copy = time.perf_counter(), 0, itertools.count()
    while turn < 3 or time.perf_counter() - begin < seconds * len(made):
        for kernel, (weights, multiply) in made.items():
            ready = time.perf_counter() + WARM_UP
            while (start := time.perf_counter()) < ready:
                multiply(x, weights[next(copy) % len(weights)])
            multiply(x, weights[next(copy) % len(weights)])
            times[kernel].append(time.perf_counter() - start)
        turn += 1
    return {kernel: statistics.median(taken[1:]) for kernel, taken in times.items()}


def main() -> None:
    parser = record.parser(__doc__, "cpu_linear")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,4,8,16,64,512")
    parser.add_argument("--layers", default=",".join(SHAPES))
    parser.add_argument("--weights", default="bfloat16,int8,int4,float32")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each kernel of a layer")
    parser.add_argument("--without", nargs="*", default=[], help="kernels that are left out")
    args = parser.parse_args()
    if unknown := {*args.layers.split(",")} - {*SHAPES}:
        parser.error(f"--layers: {unknown.pop()!r} is none of {', '.join(SHAPES)}")
    set_num_threads(args.threads)
    limits = {"read_gb_per_s": round(read_bandwidth(), 1)} | operation_rates(args.threads)
    print(limits, file=sys.stderr, flush=True)
    results = []
    for fmt in args.weights.split(","):
        for name in args.layers.split(","):
            results += measure(name, fmt, limits, args)
            print(fmt, name, file=sys.stderr, flush=True)
    limits["read_gb_per_s_at_the_end"] = round(read_bandwidth(), 1)
    record.save(args.name, {"threads": args.threads, "limits": limits, "rows": results}, args.out)
    show(results)


def show(results: list[dict[str, Any]]) -> None:
    """A line for each layer and number of rows, a column for each kernel."""
    names = list(dict.fromkeys(r["kernel"] for r in results))
    table = Table(title="ms (GB/s of weights, GOP/s)")
    for column in ("layer", "weights", "rows", "floor", *names):
        table.add_column(column, justify="right")
    lines: dict[tuple[str, str, int, float], dict[str, str]] = {}
    for r in results:
        cell = f"{r['ms']:.2f} ({r['gb_per_s']:.0f}, {r['gop_per_s']:.0f})"
        key = r["layer"], r["weights"], r["rows"], r["floor_ms"]
        lines.setdefault(key, {})[r["kernel"]] = cell
    for (layer, fmt, rows, floor), cells in lines.items():
        head = (layer, fmt, str(rows), f"{floor:.2f}")
        table.add_row(*head, *(cells.get(name, "") for name in names))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
