"""Each product of Llama-3.2-1B's layers on this CPU, by every way that can make it, in one run.

    python benchmarks/cpu_products.py --threads 2
    python benchmarks/cpu_products.py --rows 1,16,512 --seconds 0.03 --without avx2 torch

For each form of weights, shape and number of rows: PyTorch's products, oneDNN's with packed
weights, and the native ones of every instruction set that runs here; interleaved, medians. oneDNN's
products of bytes get rows that are rounded already, ours round them. Weights are taken by turns
from copies that together are larger than the caches. A way makes products for some ms before the
one that is timed: threads that wait for more work keep a core from those of the next way. Beside
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

import torch
import torch.nn.functional as F
from cpu_limits import BEST_OF, operation_rates, read_bandwidth
from record import save
from rich.console import Console
from rich.table import Table
from torch import Tensor

from quire.kernels import reference_quantized
from quire.kernels.cpu import native, native_linear
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.dispatch import kernels_for
from quire.quantization.int4 import INT4
from quire.quantization.int8 import INT8

SHAPES = {  # N, K
    "qkv": (3072, 2048),
    "o": (2048, 2048),
    "gate_up": (16384, 2048),
    "down": (2048, 8192),
    "head": (128256, 2048),
}
SETS = {  # those that multiply a form in a way of their own
    "float32": ("avx2", "avx512"),
    "bfloat16": ("avx2", "avx512", "avx512_bf16", "amx"),
    "int8": ("avx2", "avx2_vnni", "avx512", "avx512_vnni", "amx"),
    "int4": ("avx2", "avx2_vnni", "avx512", "avx512_vnni", "amx"),
}
BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "int4": 0.5 + 2 / 32}  # of a weight
GROUP = 32  # numbers that share a scale in four bits
WARM_UP = 0.01  # seconds, in which threads of the last way stop waiting for more on their core
MOST_LOGITS = 64  # rows of the head's product: a prompt needs it for its last token alone
L3 = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")

Way = tuple[list[Any], Callable[[Tensor, Any], Tensor]]  # weights in their form, what reads them


def ways(form: str, weights: list[Tensor], without: list[str]) -> dict[str, Way]:
    """How a product can be made, by name."""
    found = _peers(form, weights)
    lib = native.library()
    if lib is not None:
        packed = [_packed(form, weight) for weight in weights]
        for name in SETS[form]:
            if lib.quire_cpu_choose(name.encode()) is not None:
                found[name] = packed, _natively(name)
        lib.quire_cpu_choose(None)
    return {name: way for name, way in found.items() if name not in without}


def _natively(instruction_set: str) -> Callable[[Tensor, Any], Tensor]:
    lib = native.compiled()

    def multiply(x: Tensor, weight: Any) -> Tensor:
        lib.quire_cpu_choose(instruction_set.encode())
        return native_linear.linear(x, weight, None)

    return multiply


def _packed(form: str, weight: Tensor) -> Any:
    if form == "int8":
        return INT8.quantize(weight, kernels_for("cpu"))
    if form == "int4":
        return INT4.quantize(weight, kernels_for("cpu"))
    return native_linear.pack_floats(weight)


def _peers(form: str, weights: list[Tensor]) -> dict[str, Way]:
    if form == "int8":
        codes = [reference_quantized.quantize_int8(weight).codes for weight in weights]
        return {
            "torch": (codes, lambda x, w: torch._weight_int8pack_mm(x, w, x.new_ones(len(w)))),
            "onednn": ([_qlinear_packed(each) for each in codes], _qlinear),
        }
    if form == "int4":
        return {"torch": ([_torch_int4(weight) for weight in weights], _torch_int4_product)}
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


def _torch_int4_product(x: Tensor, weight: tuple[Tensor, Tensor]) -> Tensor:
    return torch._weight_int4pack_mm_for_cpu(x, weight[0], GROUP, weight[1])


def measure(
    name: str, form: str, limits: dict[str, float], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """One shape in one form of weights, at each number of rows."""
    n, k = SHAPES[name]
    size, dtype = n * k * BYTES[form], torch.float32 if form == "float32" else torch.bfloat16
    torch.manual_seed(0)
    first = torch.randn(n, k).div_(k**0.5).to(dtype)
    copies = [first.clone() for _ in range(int(_cache_bytes() / size) + 2)]
    made, results = ways(form, copies, args.without), []
    rate = max(limits[kind] for kind in BEST_OF[form] if kind in limits)
    for count in (int(n) for n in args.rows.split(",")):
        if name == "head" and count > MOST_LOGITS:
            continue
        x = torch.randn(count, k).to(dtype)
        if form == "int8":  # what `qlinear` reads is made once
            made |= _with_bytes(made, x)
        floor = max(size / limits["read_gb_per_s"], 2 * n * k * count / rate) / 1e9
        for way, seconds in _times(made, x, args.seconds).items():
            row = {"product": name, "form": form, "rows": count, "way": way}
            row |= {"ms": round(seconds * 1e3, 3), "floor_ms": round(floor * 1e3, 3)}
            row["gb_per_s"] = round(size / seconds / 1e9, 1)
            row["gop_per_s"] = round(2 * n * k * count / seconds / 1e9, 1)
            results.append(row)
    return results


def _cache_bytes() -> int:
    """Of the last cache, which a round of copies should exceed."""
    return int(L3.read_text().strip().removesuffix("K")) << 10 if L3.is_file() else 64 << 20


def _with_bytes(made: dict[str, Way], x: Tensor) -> dict[str, Way]:
    if "onednn" not in made:
        return {}
    codes = torch.randint(0, 255, x.shape, dtype=torch.uint8)
    return {"onednn": (made["onednn"][0], lambda _, weight: _qlinear(codes, weight))}


def _times(made: dict[str, Way], x: Tensor, seconds: float) -> dict[str, float]:
    """Median seconds of each way; each may take about so many."""
    times: dict[str, list[float]] = {way: [] for way in made}
    begin, turn, copy = time.perf_counter(), 0, itertools.count()
    while turn < 3 or time.perf_counter() - begin < seconds * len(made):
        for way, (weights, multiply) in made.items():
            ready = time.perf_counter() + WARM_UP
            while (start := time.perf_counter()) < ready:
                multiply(x, weights[next(copy) % len(weights)])
            multiply(x, weights[next(copy) % len(weights)])
            times[way].append(time.perf_counter() - start)
        turn += 1
    return {way: statistics.median(taken[1:]) for way, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,4,8,16,64,512")
    parser.add_argument("--products", default=",".join(SHAPES))
    parser.add_argument("--forms", default="bfloat16,int8,int4,float32")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each way of a product")
    parser.add_argument("--without", nargs="*", default=[], help="ways that are left out")
    parser.add_argument("--name", default="cpu_products", help="name of the result file")
    args = parser.parse_args()
    set_num_threads(args.threads)
    limits = {"read_gb_per_s": round(read_bandwidth(), 1)} | operation_rates(args.threads)
    print(limits, file=sys.stderr, flush=True)
    results = []
    for form in args.forms.split(","):
        for name in args.products.split(","):
            results += measure(name, form, limits, args)
            print(form, name, file=sys.stderr, flush=True)
    limits["read_gb_per_s_at_the_end"] = round(read_bandwidth(), 1)
    save(args.name, {"threads": args.threads, "limits": limits, "rows": results})
    show(results)


def show(results: list[dict[str, Any]]) -> None:
    """A line for each product and number of rows, a column for each way."""
    names = list(dict.fromkeys(r["way"] for r in results))
    table = Table(title="ms (GB/s of weights, GOP/s)")
    for column in ("product", "form", "rows", "floor", *names):
        table.add_column(column, justify="right")
    lines: dict[tuple[str, str, int, float], dict[str, str]] = {}
    for r in results:
        cell = f"{r['ms']:.2f} ({r['gb_per_s']:.0f}, {r['gop_per_s']:.0f})"
        key = r["product"], r["form"], r["rows"], r["floor_ms"]
        lines.setdefault(key, {})[r["way"]] = cell
    for (product, form, rows, floor), cells in lines.items():
        head = (product, form, str(rows), f"{floor:.2f}")
        table.add_row(*head, *(cells.get(name, "") for name in names))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
