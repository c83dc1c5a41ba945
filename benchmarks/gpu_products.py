"""Times products of a few rows with a model's weights, one by one and as its layers chain them."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_timing import (
    DEVICE,
    DTYPE,
    MODELS,
    SHAPES,
    SHARED_MEMORY,
    Budget,
    Model,
    brief,
    copies_beyond_cache,
    precompile,
    time_graph,
    time_ways,
)
from torch import Tensor

from quire.kernels import reference
from quire.kernels.dispatch import kernels_for
from quire.kernels.triton import fp8, tuning
from quire.kernels.triton.skinny_gemm import (
    Fp8Weight,
    interleave_gate_up,
    skinny_gemm,
    skinny_gemm_norm,
)
from quire.kernels.triton.tuning import RingConfig, SkinnyConfig
from quire.kernels.triton.workspace import NUM_PARTIALS
from quire.quantization.fp8 import FORM

TABLE = Path(tuning.__file__).parent / "tuned.json"


Way = SkinnyConfig | RingConfig
SPLITS = (1, 2, 3, 4, 6, 8)
STAGES = {1: (10, 6), 2: (6,), 3: (4,), 4: (3,)}  # by the programs of a multiprocessor


def ways_of(m: int, n: int, k: int, itemsize: int, num_sms: int) -> list[Way]:
    """The table's way, the rule's, and its neighbours: half to twice as many programs."""
    rule = tuning.ring_rule(m, n, k, itemsize, num_sms)
    usual = -(-n // rule.block_n) * rule.split
    ways: list[Way] = [tuning.product_config(m, n, k, itemsize, num_sms, hopper=True), rule]
    for (block_n, tiles), split in itertools.product(((128, 1), (64, 2)), SPLITS):
        programs = -(-n // block_n) * split
        room = split == 1 or 2 * programs * block_n * max(8, m) <= NUM_PARTIALS
        if room and usual / 2 <= programs <= 2 * usual:
            on_each = min(4, -(-programs // num_sms)) if split > 1 else 2
            ways += [
                RingConfig(block_n, max(2, stages // tiles), split, tiles, warps)
                for stages, warps in itertools.product(STAGES[on_each], warps_for(m, block_n))
            ]
    return [way for way in dict.fromkeys(ways) if fits(way, itemsize)]


def warps_for(m: int, block_n: int) -> tuple[int, ...]:
    """So that what a thread holds of x and of the sums stays in registers."""
    if m > 16:
        return (8,) if block_n == 128 else (4,)
    return (4, 8) if m > 8 and block_n == 128 else (4,)


def fits(way: Way, itemsize: int) -> bool:
    """Whether the ring and the program's piece of x have room in shared memory."""
    if isinstance(way, SkinnyConfig):
        return True
    piece = 64 * 32 * way.warps * itemsize
    return way.tiles * way.stages * way.block_n * 128 + piece + 1536 <= SHARED_MEMORY


def compiled_as(m: int, n: int, k: int, way: Way, num_sms: int) -> tuple[int, Way]:
    """Equal for cases that one compiled kernel serves."""
    rows = max(8, 1 << (m - 1).bit_length())
    if isinstance(way, RingConfig):
        return rows, way
    _, parts = way.grid(n, k, num_sms)
    return max(way.min_block_m, rows), replace(way, split=1 << (parts - 1).bit_length(), per_sm=0)


def product_calls(
    x: Tensor, weights: list[Tensor] | list[Fp8Weight], config: Way
) -> list[functools.partial[Tensor]]:
    """x · Wᵀ for each weight."""
    return [functools.partial(skinny_gemm, x, w, config=config) for w in weights]


def gemm(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Every product of the models at several numbers of rows, with weights of 16 and of 8 bits."""
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    flat = torch.randn(2**29 + 2**27, device=DEVICE).to(DTYPE)
    codes = flat.to(reference.FP8)
    cases = [
        (m, model, name, n, k, itemsize)
        for itemsize in args.itemsizes
        for m in args.rows
        for model in args.models
        for name, (n, k) in SHAPES[model].products().items()
    ]
    wanted = {
        (compiled_as(m, n, k, way, num_sms), itemsize): (m, n, k, itemsize, way)
        for m, _, _, n, k, itemsize in cases
        for way in ways_of(m, n, k, itemsize, num_sms)
    }
    precompile(run_once, list(wanted.values()), args.workers, budget)
    if args.compile:
        return
    for m, model, name, n, k, itemsize in cases:
        if budget.left < 0:
            print("out of time")
            break
        num_bytes = itemsize * n * k
        copies = min(copies_beyond_cache(num_bytes, most=24), flat.numel() // (n * k))
        source = flat if itemsize == 2 else codes
        given = [source[i * n * k : (i + 1) * n * k].view(n, k) for i in range(copies)]
        case = plain_case(m, given) if itemsize == 2 else fp8_case(m, given)
        ways = ways_of(m, n, k, itemsize, num_sms)
        make = functools.partial(product_calls, case.x, case.weights)
        rows = time_ways(ways, make, case.expected, f"{m} {model} {name} {itemsize}")
        if not rows:
            continue
        library = time_graph(case.library)
        best = rows[0]
        share = num_bytes / best["us"] * 1e6 / args.bandwidth
        print(
            f"gemm {model} {name:8} {8 * itemsize:2} bits m={m:2} [{n}, {k}] {best['us']:7.2f} us "
            f"{num_bytes / best['us'] / 1e6:5.2f} TB/s {share:4.0%}  library {library:7.2f}  "
            f"{brief(best['config'])}",
            flush=True,
        )
        results.append(
            {"model": model, "product": name, "m": m, "n": n, "k": k, "itemsize": itemsize,
             "library_us": library, "share_of_bandwidth": share, "ways": rows}
        )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A product on several weights: its first result, and how the library makes it."""

    x: Tensor
    weights: list[Tensor] | list[Fp8Weight]
    expected: Tensor
    library: list[functools.partial[Tensor]]


def plain_case(m: int, weights: list[Tensor]) -> Case:
    """Weights as they are, against cuBLAS."""
    x = torch.randn(m, weights[0].shape[1], device=DEVICE, dtype=DTYPE)
    library = [functools.partial(F.linear, x, w) for w in weights]
    return Case(x, weights, F.linear(x, weights[0]), library)


def fp8_case(m: int, codes: list[Tensor]) -> Case:
    """Weights in FP8, against `_scaled_mm` behind the kernel that rounds x.

    x is FP8 already, so that both round it to the same and the result is known.
    """
    n, k = codes[0].shape
    x = torch.randint(-8, 9, (m, k), device=DEVICE).to(DTYPE)
    weights = [Fp8Weight(w, torch.ones(n, device=DEVICE)) for w in codes]
    expected = reference.linear_fp8(x, weights[0].codes, weights[0].scale, None)
    library = [functools.partial(fp8.by_library, x, w.codes, w.scale, None) for w in weights]
    return Case(x, weights, expected, library)


def write_table(result: dict[str, Any]) -> None:
    """Keep the best way of each measured shape for `tuning`, and whether cuBLAS was faster.

    What the table has of other shapes stays.
    """
    kept = {_shape(row): row for row in tuning.measured()["skinny_gemm"]}
    for row in result["gemm"]:
        best = row["ways"][0]
        kept[_shape(row)] = {
            **{key: row[key] for key in ("m", "n", "k", "itemsize")},
            "library": row["library_us"] < best["us"],
            "config": best["config"],
        }
    lines = ",\n".join(json.dumps(row) for row in kept.values())
    TABLE.write_text(f'{{"num_sms": {result["num_sms"]}, "skinny_gemm": [\n{lines}\n]}}\n')
    tuning.measured.cache_clear()
    tuning.product_config.cache_clear()
    tuning.library_is_faster.cache_clear()


def _shape(row: dict[str, Any]) -> tuple[int, ...]:
    return row["m"], row["n"], row["k"], row.get("itemsize", 2)


def run_once(m: int, n: int, k: int, itemsize: int, config: Way) -> None:
    """One product, for what it leaves in the cache of compiled kernels."""
    weight: Any = torch.empty(n, k, device=DEVICE, dtype=DTYPE if itemsize == 2 else reference.FP8)
    if itemsize == 1:
        weight = Fp8Weight(weight, torch.empty(n, device=DEVICE))
    skinny_gemm(torch.empty(m, k, device=DEVICE, dtype=DTYPE), weight, config=config)
    torch.cuda.synchronize()


def chain(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """All layers' products with norms, residuals and SiLU fused; attention is left out."""
    cases = [(name, m, size) for size in args.itemsizes for name in args.models for m in args.rows]
    precompile(run_chain_once, cases, args.workers, budget)
    for name, itemsize in dict.fromkeys((name, itemsize) for name, _, itemsize in cases):
        model = MODELS[name]
        layers = [chain_weights(model, itemsize) for _ in range(model.layers)]
        products = [nk for product, nk in model.products().items() if product != "head"]
        num_bytes = itemsize * sum(n * k for n, k in products) * model.layers
        for m in args.rows:
            if budget.left < 5:
                break
            row: dict[str, Any] = {"model": name, "m": m, "itemsize": itemsize}
            for pdl in (False, True):
                row["pdl_us" if pdl else "us"] = time_graph(
                    [functools.partial(run_chain, model, layers, m, pdl=pdl)],
                    least_us=0,
                )
            row["error"] = chain_error(model, layers[0], m)
            best = min(row["us"], row["pdl_us"])
            row["share_of_bandwidth"] = num_bytes / best * 1e6 / args.bandwidth
            print(
                f"chain {name} {8 * itemsize:2} bits m={m:2} {row['us'] / 1000:.3f} ms, overlapped "
                f"{row['pdl_us'] / 1000:.3f} ms, {num_bytes / best / 1e6:.2f} TB/s "
                f"{row['share_of_bandwidth']:.0%} error {row['error']:.1e}",
                flush=True,
            )
            results.append(row)


def run_chain_once(name: str, m: int, itemsize: int) -> None:
    """One layer, for what it leaves in the cache of compiled kernels."""
    layer = chain_weights(MODELS[name], itemsize)
    for pdl in (False, True):
        run_chain(MODELS[name], [layer, layer], m, pdl=pdl)
    torch.cuda.synchronize()


def chain_weights(model: Model, itemsize: int) -> dict[str, Any]:
    """One layer."""
    weights: dict[str, Any] = {
        name: torch.randn(n, k, device=DEVICE, dtype=DTYPE).mul_(k**-0.5)
        for name, (n, k) in model.products().items()
        if name != "head"
    }
    weights["gate_up"] = interleave_gate_up(weights["gate_up"])
    if itemsize == 1:
        weights = {
            name: Fp8Weight(*FORM.make(w, kernels_for(DEVICE))) for name, w in weights.items()
        }
    weights["norm"] = torch.rand(model.hidden, device=DEVICE, dtype=DTYPE)
    return weights


def run_chain(model: Model, layers: list[dict[str, Any]], m: int, *, pdl: bool) -> Tensor:
    """Layers whose attention passes on the values of its input."""
    x: Any = torch.randn(m, model.hidden, device=DEVICE, dtype=DTYPE)
    residual = x
    for w in layers:
        qkv = skinny_gemm(x, w["qkv"], pdl=pdl)
        heads = qkv[:, : model.heads * model.head_dim]
        x = skinny_gemm_norm(heads, w["o"], residual, w["norm"], 1e-5, pdl=pdl)
        hidden = skinny_gemm(x, w["gate_up"], silu=True, pdl=pdl)
        x = skinny_gemm_norm(hidden, w["down"], x.residual, w["norm"], 1e-5, pdl=pdl)
        residual = x.residual
    return residual


def chain_error(model: Model, w: dict[str, Any], m: int) -> float:
    """Relative error of one layer; with FP8 most of it is the rounding of activations."""
    torch.manual_seed(1)
    out = run_chain(model, [w, w], m, pdl=True)
    torch.manual_seed(1)
    x = torch.randn(m, model.hidden, device=DEVICE, dtype=DTYPE).float()
    residual, w = x, {name: in_float32(weight) for name, weight in w.items()}
    for _ in range(2):
        heads = (x @ w["qkv"].T)[:, : model.heads * model.head_dim]
        residual = residual + heads @ w["o"].T
        x = reference.rms_norm(residual, w["norm"], 1e-5)
        gate, up = (x @ w["gate_up"].T).unflatten(-1, (-1, 2)).unbind(-1)
        residual = residual + (F.silu(gate) * up) @ w["down"].T
        x = reference.rms_norm(residual, w["norm"], 1e-5)
    return float((out.float() - residual).norm() / residual.norm())


def in_float32(weight: Tensor | Fp8Weight) -> Tensor:
    """The weight as the numbers that it stands for."""
    if isinstance(weight, Tensor):
        return weight.float()
    return weight.codes.float() * weight.scale[:, None]
