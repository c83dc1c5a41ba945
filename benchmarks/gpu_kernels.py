"""Checks and times the GPU kernels one by one, with many configs of each.

python benchmarks/gpu_kernels.py --seconds 300 --tune
python benchmarks/gpu_kernels.py --table benchmarks/results/gpu_linear.json

Parts: tune (configs of heads' GEMMs, and all GEMMs beside the library's), chain (a model's GEMMs
in sequence), layers (with attention), decode, decode_hopper (two kernels in turn), prefill, rows
(configs of GEMMs of many rows in FP8). Prints as it goes, and writes the result file after each
part.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import gpu_timing
import torch
from gpu_attention import decode, prefill
from gpu_chains import chain
from gpu_decode_hopper import decode_hopper
from gpu_layers import layers
from gpu_linear import tune, write_table
from gpu_rows import rows, write_rows
from gpu_shapes import LINEARS, MODELS, SHAPES
from gpu_timing import Budget, gpu_parser, parse_on_gpu

PARTS = {
    "tune": tune, "chain": chain, "layers": layers, "decode": decode,
    "decode_hopper": decode_hopper, "prefill": prefill, "rows": rows,
}  # fmt: skip
WRITERS = {
    "tune": write_table,
    "rows": write_rows,
}  # of the table that gemm_tuning.py reads


def main() -> None:
    parser = gpu_parser(__doc__, "gpu_kernels", 300)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS][:-1])
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(MODELS))
    parser.add_argument("--itemsizes", nargs="+", type=int, choices=[2, 1], default=[2, 1])
    parser.add_argument("--linears", nargs="+", choices=LINEARS, default=LINEARS)
    parser.add_argument("--rows", nargs="+", type=int, default=[64, 16, 1, 8, 32])
    parser.add_argument("--compile", action="store_true", help="only compile what is timed")
    parser.add_argument("--tune", action="store_true", help="make the best ways the table")
    parser.add_argument("--table", type=Path, help="only make the table, from this result file")
    parser.set_defaults(workers=max(1, (os.cpu_count() or 2) - 2))
    args = parse_on_gpu(parser)
    if args.table:
        result = json.loads(args.table.read_text())
        for part in WRITERS.keys() & result:
            WRITERS[part](result)
    else:
        measure(args)


def measure(args: argparse.Namespace) -> None:
    """Run the wanted parts within the budget."""
    budget = Budget(args.seconds)
    if args.compile:
        for part in {"tune", "chain", "rows"} & set(args.only):
            PARTS[part](budget, args, [])
        return
    args.bandwidth = gpu_timing.read_bandwidth()
    measured: dict[str, Any] = {
        "num_sms": gpu_timing.num_sms(),
        "read_bandwidth": args.bandwidth,
        "launch_us": gpu_timing.launch_us(),
    }
    print(
        f"{torch.cuda.get_device_name()}: reads {args.bandwidth / 1e12:.2f} TB/s, "
        f"a launch in a graph takes {measured['launch_us']:.2f} us",
        flush=True,
    )
    for part in args.only:
        measured[part] = []
        try:
            PARTS[part](budget, args, measured[part])
        finally:  # what was measured before a failure is kept
            path = gpu_timing.save(args, **measured)
        if part in WRITERS and args.tune:
            WRITERS[part](measured)
        torch.cuda.empty_cache()
        print(f"{part} done, {budget.left:.0f} s left, {path}", flush=True)


if __name__ == "__main__":
    main()
