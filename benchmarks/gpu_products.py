"""Times products of a few rows with a model's weights, one by one and as its layers chain them."""

from __future__ import annotations

import argparse
import functools
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
from quire.kernels.triton.tuning import SkinnyConfig
from quire.quantization.fp8 import FORM

TABLE = Path(tuning.__file__).parent / "tuned.json"


# (rows of W, columns, stages, warps) by the bytes of a weight
SHAPES = {
    2: [
        (64, 64, 6, 4), (64, 64, 8, 4), (64, 128, 3, 4), (64, 128, 4, 4), (64, 128, 5, 4),
        (64, 256, 3, 4), (128, 64, 4, 4), (128, 64, 6, 4), (128, 128, 3, 4), (128, 128, 4, 8),
    ],
    1: [
        (64, 128, 4, 4), (64, 128, 6, 4), (64, 256, 3, 4), (64, 256, 4, 4), (64, 256, 5, 4),
        (64, 512, 3, 4), (128, 128, 3, 4), (128, 128, 4, 4), (128, 128, 5, 8), (128, 256, 3, 8),
        (128, 256, 4, 8), (256, 128, 3, 8),
    ],
}  # fmt: skip


def skinny_configs(m: int, n: int, num_sms: int, itemsize: int) -> list[SkinnyConfig]:
    """Ways to cut a weight that fit in shared memory and keep most multiprocessors busy."""
    block_m = max(16, 1 << (m - 1).bit_length())
    shapes = SHAPES[itemsize]
    if m > 16:
        shapes = [s for s in shapes if s not in [(64, 64, 8, 4), (64, 256, 3, 4), (64, 512, 3, 4)]]
    configs = []
    for block_n, block_k, stages, warps in shapes:
        stage = (block_n * itemsize + block_m * 2) * block_k
        fit = SHARED_MEMORY // (stages * stage + 2048)
        for tma in (False, True):
            base = SkinnyConfig(block_n, block_k, stages, warps=warps, tma=tma)
            if fit >= 1:
                configs.append(replace(base, per_sm=min(fit, 3)))
            if fit >= 3:
                configs.append(replace(base, per_sm=2))
            tiles = -(-n // block_n)
            configs += [
                replace(base, split=split)
                for split in (1, 2, 4, 8)
                if num_sms * 0.7 <= tiles * split <= num_sms * fit * 1.05
            ]
    if m <= 8:
        configs.append(SkinnyConfig(64, 256 // itemsize, 4, min_block_m=8, tma=True))
        configs.append(SkinnyConfig(128, 128 // itemsize, 6, min_block_m=8, tma=True))
    return configs


def compiled_as(m: int, n: int, k: int, config: SkinnyConfig, num_sms: int) -> SkinnyConfig:
    """Equal for cases that one compiled kernel serves."""
    _, parts = config.grid(n, k, num_sms)
    rows = max(config.min_block_m, 1 << (m - 1).bit_length())
    return replace(config, split=1 << (parts - 1).bit_length(), per_sm=0, min_block_m=rows)


def product_calls(
    x: Tensor, weights: list[Tensor] | list[Fp8Weight], config: SkinnyConfig
) -> list[functools.partial[Tensor]]:
    """x · Wᵀ for each weight."""
    return [functools.partial(skinny_gemm, x, w, config=config) for w in weights]


def gemm(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Every product of the models at several numbers of rows, with weights of 16 and of 8 bits."""
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    flat = torch.randn(2**29 + 2**27, device=DEVICE).to(DTYPE).mul_(0.02)
    cases = [
        (m, model, name, n, k, itemsize)
        for itemsize in args.itemsizes
        for m in args.rows
        for model in args.models
        for name, (n, k) in MODELS[model].products().items()
    ]
    wanted = {
        (compiled_as(m, n, k, config, num_sms), itemsize): (m, n, k, itemsize, config)
        for m, _, _, n, k, itemsize in cases
        for config in skinny_configs(m, n, num_sms, itemsize)
    }
    precompile(run_once, list(wanted.values()), args.workers, budget)
    for m, model, name, n, k, itemsize in cases:
        if budget.left < 0:
            print("out of time")
            break
        num_bytes = itemsize * n * k
        copies = min(copies_beyond_cache(num_bytes), flat.numel() // (n * k))
        plain = [flat[i * n * k : (i + 1) * n * k].view(n, k) for i in range(copies)]
        case = plain_case(m, plain) if itemsize == 2 else fp8_case(m, plain)
        configs = skinny_configs(m, n, num_sms, itemsize)
        make = functools.partial(product_calls, case.x, case.weights)
        rows = time_ways(configs, make, case.expected, f"{m} {model} {name} {itemsize}")
        if not rows:
            continue
        library = time_graph(case.library)
        rule = time_graph(make(tuning.skinny_rule(m, n, k, itemsize, num_sms)))
        best = rows[0]
        share = num_bytes / best["us"] * 1e6 / args.bandwidth
        print(
            f"gemm {model} {name:8} {8 * itemsize:2} bits m={m:2} [{n}, {k}] {best['us']:7.2f} us "
            f"{num_bytes / best['us'] / 1e6:5.2f} TB/s {share:4.0%}  library {library:7.2f}  "
            f"rule {rule:7.2f}  {brief(best['config'])}",
            flush=True,
        )
        results.append(
            {"model": model, "product": name, "m": m, "n": n, "k": k, "itemsize": itemsize,
             "library_us": library, "rule_us": rule, "share_of_bandwidth": share,
             "ways": rows[:5]}
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


def fp8_case(m: int, weights: list[Tensor]) -> Case:
    """Weights in FP8, against `_scaled_mm` behind the kernel that rounds x.

    x is FP8 already, so that both round it to the same and the result is known.
    """
    codes, scale = reference.quantize_rows(torch.randn(m, weights[0].shape[1], device=DEVICE))
    x = (codes.float() * scale).to(DTYPE)
    made = [Fp8Weight(*FORM.make(w, kernels_for(DEVICE))) for w in weights]
    expected = reference.linear_fp8(x, made[0].codes, made[0].scale, None)
    library = [functools.partial(fp8.by_library, x, w.codes, w.scale, None) for w in made]
    return Case(x, made, expected, library)


def write_table(result: dict[str, Any]) -> None:
    """Keep the best way of each measured shape for `tuning`, and whether cuBLAS was faster."""
    rows = [
        {
            **{key: row[key] for key in ("m", "n", "k")},
            "itemsize": row.get("itemsize", 2),
            "library": row["library_us"] < row["ways"][0]["us"],
            "config": row["ways"][0]["config"],
        }
        for row in result["gemm"]
    ]
    lines = ",\n".join(json.dumps(row) for row in rows)
    TABLE.write_text(f'{{"num_sms": {result["num_sms"]}, "skinny_gemm": [\n{lines}\n]}}\n')
    tuning.measured.cache_clear()
    tuning.skinny_config.cache_clear()
    tuning.library_is_faster.cache_clear()


def run_once(m: int, n: int, k: int, itemsize: int, config: SkinnyConfig) -> None:
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
