"""Times attention of decodes by the kernel of all GPUs and by Hopper's, by turns."""

from __future__ import annotations

import argparse
import itertools
from typing import Any

from gpu_attention import DECODES, KV_DTYPES, attention_inputs, decode_calls, kv_bytes
from gpu_shapes import MODELS, Model
from gpu_timing import (
    Budget,
    capture,
    differs,
    precompile,
    replay_interleaved,
)

from quire.kernels.triton.launch import attention_config
from quire.kernels.triton.launch.attention_config import DecodeConfig, HopperDecodeConfig

# as saturated engines have them, before those of other benchmarks
CASES = [
    *((f"{batch} x {length}", [length] * batch) for batch, length in (
        (128, 2112), (512, 1500), (64, 21000), (1024, 192),
    )),
    *DECODES,
]  # fmt: skip


def cuts(model: Model, kv_dtype: str) -> list[HopperDecodeConfig]:
    """Programs of a multiprocessor that hold 32 to 96 KiB each, in tiles of 64 and of 128 keys."""
    row = 2 * model.head_dim * KV_DTYPES[kv_dtype].itemsize  # of a key and its value
    fills = [(1, 2**16), (1, 3 * 2**15), (2, 2**16), (3, 2**15)]
    configs = itertools.product(fills, (64, 128) if row < 512 else (64,))
    return [
        HopperDecodeConfig(n, memory // (row * tile), tile=tile) for (n, memory), tile in configs
    ]


def config_name(config: HopperDecodeConfig) -> str:
    """Programs of a multiprocessor, tiles of each, and keys of a tile."""
    return f"{config.per_sm} x {config.slots} x {config.tile}"


def decode_hopper(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Both kernels as they are cut by rule, and Hopper's as for other numbers, and otherwise."""
    shapes = list(itertools.product(args.models, KV_DTYPES))
    cases = [
        (name, kv_dtype, config)
        for name, kv_dtype in shapes
        for config in cuts(MODELS[name], kv_dtype)
    ]
    precompile(run_once, cases, args.workers, budget)
    for (label, lens), (name, kv_dtype) in itertools.product(CASES, shapes):
        if budget.left < 0:
            return
        model = MODELS[name]
        query, caches, layout = attention_inputs(model, [1] * len(lens), lens, kv_dtype)
        k_cache = caches[0][0]
        group = model.heads // model.kv_heads
        rule, *others = (
            attention_config.hopper_decode_config(k_cache, group, n)
            for n in (len(lens), 1, 16, 64, 1024)
        )
        configs: dict[str, DecodeConfig | HopperDecodeConfig] = {
            "all GPUs": attention_config.decode_config(k_cache, len(lens)),
            **{config_name(config): config for config in [rule, *others, *cuts(model, kv_dtype)]},
        }
        calls = {config: decode_calls(query, caches, layout, configs[config]) for config in configs}
        expected = calls["all GPUs"][0]()
        wrong = [config for config in configs if differs(calls[config][0](), expected)]
        if wrong:
            print(f"WRONG decode_hopper {name} {kv_dtype} {label}: {wrong}", flush=True)
            continue
        num_bytes = kv_bytes(model, lens, kv_dtype)
        rounds = max(1, min(20, 400_000_000 // (len(caches) * num_bytes)))
        graphs = {config: capture(calls[config], rounds)[0] for config in configs}
        times = replay_interleaved(graphs)
        us = {config: taken / (rounds * len(caches)) for config, taken in times.items()}
        shown = "  ".join(f"{config} {taken:.1f}" for config, taken in us.items())
        share = num_bytes / us[config_name(rule)] * 1e6 / args.bandwidth
        print(f"decode_hopper {name} {kv_dtype} {label:10} {share:4.0%}  {shown}", flush=True)
        results.append(
            {"model": name, "kv_dtype": kv_dtype, "batch": label, "bytes": num_bytes, "us": us}
        )


def run_once(name: str, kv_dtype: str, config: HopperDecodeConfig) -> None:
    """One small call, for what it leaves in the cache of compiled kernels."""
    query, caches, layout = attention_inputs(MODELS[name], [1], [64], kv_dtype)
    decode_calls(query, caches[:1], layout, config)[0]()
