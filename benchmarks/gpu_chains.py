"""Times the products of a model's layers one after the other, and tunes them among each other."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from gpu_products import case_of, compiled_as, few, num_sms, run_once, time_alone
from gpu_shapes import MODELS, SHAPES, Model
from gpu_timing import CACHE, DEVICE, DTYPE, Budget, brief, precompile, time_graph, time_ways
from torch import Tensor

from quire.kernels import reference
from quire.kernels.dispatch import kernels_for
from quire.kernels.operands import Normed, Turning
from quire.kernels.triton import tuning
from quire.kernels.triton.rotary import rotary_write_kv
from quire.kernels.triton.skinny_gemm import (
    Fp8Weight,
    interleave_gate_up,
    skinny_gemm,
    skinny_gemm_norm,
    skinny_gemm_silu,
    skinny_gemm_turned,
)
from quire.kernels.triton.ways import Way, way_from, ways_for
from quire.quantization.fp8 import FORM

Ways = dict[str, Way]


def ways_of(m: int, n: int, k: int, itemsize: int) -> list[Way]:
    """The choice, and all others worth trying."""
    usual = tuning.product_config(m, n, k, itemsize, num_sms(), hopper=True)
    return list(dict.fromkeys([usual, *ways_for(m, n, k, itemsize, num_sms())]))


MOST = 256  # rows of a chain


def tune(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """The best way of each product between those of its layers; the head's alone.

    us, slowest_us: of a layer's products with the best and the worst way, or of the head;
    alone_us: of the product by the best.
    """
    cases = [
        (m, name, size)
        for size in args.itemsizes
        for m in few(args.rows, size)
        for name in args.models
    ]
    precompile(run_way_once, list(way_cases(cases, args.products)), args.workers, budget)
    for m, name, itemsize in () if args.compile else cases:
        if budget.left < 1:
            print("out of time")
            break
        model = MODELS[name]
        found = ways_between(name, itemsize, m, args.products)
        beside = {
            product: time_fused(model, m, itemsize, product, way_from(rows[0]["config"]))
            for product, rows in found.items()
        }
        if "head" in args.products:
            n, k = model.products()["head"]
            ways, label = ways_of(m, n, k, itemsize), f"{m} {name} head {itemsize}"
            found["head"], library = time_alone(m, n, k, itemsize, ways, label)
            beside["head"] = found["head"][0]["us"], library
        for product, (alone, library) in beside.items():
            (n, k), rows = model.products()[product], found[product]
            print(
                f"tune {name} {product:8} {8 * itemsize:2} bits m={m:2} {rows[0]['us']:7.2f} to "
                f"{rows[-1]['us']:7.2f} us; alone {alone:7.2f}, library {library:7.2f}  "
                f"{brief(rows[0]['config'])}",
                flush=True,
            )
            results.append(
                {"model": name, "product": product, "m": m, "n": n, "k": k, "itemsize": itemsize,
                 "config": rows[0]["config"], "us": rows[0]["us"], "slowest_us": rows[-1]["us"],
                 "alone_us": alone, "library_us": library}
            )  # fmt: skip


def ways_between(
    name: str, itemsize: int, m: int, wanted: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Of the products of a layer: ways, by the time of all four, the quickest first.

    Each is timed with the best that is known of the others, and so all are twice.
    """
    model, layers = MODELS[name], tuned_layers(name, itemsize)
    first = rows_for(model, m)
    ways = {
        product: ways_of(m, *model.products()[product], itemsize)
        for product in ("gate_up", "down", "o", "qkv")
    }
    usual: Ways = {product: choice[0] for product, choice in ways.items()}
    expected = run_chain(model, layers, first, usual)
    found: dict[str, list[dict[str, Any]]] = {}
    for product in 2 * [product for product in ways if product in wanted]:

        def calls(way: Way, product: str = product) -> list[functools.partial[Tensor]]:
            return [functools.partial(run_chain, model, layers, first, usual | {product: way})]

        label = f"{m} {name} {product} {itemsize}"
        rows = time_ways(ways[product], calls, expected, label, limit=0.1, least_us=0)
        if not rows:
            continue
        found[product] = [row | {"us": row["us"] / len(layers)} for row in rows]
        usual[product] = way_from(rows[0]["config"])
    return found


@functools.cache
def tuned_layers(name: str, itemsize: int) -> list[dict[str, Any]]:
    """So many that none finds its weights in the cache."""
    model = SHAPES[name]
    numbers = sum(n * k for product, (n, k) in model.products().items() if product != "head")
    count = max(3, -(-CACHE // (numbers * itemsize)))
    return [chain_weights(model, itemsize) for _ in range(count)]


def time_fused(model: Model, m: int, itemsize: int, product: str, way: Way) -> tuple[float, float]:
    """A product alone with what its layer fuses into it, and the library's with nothing fused."""
    n, k = model.products()[product]
    case = case_of(m, n, k, itemsize)
    x: Any = case.x
    norm = torch.rand(max(n, k), device=DEVICE, dtype=DTYPE)
    residual = torch.randn(m, n, device=DEVICE, dtype=DTYPE)
    squares = torch.rand(32, m, device=DEVICE)
    normed = Normed(case.x, x, norm[:k], 1e-5, squares)
    calls: list[functools.partial[Any]] = []
    for w in case.weights:
        if product == "qkv":
            calls.append(functools.partial(skinny_gemm, normed, w, config=way))
        elif product == "gate_up":
            calls.append(functools.partial(skinny_gemm_silu, normed, w, config=way))
        else:
            calls.append(
                functools.partial(skinny_gemm_norm, x, w, residual, norm[:n], 1e-5, config=way)
            )
    return time_graph(calls), time_graph(case.library)


def way_cases(
    cases: list[tuple[int, str, int]], products: Sequence[str]
) -> Iterator[tuple[int, int, int, int, str, Way, str]]:
    """What is to be compiled: rows, N, K, bytes of a weight's numbers, product, way, model."""
    wanted = {}
    for m, name, itemsize in cases:
        for product, (n, k) in MODELS[name].products().items():
            for way in ways_of(m, n, k, itemsize) if product in products else ():
                key = compiled_as(m, n, k, way, num_sms()), itemsize, product
                turning = name if product == "qkv" else ""
                wanted[key, turning] = m, n, k, itemsize, product, way, name
    return iter(wanted.values())


def run_way_once(m: int, n: int, k: int, itemsize: int, product: str, way: Way, name: str) -> None:
    """For what it leaves in the cache of compiled kernels: a head, or a small model's layers."""
    if product == "head":
        run_once(m, n, k, itemsize, way)
        return
    model = small(MODELS[name])
    layer = small_weights(model, itemsize)
    run_chain(model, [layer, layer], rows_for(model, m), {product: way})
    torch.cuda.synchronize()


def small(model: Model) -> Model:
    """One that is compiled like it."""
    return Model(1024, 8, model.kv_heads, model.head_dim, 1024, 1024, 2)


@functools.cache
def small_weights(model: Model, itemsize: int) -> dict[str, Any]:
    """Once for each process."""
    return chain_weights(model, itemsize)


def chain(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """All layers' products with norms, residuals and SiLU fused, heads turned; no attention."""
    cases = [
        (name, m, size)
        for size in args.itemsizes
        for name in args.models
        for m in few(args.rows, size)
    ]
    precompile(run_chain_once, cases, args.workers, budget)
    wanted = () if args.compile else cases
    for name, itemsize in dict.fromkeys((name, itemsize) for name, _, itemsize in wanted):
        model = MODELS[name]
        layers = [chain_weights(model, itemsize) for _ in range(model.layers)]
        products = [nk for product, nk in model.products().items() if product != "head"]
        num_bytes = itemsize * sum(n * k for n, k in products) * model.layers
        for m in few(args.rows, itemsize):
            if budget.left < 2:
                break
            call = functools.partial(run_chain, model, layers, rows_for(model, m), {})
            us, error = time_graph([call], least_us=0), chain_error(model, layers[0], m)
            share = num_bytes / us * 1e6 / args.bandwidth
            print(
                f"chain {name} {8 * itemsize:2} bits m={m:2} {us / 1000:.3f} ms, "
                f"{num_bytes / us / 1e6:.2f} TB/s {share:.0%} error {error:.1e}",
                flush=True,
            )
            results.append(
                {"model": name, "m": m, "itemsize": itemsize, "us": us, "error": error,
                 "share_of_bandwidth": share}
            )  # fmt: skip


def run_chain_once(name: str, m: int, itemsize: int) -> None:
    """Two layers, for what they leave in the cache of compiled kernels."""
    layer = chain_weights(MODELS[name], itemsize)
    run_chain(MODELS[name], [layer, layer], rows_for(MODELS[name], m), {})
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
    kept = reference.FP8 if itemsize == 1 else DTYPE
    weights["caches"] = torch.zeros(
        2, MOST // 16, 16, model.kv_heads, model.head_dim, device=DEVICE
    ).to(kept)
    weights["angles"] = torch.zeros(2, MOST, model.head_dim, device=DEVICE, dtype=DTYPE)
    weights["angles"][0] = 1.0  # heads are turned by nothing
    weights["slots"] = torch.arange(MOST, device=DEVICE)
    return weights


def run_chain(model: Model, layers: list[dict[str, Any]], first: Tensor, ways: Ways) -> Tensor:
    """Layers whose attention passes on the values of its input. ways: those that are not usual."""
    x: Any = first
    residual, way = first, ways.get
    for w in layers:
        heads = turned(model, x, w, way("qkv")).flatten(1)
        x = skinny_gemm_norm(heads, w["o"], residual, w["norm"], 1e-5, config=way("o"))
        hidden = skinny_gemm_silu(x, w["gate_up"], config=way("gate_up"))
        x = skinny_gemm_norm(hidden, w["down"], x.residual, w["norm"], 1e-5, config=way("down"))
        residual = x.residual
    return residual


def turned(model: Model, x: Any, w: dict[str, Any], way: Way | None) -> Tensor:
    """Queries, in one launch where tiles hold whole heads, else in two."""
    m, (n, k) = len(x.rows if isinstance(x, Normed) else x), model.products()["qkv"]
    itemsize, heads = 1 if isinstance(w["qkv"], Fp8Weight) else 2, (model.kv_heads, model.head_dim)
    turning = Turning(model.head_dim, None, *w["angles"][:, :m], *w["caches"], w["slots"][:m])
    if way is None:
        inside = tuning.turned_config(m, n, k, itemsize, num_sms(), *heads, hopper=True)
    else:
        inside = way if tuning.holds_whole(way, n, *heads) else None
    if inside is not None:
        return skinny_gemm_turned(x, w["qkv"], turning, inside)
    return rotary_write_kv(*turning.operands(skinny_gemm(x, w["qkv"], config=way)))


def rows_for(model: Model, m: int) -> Tensor:
    """The same each time."""
    torch.manual_seed(1)
    return torch.randn(m, model.hidden, device=DEVICE, dtype=DTYPE)


def chain_error(model: Model, w: dict[str, Any], m: int) -> float:
    """Relative error of one layer; with FP8 most of it is the rounding of activations."""
    out = run_chain(model, [w, w], rows_for(model, m), {})
    x = rows_for(model, m).float()
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
