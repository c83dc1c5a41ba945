"""Times linears with bytes by groups and 16-bit activations on a GPU, beside 16 bits and FP8.

    python benchmarks/gpu_int8_group.py --seconds 60

Each case is checked first. `us` is of the two planes of four bits that such weights are read as,
with what gathers their inputs; `bf16_us` and `fp8_us` of the same weight in these formats, FP8 with
what rounds its inputs. Each in a chain of launches over more weights than the cache holds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import record
import torch
from gpu_shapes import MODELS
from gpu_timing import (
    DEVICE,
    Budget,
    copies_beyond_cache,
    differs,
    precompile,
    time_interleaved,
)
from torch import Tensor

from quire.kernels import reference
from quire.kernels.operands import Fp8Weight, Int4Words, Int8GroupWeight, QuantSpec
from quire.kernels.triton.ops.int4_linear import widened
from quire.kernels.triton.ops.linear_table import linear_of, pack
from quire.kernels.triton.triton_operations import linear

Row = dict[str, Any]
LINEARS = "gate_up", "o", "qkv", "down"


def time_case(m: int, n: int, k: int, group: int) -> Row:
    """One number of rows of x with one shape."""
    numbers = torch.randn(n, k, device=DEVICE, dtype=torch.bfloat16) / k**0.5
    coded = reference.quantize(numbers, QuantSpec("int8_group", group))
    fp8 = reference.quantize(numbers, QuantSpec("fp8"))
    assert isinstance(coded, Int8GroupWeight)
    assert isinstance(fp8, Fp8Weight)
    words = pack(coded)
    assert isinstance(words, Int4Words)
    x = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    wrong = differs(linear_of(words).linear(x, words, None), x @ widened(words, x.dtype).t())
    copies = copies_beyond_cache(n * k, 16)
    operands: dict[str, list[Any]] = {
        "us": [replace(words, words=words.words.clone()) for _ in range(copies)],
        "bf16_us": [numbers.clone() for _ in range(max(1, copies // 2))],
        "fp8_us": [fp8.map_rows(Tensor.clone) for _ in range(copies)],
    }
    calls: dict[str, Sequence[Callable[[], object]]] = {
        name: [partial(linear, x, each, None) for each in own] for name, own in operands.items()
    }
    times = {name: round(us, 2) for name, us in time_interleaved(calls, 200.0).items()}
    row = {"m": m, "n": n, "k": k, "group": group, **times}
    ratio = times["bf16_us"] / times["us"]
    print(f"{n} x {k}, {m} rows: {times}, {ratio:.2f} times bfloat16's speed {wrong}", flush=True)
    return row | {"wrong": wrong} if wrong else row


def compile_case(m: int, n: int, k: int, group: int) -> None:
    """Run what serves so many rows once."""
    numbers = torch.zeros(n, k, device=DEVICE, dtype=torch.bfloat16)
    x = torch.zeros(m, k, device=DEVICE, dtype=torch.bfloat16)
    for spec in (QuantSpec("int8_group", group), QuantSpec("fp8")):
        weight: Any = pack(reference.quantize(numbers, spec))
        linear(x, weight, None)
    torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="8b", choices=list(MODELS))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 16, 64, 256, 512, 2048])
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=15, help="processes that compile")
    parser.add_argument("--results", type=Path, default=record.RESULTS, help="folder")
    args = parser.parse_args()
    budget, rows, shapes = Budget(args.seconds), list[Row](), MODELS[args.model].linear_shapes()
    cases = [(m, *shapes[name], args.group) for m in args.rows for name in LINEARS]
    precompile(compile_case, cases, args.workers, budget)
    for case in cases:
        if budget.left < 2:
            print(f"{case}: left out, the {args.seconds} seconds are over")
            continue
        rows.append(time_case(*case))
        record.save("gpu_int8_group", {"model": args.model, "rows": rows}, args.results)


if __name__ == "__main__":
    main()
