"""Times the linears of a model's layers one after the other, without attention."""

from __future__ import annotations

import argparse
import functools
from typing import Any

import torch
import torch.nn.functional as F
from gpu_linear import few
from gpu_shapes import MODELS, SHAPES, Model
from gpu_timing import CACHE, DEVICE, DTYPE, Budget, num_sms, precompile, time_graph
from torch import Tensor

from quire.kernels import reference
from quire.kernels.dispatch import kernels_for
from quire.kernels.formats.fp8 import FP8
from quire.kernels.operands import Fp8Weight, ResidualState, RopeWriteKV
from quire.kernels.triton.gemm import gemm_tuning
from quire.kernels.triton.ops.skinny_gemm import (
    interleave_gate_up,
    skinny_gemm,
    skinny_gemm_norm,
    skinny_gemm_rope,
    skinny_gemm_silu,
)
from quire.kernels.triton.step.rope_kernels import rope_write_kv

MOST = 256  # rows of a chain


@functools.cache
def tuned_layers(name: str, itemsize: int) -> list[dict[str, Any]]:
    """The number of layers with which none finds its weights in the cache."""
    model = SHAPES[name]
    numbers = sum(n * k for linear, (n, k) in model.linear_shapes().items() if linear != "head")
    count = max(3, -(-CACHE // (numbers * itemsize)))
    return [chain_weights(model, itemsize) for _ in range(count)]


def chain(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """All layers' linears with fused norms, residuals, SiLU, and RoPE on heads; no attention."""
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
        shapes = [nk for linear, nk in model.linear_shapes().items() if linear != "head"]
        num_bytes = itemsize * sum(n * k for n, k in shapes) * model.layers
        for m in few(args.rows, itemsize):
            if budget.left < 2:
                break
            call = functools.partial(run_chain, model, layers, rows_for(model, m))
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
    run_chain(MODELS[name], [layer, layer], rows_for(MODELS[name], m))
    torch.cuda.synchronize()


def chain_weights(model: Model, itemsize: int) -> dict[str, Any]:
    """One layer."""
    weights: dict[str, Any] = {
        name: torch.randn(n, k, device=DEVICE, dtype=DTYPE).mul_(k**-0.5)
        for name, (n, k) in model.linear_shapes().items()
        if name != "head"
    }
    weights["gate_up"] = interleave_gate_up(weights["gate_up"])
    if itemsize == 1:
        weights = {name: kernels_for(DEVICE).quantize(w, FP8.spec) for name, w in weights.items()}
    weights["norm"] = torch.rand(model.hidden, device=DEVICE, dtype=DTYPE)
    kv_dtype = reference.FP8 if itemsize == 1 else DTYPE
    weights["caches"] = torch.zeros(
        2, MOST // 16, 16, model.kv_heads, model.head_dim, device=DEVICE
    ).to(kv_dtype)
    weights["angles"] = torch.zeros(2, MOST, model.head_dim, device=DEVICE, dtype=DTYPE)
    weights["angles"][0] = 1.0  # RoPE changes nothing
    weights["slots"] = torch.arange(MOST, device=DEVICE)
    return weights


def run_chain(model: Model, layers: list[dict[str, Any]], first: Tensor) -> Tensor:
    """Layers whose attention passes on the values of its input."""
    x: Any = first
    residual = first
    for w in layers:
        heads = rope_heads(model, x, w).flatten(1)
        x = skinny_gemm_norm(heads, w["o"], residual, w["norm"], 1e-5)
        hidden = skinny_gemm_silu(x, w["gate_up"])
        x = skinny_gemm_norm(hidden, w["down"], x.residual, w["norm"], 1e-5)
        residual = x.residual
    return residual


def rope_heads(model: Model, x: Any, w: dict[str, Any]) -> Tensor:
    """Queries, in one launch where tiles hold whole heads, else in two."""
    m, (n, k) = len(x.rows if isinstance(x, ResidualState) else x), model.linear_shapes()["qkv"]
    itemsize, heads = 1 if isinstance(w["qkv"], Fp8Weight) else 2, (model.kv_heads, model.head_dim)
    rope = RopeWriteKV(model.head_dim, None, *w["angles"][:, :m], *w["caches"], w["slots"][:m])
    inside = gemm_tuning.rope_gemm_config(m, n, k, itemsize, num_sms(), *heads, hopper=True)
    if inside is not None:
        return skinny_gemm_rope(x, w["qkv"], rope, inside)
    return rope_write_kv(*rope.operands(skinny_gemm(x, w["qkv"])))


def rows_for(model: Model, m: int) -> Tensor:
    """Input rows, equal in each call."""
    torch.manual_seed(1)
    return torch.randn(m, model.hidden, device=DEVICE, dtype=DTYPE)


def chain_error(model: Model, w: dict[str, Any], m: int) -> float:
    """Relative error of one layer; with FP8 most of it is the rounding of activations."""
    out = run_chain(model, [w, w], rows_for(model, m))
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
    """The weight's values in float32."""
    if isinstance(weight, Tensor):
        return weight.float()
    return weight.codes.float() * weight.scale[:, None]
