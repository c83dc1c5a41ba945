"""Times decode attention over FP8 by the kernel of all GPUs and by Hopper's, by turns."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from gpu_attention import DECODES, attention_inputs, decode_calls, kv_bytes
from gpu_timing import MODELS, REPLAYS, Budget, capture, differs, replay

from quire.kernels.triton import tuning
from quire.kernels.triton.tuning import DecodeConfig, HopperDecodeConfig

# as saturated engines have them, before those of other benchmarks
CASES = [
    *((f"{batch} x {length}", [length] * batch) for batch, length in (
        (128, 2112), (512, 1500), (64, 21000), (1024, 192),
    )),
    *DECODES,
]  # fmt: skip
CUTS = ((2, 4), (3, 2), (3, 4), (4, 2))  # per_sm, and slots with 128 dimensions


def decode_fp8(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Both kernels as they are cut by rule, and other cuts of Hopper's."""
    for label, lens in CASES:
        for name in args.models:
            if budget.left < 0:
                return
            model = MODELS[name]
            query, caches, layout = attention_inputs(model, [1] * len(lens), lens, "fp8")
            k_cache = caches[0][0]
            ways: dict[str, DecodeConfig | HopperDecodeConfig] = {
                "all GPUs": tuning.decode_config(k_cache, len(lens)),
                "Hopper": tuning.hopper_decode_config(
                    k_cache, model.heads // model.kv_heads, len(lens)
                ),
            }
            for per_sm, slots in CUTS:
                way = HopperDecodeConfig(per_sm, slots * 128 // model.head_dim)
                ways[f"{per_sm} x {slots}"] = way
            calls = {way: decode_calls(query, caches, layout, ways[way]) for way in ways}
            expected = calls["all GPUs"][0]()
            wrong = [way for way in ways if differs(calls[way][0](), expected, 4e-3)]
            if wrong:
                print(f"WRONG decode_fp8 {name} {label}: {wrong}", flush=True)
                continue
            rounds = max(1, min(20, 400_000_000 // (len(caches) * kv_bytes(model, lens, "fp8"))))
            graphs = {way: capture(calls[way], rounds)[0] for way in ways}
            times: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(REPLAYS):
                for way, graph in graphs.items():
                    times[way].append(replay(graph) / (rounds * len(caches)))
            us = {way: statistics.median(taken) for way, taken in times.items()}
            share = kv_bytes(model, lens, "fp8") / us["Hopper"] * 1e6 / args.bandwidth
            told = "  ".join(f"{way} {taken:.1f}" for way, taken in us.items())
            print(f"decode_fp8 {name} {label:10} {share:4.0%}  {told}", flush=True)
            results.append({"model": name, "batch": label, "share_of_bandwidth": share, "us": us})
