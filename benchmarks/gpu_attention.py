"""Times attention over paged keys and values: decodes by batch and length, prefill chunks."""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.nn.functional as F
from gpu_shapes import MODELS, Model
from gpu_timing import (
    DEVICE,
    DTYPE,
    Budget,
    brief,
    copies_beyond_cache,
    differs,
    precompile,
    time_configs,
    time_graph,
)
from torch import Tensor

from quire.kernels import reference
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.operands import AttentionParams
from quire.kernels.triton.attention.attention_plan import make_plan
from quire.kernels.triton.launch import attention_config
from quire.kernels.triton.launch.attention_config import (
    DecodeConfig,
    HopperConfig,
    HopperDecodeConfig,
    PrefillConfig,
)
from quire.kernels.triton.launch.gemm_config import SHARED_MEMORY
from quire.kernels.triton.ops import paged_attention as triton_attention

# data types of the KV cache
PARAMS = AttentionParams(scale=0.1)
KV_DTYPES = {"bf16": DTYPE, "fp8": reference.FP8}


def attention_inputs(
    model: Model, queries: list[int], lens: list[int], kv_dtype: str = "bf16", block_size: int = 16
) -> tuple[Tensor, list[tuple[Tensor, Tensor]], BatchLayout]:
    """(query, caches of enough layers to outgrow the L2 cache, layout) with scattered blocks."""
    most = max(-(-n // block_size) for n in lens)
    ids = torch.randperm(most * len(lens), dtype=torch.int32).view(len(lens), most)
    layout = BatchLayout.build(queries, lens, ids.numpy(), block_size, DEVICE)
    shape = (ids.numel(), block_size, model.kv_heads, model.head_dim)
    copies = copies_beyond_cache(kv_bytes(model, lens, kv_dtype))
    numbers = lambda: torch.randn(shape, device=DEVICE, dtype=DTYPE).to(KV_DTYPES[kv_dtype])  # noqa: E731
    caches = [(numbers(), numbers()) for _ in range(copies)]
    query = torch.randn(sum(queries), model.heads, model.head_dim, device=DEVICE, dtype=DTYPE)
    return query, caches, layout


def kv_bytes(model: Model, lens: list[int], kv_dtype: str = "bf16") -> int:
    """Bytes of keys and values that one layer reads."""
    return sum(lens) * model.kv_heads * model.head_dim * 2 * KV_DTYPES[kv_dtype].itemsize


DECODES: list[tuple[str, list[int]]] = [
    *((f"{batch} x {length}", [length] * batch) for batch, length in (
        (1, 2048), (16, 2048), (64, 2048), (1, 512), (1, 8192), (64, 8192), (4, 2048), (256, 1024),
    )),
    ("64 ragged", [100 + 37 * i * i % 8000 for i in range(64)]),
]  # fmt: skip


def decode_configs(model: Model, kv_dtype: str, num_requests: int = 1) -> list[DecodeConfig]:
    """Ways to cut decode attention that fit in shared memory and fill it; more for one request."""
    row = 2 * model.head_dim * KV_DTYPES[kv_dtype].itemsize  # of a key and its value
    configs = []
    for tile, stages, per_sm in itertools.product((32, 64, 128), (1, 3, 4), (1, 2, 3)):
        flying = max(stages - 1, 1) * tile * row * per_sm
        fits = flying + 8192 * per_sm <= SHARED_MEMORY and tile * row <= 2**16
        full = flying >= 2**16 and stages > 1
        if fits and (full if num_requests > 1 else stages < 4):
            configs.append(DecodeConfig(tile, stages, per_sm))
    if num_requests == 1:
        configs += [replace(c, warps=8) for c in configs if c.tile >= 64 and c.per_sm < 3]
    return configs


def _compiled(model: Model, kv_dtype: str) -> set[DecodeConfig]:
    """The configs that differ in more than the number of programs."""
    configs = decode_configs(model, kv_dtype) + decode_configs(model, kv_dtype, 2)
    return {replace(choice, per_sm=1) for choice in configs}


def decode(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Decode attention by batch, length and data type of the KV cache."""
    shapes = list(itertools.product(args.models, KV_DTYPES))
    cases = [
        (name, config, kv_dtype)
        for name, kv_dtype in shapes
        for config in _compiled(MODELS[name], kv_dtype)
    ]
    precompile(run_once, cases, args.workers, budget)
    for label, lens in DECODES:
        for name, kv_dtype in shapes:
            if budget.left < 0:
                return
            model = MODELS[name]
            query, caches, layout = attention_inputs(model, [1] * len(lens), lens, kv_dtype)
            expected = reference.attention(query, *caches[0], layout, PARAMS)
            configs = decode_configs(model, kv_dtype, len(lens))
            make = functools.partial(decode_calls, query, caches, layout)
            rows = time_configs(configs, make, expected, f"decode {name} {kv_dtype} {label}")
            if not rows:
                continue
            rule = asdict(attention_config.decode_config(caches[0][0], len(lens)))
            rule_us = next((row["us"] for row in rows if row["config"] == rule), float("nan"))
            best, num_bytes = rows[0], kv_bytes(model, lens, kv_dtype)
            share = num_bytes / best["us"] * 1e6 / args.bandwidth
            print(
                f"decode {name} {kv_dtype} {label:10} {best['us']:7.2f} us {share:4.0%}"
                f"  rule {rule_us:7.2f}  {brief(best['config'])}",
                flush=True,
            )
            results.append(
                {
                    "model": name,
                    "kv_dtype": kv_dtype,
                    "batch": label,
                    "share_of_bandwidth": share,
                    "rule_us": rule_us,
                    "configs": rows,
                }
            )


def decode_calls(
    query: Tensor,
    caches: list[tuple[Tensor, Tensor]],
    layout: BatchLayout,
    choice: DecodeConfig | HopperDecodeConfig,
) -> list[Callable[[], Tensor]]:
    """The kernel on each layer's caches, with its plan made."""
    plan = make_plan(layout, 0, choice, 32, caches[0][0].shape[2])
    out = torch.empty_like(query)

    def run(k_cache: Tensor, v_cache: Tensor) -> Tensor:
        triton_attention.decode_attention(
            query, k_cache, v_cache, layout, plan, PARAMS, out, choice
        )
        return out

    return [functools.partial(run, *cache) for cache in caches]


PREFILLS: list[tuple[str, list[int], list[int]]] = [
    ("1950", [1950], [1950]),
    ("8192", [8192], [8192]),
    ("32768", [32768], [32768]),
    ("4 x 2048", [2048] * 4, [2048] * 4),
    ("512 on 8192", [512], [8704]),
    ("200 on 1750", [200], [1950]),
    ("16 x 128 on 1024", [128] * 16, [1152] * 16),
    ("64 on 4000", [64], [4064]),
    ("1 x 15", [15], [15]),
    ("128 x 15", [15] * 128, [15] * 128),
    ("1 x 64", [64], [64]),
    ("32 x 64", [64] * 32, [64] * 32),
    ("1 x 128", [128], [128]),
    ("16 x 128", [128] * 16, [128] * 16),
]


def prefill_kernels(k_cache: Tensor, group: int) -> dict[str, PrefillConfig | HopperConfig]:
    """The kernel of all GPUs, also as it is cut for few keys, and Hopper's with each half of the
    queries or of the keys."""
    return {
        "all GPUs": attention_config.prefill_config(k_cache, group),
        "few keys": attention_config.short_config(k_cache, group),
        "queries": attention_config.hopper_config(k_cache, split=False),
        "keys": attention_config.hopper_config(k_cache, split=True),
    }


def prefill(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Prefill attention, also on cached prefixes; cuDNN's beside it."""
    shapes = list(itertools.product(args.models, KV_DTYPES))
    configs = ("all GPUs", "few keys", "queries", "keys")
    cases = [(name, kv_dtype, choice) for name, kv_dtype in shapes for choice in configs]
    precompile(run_prefill, cases, args.workers, budget)
    for label, queries, lens in PREFILLS:
        for name, kv_dtype in shapes:
            if budget.left < 0:
                return
            model = MODELS[name]
            query, caches, layout = attention_inputs(model, queries, lens, kv_dtype)
            expected = None
            if max(lens) * max(queries) <= 2**24:
                expected = reference.attention(query, *caches[0], layout, PARAMS)
            pairs = sum(q * (n - q) + q * (q + 1) // 2 for q, n in zip(queries, lens, strict=True))
            row = {"model": name, "kv_dtype": kv_dtype, "batch": label, "tokens": sum(queries),
                   "flops": 4 * pairs * model.heads * model.head_dim, "us": {}}  # fmt: skip
            row["has_few_keys"] = layout.has_few_keys
            for choice, config in prefill_kernels(
                caches[0][0], model.heads // model.kv_heads
            ).items():
                if choice == "few keys" and not layout.has_few_keys:
                    continue
                calls = prefill_calls(query, caches[:1], layout, config)
                error = "" if expected is None else differs(calls[0](), expected)
                if error:
                    print(f"WRONG prefill {name} {kv_dtype} {label} {choice}: {error}", flush=True)
                else:
                    row["us"][choice] = time_graph(calls)
            row["library_us"] = sdpa(model, queries, lens) if kv_dtype == "bf16" else None
            shown = {
                choice: f"{us:.1f} us, {row['flops'] / us / 1e6:.0f}"
                for choice, us in row["us"].items()
            }
            print(f"prefill {name} {kv_dtype} {label:17} {shown} {row['library_us']}", flush=True)
            results.append(row)


def prefill_calls(
    query: Tensor,
    caches: list[tuple[Tensor, Tensor]],
    layout: BatchLayout,
    choice: PrefillConfig | HopperConfig,
) -> list[Callable[[], Tensor]]:
    """The kernel on each layer's caches, with its plan made."""
    heads = caches[0][0].shape[2]
    tokens = choice.tokens(query.shape[1] // heads)
    plan = make_plan(layout, 0, DecodeConfig(64, 3), tokens, heads)
    out = torch.empty_like(query)

    def run(k_cache: Tensor, v_cache: Tensor) -> Tensor:
        triton_attention.prefill_attention(
            query, k_cache, v_cache, layout, plan, PARAMS, out, choice
        )
        return out

    return [functools.partial(run, *cache) for cache in caches]


def sdpa(model: Model, queries: list[int], lens: list[int]) -> float | None:
    """Microseconds of PyTorch's attention over plain tensors; None where it has no causal form."""
    if queries != lens or len(set(lens)) > 1:
        return None
    shape = (len(lens), model.heads, lens[0], model.head_dim)
    q, k, v = (torch.randn(shape, device=DEVICE, dtype=DTYPE) for _ in range(3))
    backend = torch.nn.attention.SDPBackend.CUDNN_ATTENTION
    with torch.nn.attention.sdpa_kernel(backend):
        run = functools.partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
        return time_graph([run])


def run_prefill(name: str, kv_dtype: str, choice: str) -> None:
    """One small call, for what it leaves in the cache of compiled kernels."""
    model = MODELS[name]
    query, caches, layout = attention_inputs(model, [64], [64], kv_dtype)
    configs = prefill_kernels(caches[0][0], model.heads // model.kv_heads)
    prefill_calls(query, caches[:1], layout, configs[choice])[0]()
    torch.cuda.synchronize()


def run_once(name: str, config: DecodeConfig, kv_dtype: str) -> None:
    """Run the decode once with a config."""
    query, caches, layout = attention_inputs(MODELS[name], [1], [64], kv_dtype)
    decode_calls(query, caches[:1], layout, config)[0]()
    torch.cuda.synchronize()
