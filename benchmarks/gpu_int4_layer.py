"""The four INT4 linears of a layer by turns, as in a decode step but for attention.

    python benchmarks/gpu_int4_layer.py --rows 1 8 16 64 --sweep 16 --workers 15 --seconds 60

By the rule's configs, and with --sweep by the quickest of each linear: configs that are quick alone
need not be so beside the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from gpu_int4 import numbers_of, random_words, weights_of
from gpu_shapes import SHAPES, Model
from gpu_timing import (
    DEVICE,
    Budget,
    brief,
    gpu_parser,
    num_sms,
    parse_on_gpu,
    precompile,
    read_bandwidth,
    save,
    time_graph,
)
from torch import Tensor

from quire.kernels.operands import Int4Words, ResidualState, RopeWriteKV
from quire.kernels.triton.gemm.int4_config import (
    Int4Config,
    half_heads_config,
    int4_config,
    int4_configs,
)
from quire.kernels.triton.ops.skinny_gemm import (
    skinny_gemm,
    skinny_gemm_norm,
    skinny_gemm_rope,
    skinny_gemm_silu,
)

LINEARS = ("qkv", "o", "gate_up", "down")
LAYERS = 8  # whose weights no cache holds
Configs = dict[str, Int4Config]


@dataclass(frozen=True)
class Inputs:
    """Inputs of a layer's linears besides their weights."""

    x: Tensor
    state: ResidualState
    hidden: Tensor
    rope: RopeWriteKV


def make_inputs(model: Model, m: int) -> Inputs:
    """Random rows; RoPE changes nothing."""
    x, hidden = (
        torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
        for k in (model.hidden, model.intermediate)
    )
    norm = torch.rand(model.hidden, device=DEVICE, dtype=torch.bfloat16)
    squares = torch.rand(model.hidden // 64, m, device=DEVICE) + 0.5
    angles = torch.zeros(2, m, model.head_dim, device=DEVICE, dtype=torch.bfloat16)
    angles[0] = 1.0
    shape = 2, 4, 16, model.kv_heads, model.head_dim
    keys, values = torch.zeros(shape, device=DEVICE).to(torch.float8_e4m3fn)
    slots = torch.arange(m, device=DEVICE) % 64
    rope = RopeWriteKV(model.head_dim, None, angles[0], angles[1], keys, values, slots)
    return Inputs(x, ResidualState(x, x, norm, 1e-5, squares), hidden, rope)


def rule(model: Model, linear: str, m: int, group: int) -> Int4Config:
    """The config that the engine takes."""
    heads = model.head_dim if linear == "qkv" else 0
    shape = m, *model.linear_shapes()[linear], group, num_sms()
    found = half_heads_config(*shape, heads, zeros=False) or int4_config(*shape, head_dim=heads)
    assert found is not None  # few rows of common sizes
    return found


def candidates(model: Model, linear: str, m: int, group: int) -> list[Int4Config]:
    """The rule's config and those worth trying; tiles of QKV hold whole heads."""
    every = int4_configs(m, *model.linear_shapes()[linear], group, num_sms())
    whole = (each for each in every if linear != "qkv" or each.block_n == model.head_dim)
    return list(dict.fromkeys([rule(model, linear, m, group), *whole]))


def fused(linear: str, given: Inputs, w: Int4Words, config: Int4Config) -> Any:
    """A linear with what its layer fuses into it."""
    if linear == "qkv":
        return skinny_gemm_rope(given.state, w, given.rope, config)
    if linear == "gate_up":
        return skinny_gemm_silu(given.state, w, config=config)
    x, state = given.x if linear == "o" else given.hidden, given.state
    return skinny_gemm_norm(x, w, state.residual, state.weight, 1e-5, config=config)


def compile_case(name: str, linear: str, m: int, group: int, config: Int4Config) -> None:
    """Run a config once."""
    n, k = SHAPES[name].linear_shapes()[linear]
    fused(linear, make_inputs(SHAPES[name], m), random_words(n, k, group), config)
    torch.cuda.synchronize()


def error_of(given: Inputs, linear: str, w: Int4Words, config: Int4Config) -> float:
    """The relative error of a config's bare product."""
    x = given.hidden if linear == "down" else given.x
    expected = x.double() @ numbers_of(w).double().t()
    return float((skinny_gemm(x, w, config=config) - expected).norm() / expected.norm())


def chain_of(given: Inputs, configs: Configs, layers: list[dict[str, Any]]) -> Callable[[], Tensor]:
    """All layers' linears, one after the other, with what is fused into them."""

    def step() -> Tensor:
        stream, norm = given.state, given.state.weight
        for w in layers:
            skinny_gemm_rope(stream, w["qkv"], given.rope, configs["qkv"])
            stream = skinny_gemm_norm(
                given.x, w["o"], stream.residual, norm, 1e-5, config=configs["o"]
            )
            hidden = skinny_gemm_silu(stream, w["gate_up"], config=configs["gate_up"])
            stream = skinny_gemm_norm(
                hidden, w["down"], stream.residual, norm, 1e-5, config=configs["down"]
            )
        return stream.residual

    return step


def time_layer(given: Inputs, configs: Configs, layers: list[dict[str, Int4Words]]) -> float:
    """Microseconds of a layer's four linears, among all layers."""
    return time_graph([chain_of(given, configs, layers)], 0.0) / len(layers)


def sweep(
    model: Model, linear: str, given: Inputs, group: int, budget: Budget
) -> list[dict[str, Any]]:
    """Times of a linear's configs that are right, the quickest first."""
    n, k = model.linear_shapes()[linear]
    weights, found = weights_of(n, k, group), []
    for config in candidates(model, linear, len(given.x), group):
        if budget.left < 2:
            break
        error = error_of(given, linear, weights[0], config)
        calls = [lambda w=w, c=config: fused(linear, given, w, c) for w in weights]
        us = time_graph(calls, 150.0) if error < 5e-3 else float("inf")
        found.append({"us": us, "error": error, "config": asdict(config)})
    found.sort(key=lambda each: each["us"])
    shown = "; ".join(f"{each['us']:.2f} {brief(each['config'])}" for each in found[:5])
    print(f"  {linear} {n} x {k}: {shown}", flush=True)
    return found


def main() -> None:
    """Check and time what the command line names."""
    parser = gpu_parser(__doc__, "gpu_int4_layer")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--sweep", type=int, nargs="*", default=[], help="rows of all configs")
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--model", default="8b")
    args = parse_on_gpu(parser)
    model, group, budget = SHAPES[args.model], args.group, Budget(args.seconds)
    both = itertools.product(args.rows, LINEARS)
    cases = [(args.model, linear, m, group, rule(model, linear, m, group)) for m, linear in both]
    cases += [(args.model, linear, m, group, config)
              for m, linear in itertools.product(args.sweep, LINEARS)
              for config in candidates(model, linear, m, group)]  # fmt: skip
    precompile(compile_case, cases, args.workers, budget)
    bandwidth, shapes = read_bandwidth(), model.linear_shapes()
    layers = [{name: random_words(*shapes[name], group) for name in LINEARS} for _ in range(LAYERS)]
    num_bytes = sum(n * k / 2 + 2 * n * k / group for n, k in (shapes[name] for name in LINEARS))
    rows = []
    for m in args.rows:
        given = make_inputs(model, m)
        configs = {linear: rule(model, linear, m, group) for linear in LINEARS}
        worst = max(error_of(given, each, layers[0][each], configs[each]) for each in LINEARS)
        us = time_layer(given, configs, layers)
        row: dict[str, Any] = {"m": m, "us": us, "error": worst}
        row |= {"configs": {each: asdict(config) for each, config in configs.items()}}
        floor = num_bytes / bandwidth * 1e6
        print(f"{m} rows: {us:.2f} us (floor {floor:.2f}), error {worst:.1e}", flush=True)
        if m in args.sweep:
            swept = {each: sweep(model, each, given, group, budget) for each in LINEARS}
            best = {each: Int4Config(**found[0]["config"]) for each, found in swept.items()}
            row |= {"swept": {each: found[:4] for each, found in swept.items()}}
            row["best_us"] = time_layer(given, best, layers)
            print(f"  a layer of the quickest: {row['best_us']:.2f} us", flush=True)
        rows.append(row)
    save(args, read_bandwidth=bandwidth, model=args.model, group=group, layers=rows)


if __name__ == "__main__":
    main()
