"""Times linears of many rows in FP8 between a layer's other kernels, with several configs."""

from __future__ import annotations

import argparse
import functools
from dataclasses import asdict
from typing import Any

import torch
from gpu_chains import chain_weights, rows_for, tuned_layers
from gpu_linear import save_configs
from gpu_shapes import SHAPES, Model
from gpu_timing import (
    DEVICE,
    DTYPE,
    Budget,
    capture,
    num_sms,
    precompile,
    replay_interleaved,
    time_configs,
    time_graph,
)
from torch import Tensor

from quire.kernels import reference
from quire.kernels.operands import Fp8Rows, Fp8Weight
from quire.kernels.triton.hopper.hopper_fp8_gemm import multiply_rows
from quire.kernels.triton.launch.gemm_config import RingConfig, fp8_gemm_configs
from quire.kernels.triton.ops import fp8_linear
from quire.kernels.triton.step.elementwise import (
    quantize_rows,
    rms_norm_residual_rounded,
    silu_and_mul_rounded,
)

Configs = dict[str, RingConfig | None]  # by linears; None: the library's
LINEARS = ("gate_up", "down", "o", "qkv")
NUM_BEST = 4  # configs of a linear in a result


def rows(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """The best config of each product of a layer, and of all layers the time by those.

    us of a product, by each config and by the library: all that a layer takes then but attention.
    """
    cases = [(name, m) for m in args.rows for name in args.models]
    wanted = {
        (1 << (m - 1).bit_length(), config): (m, config)
        for name, m in cases
        for linear in LINEARS
        for config in fp8_gemm_configs(m, *SHAPES[name].linear_shapes()[linear], num_sms())
    }
    precompile(run_once, list(wanted.values()), args.workers, budget)
    for name, m in () if args.compile else cases:
        if budget.left < 3:
            print("out of time")
            break
        found = configs_between(name, m)
        best = {linear: chosen(row) for linear, row in found.items()}
        row = {"model": name, "m": m, "linears": found} | all_layers(SHAPES[name], m, best)
        print(f"rows {name} {m}: {row['us']:.0f} us, the library {row['library_us']:.0f}")
        for linear, each in found.items():
            best_three = ", ".join(f"{t['us']:.2f} {t['config']}" for t in each["configs"][:3])
            print(f"  {linear:8} library {each['library_us']:.2f}; {best_three}", flush=True)
        results.append(row)


def configs_between(name: str, m: int) -> dict[str, dict[str, Any]]:
    """Of each linear: its configs, the quickest first, timed with the best known of the others.

    Those change meanwhile, and so all are timed twice.
    """
    model, layers = SHAPES[name], tuned_layers(name, 1)
    first, usual = rows_for(model, m), dict.fromkeys(LINEARS)
    expected = run_rows(model, layers, first, usual)
    found = {}
    for linear in 2 * LINEARS:
        n, k = model.linear_shapes()[linear]

        def calls(
            config: RingConfig | None, linear: str = linear
        ) -> list[functools.partial[Tensor]]:
            return [functools.partial(run_rows, model, layers, first, usual | {linear: config})]

        label = f"{m} {name} {linear}"
        configs = time_configs(
            fp8_gemm_configs(m, n, k, num_sms()), calls, expected, label, limit=0.1, least_us=0
        )
        for timed in configs:
            timed["us"] /= len(layers)
        library = time_graph(calls(None), least_us=0) / len(layers)
        found[linear] = {"n": n, "k": k, "library_us": library, "configs": configs[:NUM_BEST]}
        usual[linear] = chosen(found[linear])
    return found


def chosen(found: dict[str, Any]) -> RingConfig | None:
    """The quickest config of a GEMM; None: the library's."""
    best = found["configs"][0]
    return RingConfig(**best["config"]) if best["us"] < found["library_us"] else None


def all_layers(model: Model, m: int, best: Configs) -> dict[str, float]:
    """Microseconds by the best configs and by the library alone, interleaved."""
    torch.cuda.empty_cache()
    layers = [chain_weights(model, 1) for _ in range(model.layers)]
    first = rows_for(model, m)
    graphs = {
        name: capture([functools.partial(run_rows, model, layers, first, configs)], 1)[0]
        for name, configs in (("us", best), ("library_us", dict.fromkeys(LINEARS)))
    }
    return replay_interleaved(graphs)


def run_rows(model: Model, layers: list[dict[str, Any]], first: Tensor, configs: Configs) -> Tensor:
    """Layers whose attention passes on the values of its input, as steps of many rows run them."""
    residual, x = first.clone(), quantize_rows(first)
    for w in layers:
        qkv = multiply(x, w["qkv"], configs["qkv"])
        heads = quantize_rows(qkv[:, : model.heads * model.head_dim])
        out = multiply(heads, w["o"], configs["o"])
        x, residual = rms_norm_residual_rounded(out, residual, w["norm"], 1e-5, Fp8Rows)
        hidden = silu_and_mul_rounded(multiply(x, w["gate_up"], configs["gate_up"]), Fp8Rows)
        out = multiply(hidden, w["down"], configs["down"])
        x, residual = rms_norm_residual_rounded(out, residual, w["norm"], 1e-5, Fp8Rows)
    return residual


def multiply(x: Fp8Rows, weight: Fp8Weight, config: RingConfig | None) -> Tensor:
    """A GEMM by a config, or by the library."""
    if config is None:
        return fp8_linear.by_library(x, weight.codes, weight.scale, None)
    return multiply_rows(x, weight.codes, weight.scale, None, config)


def run_once(m: int, config: RingConfig) -> None:
    """A small GEMM, for what it leaves in the cache of compiled kernels."""
    size = 2048
    codes = torch.empty(size, size, device=DEVICE, dtype=reference.FP8)
    x = quantize_rows(torch.empty(m, size, device=DEVICE, dtype=DTYPE))
    multiply(x, Fp8Weight(codes, torch.empty(size, device=DEVICE)), config)
    torch.cuda.synchronize()


def write_rows(result: dict[str, Any]) -> None:
    """Put the best config of each measured shape into the table; null: the library is faster."""
    best: dict[tuple[int, ...], dict[str, Any] | None] = {}
    for row in result["rows"]:
        for found in row["linears"].values():
            config = chosen(found)
            best[1, found["n"], found["k"], row["m"]] = config and asdict(config)
    save_configs(best, {})
