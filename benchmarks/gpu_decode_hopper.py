"""Times attention of decodes by the kernel of all GPUs and by Hopper's, by turns."""

from __future__ import annotations

import argparse
import itertools
import statistics
from typing import Any

from gpu_attention import DECODES, KEPT, attention_inputs, decode_calls, kv_bytes
from gpu_shapes import MODELS, Model
from gpu_timing import REPLAYS, Budget, capture, differs, precompile, replay

from quire.kernels.triton.launch import attention_config
from quire.kernels.triton.launch.attention_config import DecodeConfig, HopperDecodeConfig

# as saturated engines have them, before those of other benchmarks
CASES = [
    *((f"{batch} x {length}", [length] * batch) for batch, length in (
        (128, 2112), (512, 1500), (64, 21000), (1024, 192),
    )),
    *DECODES,
]  # fmt: skip


def cuts(model: Model, kept: str) -> list[HopperDecodeConfig]:
    """Programs of a multiprocessor that hold 32 to 96 KiB each, in tiles of 64 and of 128 keys."""
    row = 2 * model.head_dim * KEPT[kept].itemsize  # of a key and its value
    fills = [(1, 2**16), (1, 3 * 2**15), (2, 2**16), (3, 2**15)]
    ways = itertools.product(fills, (64, 128) if row < 512 else (64,))
    return [HopperDecodeConfig(n, room // (row * tile), tile=tile) for (n, room), tile in ways]


def cut_name(way: HopperDecodeConfig) -> str:
    """Programs of a multiprocessor, tiles of each, and keys of a tile."""
    return f"{way.per_sm} x {way.slots} x {way.tile}"


def decode_hopper(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Both kernels as they are cut by rule, and Hopper's as for other numbers, and otherwise."""
    shapes = list(itertools.product(args.models, KEPT))
    cases = [(name, kept, way) for name, kept in shapes for way in cuts(MODELS[name], kept)]
    precompile(run_once, cases, args.workers, budget)
    for (label, lens), (name, kept) in itertools.product(CASES, shapes):
        if budget.left < 0:
            return
        model = MODELS[name]
        query, caches, layout = attention_inputs(model, [1] * len(lens), lens, kept)
        k_cache = caches[0][0]
        group = model.heads // model.kv_heads
        rule, *others = (
            attention_config.hopper_decode_config(k_cache, group, n)
            for n in (len(lens), 1, 16, 64, 1024)
        )
        ways: dict[str, DecodeConfig | HopperDecodeConfig] = {
            "all GPUs": attention_config.decode_config(k_cache, len(lens)),
            **{cut_name(way): way for way in [rule, *others, *cuts(model, kept)]},
        }
        calls = {way: decode_calls(query, caches, layout, ways[way]) for way in ways}
        expected = calls["all GPUs"][0]()
        wrong = [way for way in ways if differs(calls[way][0](), expected)]
        if wrong:
            print(f"WRONG decode_hopper {name} {kept} {label}: {wrong}", flush=True)
            continue
        num_bytes = kv_bytes(model, lens, kept)
        rounds = max(1, min(20, 400_000_000 // (len(caches) * num_bytes)))
        graphs = {way: capture(calls[way], rounds)[0] for way in ways}
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(REPLAYS):
            for way, graph in graphs.items():
                times[way].append(replay(graph) / (rounds * len(caches)))
        us = {way: statistics.median(taken) for way, taken in times.items()}
        told = "  ".join(f"{way} {taken:.1f}" for way, taken in us.items())
        share = num_bytes / us[cut_name(rule)] * 1e6 / args.bandwidth
        print(f"decode_hopper {name} {kept} {label:10} {share:4.0%}  {told}", flush=True)
        results.append({"model": name, "kept": kept, "batch": label, "bytes": num_bytes, "us": us})


def run_once(name: str, kept: str, way: HopperDecodeConfig) -> None:
    """One small call, for what it leaves in the cache of compiled kernels."""
    query, caches, layout = attention_inputs(MODELS[name], [1], [64], kept)
    decode_calls(query, caches[:1], layout, way)[0]()
