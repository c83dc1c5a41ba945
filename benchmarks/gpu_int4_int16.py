"""INT4 linears of a decode step, with what is fused: x in bfloat16 or in INT16.

    python benchmarks/gpu_int4_int16.py --rows 1 16 --workers 15 --seconds 60

Each config is compared with the float64 product of the same codes, and timed with what its layer
fuses into it in a chain of launches over more weights than the cache holds. `layer`: all four
linears by turns, as in a decode step but for attention.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import record
import torch
from gpu_int4 import numbers_of, random_words, weights_of
from gpu_shapes import SHAPES, Model
from gpu_timing import DEVICE, Budget, brief, precompile, read_bandwidth, time_graph
from torch import Tensor

from quire.kernels.operands import Int4Words, Int16Rows, ResidualState, RopeWriteKV
from quire.kernels.reference_quantized import round_int16
from quire.kernels.triton.gemm.int4_config import (
    SHARED_MEMORY,
    Int4Config,
    int4_config,
    int16_config,
    shared_memory,
)
from quire.kernels.triton.launch.workspace import NUM_PARTIALS
from quire.kernels.triton.ops.skinny_gemm import (
    skinny_gemm,
    skinny_gemm_norm,
    skinny_gemm_rope,
    skinny_gemm_silu,
)

NUM_SMS = 132
LINEARS = ("qkv", "o", "gate_up", "down")
MOST_SUMS = 64  # of a thread for each of two products at a time
Configs = dict[str, Int4Config]
# block_n, parts, warps, registers; by linear, for up to two rows and for more
CUTS: dict[tuple[str, bool], list[tuple[int, int, int, int | None]]] = {
    ("qkv", True): [(128, 1, 4, None), (128, 1, 8, None), (128, 2, 8, None)],
    ("qkv", False): [(128, 1, 4, None), (128, 1, 8, None), (128, 1, 8, 128)],
    ("o", True): [(32, 4, 4, None), (64, 2, 4, None), (32, 2, 4, None)],
    ("o", False): [(64, 1, 4, None), (128, 1, 8, None), (64, 2, 4, None)],
    ("gate_up", True): [(32, 2, 4, None), (64, 2, 4, None), (128, 1, 4, None), (128, 1, 8, None)],
    ("gate_up", False): [(64, 1, 4, None), (128, 1, 4, None), (128, 1, 8, None)],
    ("down", True): [(64, 2, 4, None), (32, 2, 4, None), (32, 4, 4, None), (128, 1, 8, None)],
    ("down", False): [(64, 1, 4, None), (64, 1, 4, 128), (128, 1, 8, None), (128, 1, 8, 128)],
}


@dataclass(frozen=True)
class Inputs:
    """What a layer's linears are given besides their weights."""

    model: Model
    x: Tensor
    state: ResidualState
    x_int16: Int16Rows
    hidden: Tensor
    hidden_int16: Int16Rows
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
    caches = torch.zeros(2, 4, 16, model.kv_heads, model.head_dim, device=DEVICE).to(
        torch.float8_e4m3fn
    )
    slots = torch.arange(m, device=DEVICE)
    rope = RopeWriteKV(model.head_dim, None, angles[0], angles[1], caches[0], caches[1], slots)
    x_int16 = round_int16(x)
    state = ResidualState(x, x, norm, 1e-5, squares, x_int16)
    return Inputs(model, x, state, x_int16, hidden, round_int16(hidden), rope)


def fused(linear: str, given: Inputs, w: Int4Words, config: Int4Config | None) -> Any:
    """A linear with what its layer fuses into it; bytes are stored where tiles allow it."""
    if linear == "qkv":
        whole = config or int4_config(len(given.x), *_shape(w), w.group, NUM_SMS, head_dim=128)
        assert whole is not None
        return skinny_gemm_rope(given.state, w, given.rope, whole)
    if linear == "gate_up":
        return skinny_gemm_silu(given.state, w, config=config, int16=True)
    x: Any = given.x if linear == "o" else given.hidden
    if config is not None and config.int16:
        x = given.x_int16 if linear == "o" else given.hidden_int16
    state = given.state
    return skinny_gemm_norm(x, w, state.residual, state.weight, 1e-5, config=config, int16=True)


def _shape(w: Int4Words) -> tuple[int, int]:
    return len(w.words), w.inputs


def rules(linear: str, m: int, n: int, k: int, group: int) -> list[Int4Config]:
    """The configs of bfloat16 and of bytes that the rules choose."""
    heads = {"head_dim": 128} if linear == "qkv" else {}
    plain = int4_config(m, n, k, group, NUM_SMS, **heads)
    int16 = None if linear == "o" else int16_config(m, n, k, group, NUM_SMS, **heads)
    return [each for each in (plain, int16) if each is not None]


def candidates(linear: str, m: int, n: int, k: int, group: int) -> Iterator[Int4Config]:
    """Configs worth trying; x of "o", which attention computes, is in bfloat16."""
    for (block_n, parts, warps, most), stages in itertools.product(CUTS[linear, m <= 2], (2, 3)):
        tiles, steps = -(-n // block_n), -(-k // (256 * parts))
        for split in (1, 2, 3, 4, 6, 8):
            programs = tiles * split
            if (programs > 4 * NUM_SMS and split > 1) or 3 * programs < 2 * NUM_SMS:
                continue
            if 2 * split > steps or stages > max(2, steps // split):
                continue
            if split > 1 and programs * block_n * max(2, m) > NUM_PARTIALS:
                continue
            int16 = linear != "o"
            found = Int4Config(block_n, parts, stages, split, warps, False, int16, most)
            if shared_memory(m, k, group, zeros=False, config=found) <= SHARED_MEMORY:
                yield found


def compile_case(
    name: str, linear: str, m: int, n: int, k: int, group: int, config: Int4Config
) -> None:
    """Run a config once."""
    fused(linear, make_inputs(SHAPES[name], m), random_words(n, k, group), config)
    torch.cuda.synchronize()


def error_of(x: Tensor, x_int16: Int16Rows, w: Int4Words, config: Int4Config) -> float:
    """The relative error of a config's bare product."""
    expected = x.double() @ numbers_of(w).double().t()
    out = skinny_gemm(x_int16 if config.int16 else x, w, config=config)
    return float((out.double() - expected).norm() / expected.norm())


def time_linear(
    linear: str, given: Inputs, weights: list[Int4Words], configs: list[Int4Config], budget: Budget
) -> list[dict[str, Any]]:
    """Times and errors of configs, the quickest first."""
    found = []
    x, x_int16 = (
        (given.hidden, given.hidden_int16) if linear == "down" else (given.x, given.x_int16)
    )
    for config in configs:
        if budget.left < 1:
            break
        try:
            error = error_of(x, x_int16, weights[0], config)
            calls: list[Callable[[], Any]] = [
                lambda w=w, c=config: fused(linear, given, w, c) for w in weights
            ]
            us = time_graph(calls, 150.0) if error < 5e-3 else 0.0
        except RuntimeError as failure:
            print(f"FAILED {linear} {config}: {str(failure)[:200]}", flush=True)
            continue
        if us == 0.0:
            print(f"WRONG {linear} {len(given.x)} rows {config}: {error:.1e}", flush=True)
            continue
        found.append({"config": asdict(config), "us": us, "error": error})
    return sorted(found, key=lambda each: each["us"])


def time_layer(given: Inputs, group: int, configs: Configs | None, *, int16: bool) -> float:
    """Microseconds of the four linears of a layer, among eight layers."""
    shapes, chosen = given.model.linear_shapes(), configs or {}
    layers = [{name: random_words(*shapes[name], group) for name in LINEARS} for _ in range(8)]
    norm, m = given.state.weight, len(given.x)
    n, k = shapes["qkv"]
    by_rule = int16_config(m, n, k, group, NUM_SMS, head_dim=128) if int16 else None
    rope = chosen.get("qkv") or by_rule or int4_config(m, n, k, group, NUM_SMS, head_dim=128)
    assert rope is not None

    def step() -> Tensor:
        first = layers[0]["o"]
        stream = skinny_gemm_norm(given.x, first, given.x, norm, 1e-5, int16=int16)
        for w in layers:
            skinny_gemm_rope(stream, w["qkv"], given.rope, rope)
            stream = skinny_gemm_norm(
                given.x, w["o"], stream.residual, norm, 1e-5, config=chosen.get("o"), int16=int16
            )
            hidden = skinny_gemm_silu(
                stream, w["gate_up"], config=chosen.get("gate_up"), int16=int16
            )
            down = chosen.get("down")
            if down is not None and down.int16 and not isinstance(hidden, Int16Rows):
                down = None
            stream = skinny_gemm_norm(
                hidden, w["down"], stream.residual, norm, 1e-5, config=down, int16=int16
            )
        return stream.residual

    return time_graph([step], 0.0) / len(layers)


def layer_error(m: int, group: int) -> float:
    """How far a layer in bytes is from float64, in 1024 x 1024; printed beside bfloat16's."""
    torch.manual_seed(1)
    square, pairs = random_words(1024, 1024, group), random_words(4096, 1024, group)
    back, x = random_words(1024, 2048, group), torch.randn(m, 1024, device=DEVICE).bfloat16()
    norm = torch.rand(1024, device=DEVICE, dtype=torch.bfloat16)
    numbers = [numbers_of(each).double() for each in (square, pairs, back)]
    residual = x.double() + x.double() @ numbers[0].t()
    scaled = residual * (residual.square().mean(1, keepdim=True) + 1e-5).rsqrt() * norm.double()
    gate, up = (scaled @ numbers[1].t()).unflatten(1, (-1, 2)).unbind(2)
    expected = residual + (torch.nn.functional.silu(gate) * up) @ numbers[2].t()
    errors = []
    for int16 in (False, True):
        state = skinny_gemm_norm(x, square, x, norm, 1e-5, int16=int16)
        config = Int4Config(128, 1, 2, 1, 8, int16=True) if int16 else None
        hidden = skinny_gemm_silu(state, pairs, int16=int16, config=config)
        assert isinstance(hidden, Int16Rows) == int16
        out = skinny_gemm_norm(hidden, back, state.residual, norm, 1e-5, int16=int16).residual
        errors.append(float((out.double() - expected).norm() / expected.norm()))
    print(f"layer at {m} rows, group {group}: error {errors[0]:.2e}, in bytes {errors[1]:.2e}")
    return errors[1]


def best_of(found: list[dict[str, Any]], **wanted: object) -> Int4Config | None:
    """The quickest config with these fields, of tiles whose results may be stored in bytes."""
    for each in found:
        if each["config"]["block_n"] >= 64 and all(
            each["config"][name] == value for name, value in wanted.items()
        ):
            return Int4Config(**each["config"])
    return None


def measure(
    name: str, m: int, group: int, args: argparse.Namespace, bandwidth: float, budget: Budget
) -> dict[str, Any]:
    """All linears of a model's layer, and the layer, at a number of rows."""
    model, given = SHAPES[name], make_inputs(SHAPES[name], m)
    row: dict[str, Any] = {"model": name, "m": m, "group": group}
    row["bf16_us"] = time_layer(given, group, None, int16=False)
    row["us"] = time_layer(given, group, None, int16=True)
    print(
        f"{name}, {m} rows, group {group}: layer {row['bf16_us']:.2f} us, in bytes {row['us']:.2f}"
    )
    quickest: dict[str, list[dict[str, Any]]] = {}
    for linear in args.linears:
        n, k = model.linear_shapes()[linear]
        ruled = rules(linear, m, n, k, group)
        every = list(
            dict.fromkeys(ruled + ([] if args.rules else [*candidates(linear, m, n, k, group)]))
        )
        found = time_linear(linear, given, weights_of(n, k, group), every, budget)
        quickest[linear] = row[linear] = found
        num_bytes = n * k / 2 + 2 * n * k / group
        by_rule = [next((each["us"] for each in found if each["config"] == asdict(config)), 0.0)
                   for config in ruled]  # fmt: skip
        worst = max((each["error"] for each in found), default=0.0)
        shown = "; ".join(f"{each['us']:.2f} {brief(each['config'])}" for each in found[:6])
        ruled_us = ", ".join(f"{us:.2f}" for us in by_rule)
        print(f"  {linear} {n} x {k}: floor {num_bytes / bandwidth * 1e6:.2f}, rules {ruled_us}, "
              f"error {worst:.1e}; {shown}", flush=True)  # fmt: skip
    if not args.rules and all(quickest.get(linear) for linear in LINEARS) and budget.left > 2:
        for label, wanted in (("any", {}), ("128", {"block_n": 128})):
            configs = {each: best_of(quickest[each]) for each in LINEARS}
            configs["gate_up"] = best_of(quickest["gate_up"], **wanted)
            chosen = {each: config for each, config in configs.items() if config is not None}
            row[f"best_{label}_us"] = time_layer(given, group, chosen, int16=True)
            print(f"  layer of the quickest, gate and up {label}: {row[f'best_{label}_us']:.2f} us")
    return row


def main() -> None:
    """Check and time what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--groups", type=int, nargs="*", default=[64])
    parser.add_argument("--linears", nargs="*", default=LINEARS)
    parser.add_argument("--models", nargs="*", default=["8b"])
    parser.add_argument("--rules", action="store_true", help="only the rules' configs")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--name", default="gpu_int4_int16")
    args = parser.parse_args()
    budget, cases = Budget(args.seconds), []
    torch.manual_seed(0)
    for name, m, group, linear in itertools.product(
        args.models, args.rows, args.groups, args.linears
    ):
        n, k = SHAPES[name].linear_shapes()[linear]
        every = rules(linear, m, n, k, group)
        every += [] if args.rules else candidates(linear, m, n, k, group)
        cases += [(name, linear, m, n, k, group, config) for config in dict.fromkeys(every)]
    precompile(compile_case, cases, args.workers, budget)
    errors = [layer_error(m, group) for m, group in itertools.product(args.rows, args.groups)]
    print(errors, flush=True)
    bandwidth = read_bandwidth()
    rows = [
        measure(*each, args, bandwidth, budget)
        for each in itertools.product(args.models, args.rows, args.groups)
        if budget.left > 2
    ]
    gpu = {"gpu": torch.cuda.get_device_name(), "read_bandwidth": bandwidth}
    record.save(args.name, gpu | {"errors": errors, "layers": rows})


if __name__ == "__main__":
    main()
