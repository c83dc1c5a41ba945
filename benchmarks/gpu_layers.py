"""Times all layers of a model's decode step: GEMMs, RoPE, KV writes and attention, no head."""

from __future__ import annotations

import argparse
import functools
from dataclasses import dataclass
from typing import Any

import torch
from gpu_attention import KV_DTYPES, kv_bytes
from gpu_chains import chain_weights
from gpu_shapes import MODELS, Model
from gpu_timing import (
    DEVICE,
    DTYPE,
    Budget,
    capture,
    precompile,
    replay_interleaved,
)
from torch import Tensor

from quire.kernels.batch_layout import BatchLayout
from quire.kernels.operands import AttentionParams, ResidualState, RopeWriteKV
from quire.kernels.triton import triton_operations
from quire.kernels.triton.attention.attention_plan import make_plan
from quire.kernels.triton.ops import paged_attention as triton_attention

CONTEXT = 2048
VARIANTS = ("apart", "joined")


@dataclass(frozen=True)
class Step:
    """Inputs of a step of some requests, all of CONTEXT tokens."""

    model: Model
    layers: list[dict[str, Any]]
    caches: list[tuple[Tensor, Tensor]]
    layout: BatchLayout
    angles: tuple[Tensor, Tensor]
    hidden: Tensor


def make_step(model: Model, itemsize: int, m: int, layers: list[dict[str, Any]]) -> Step:
    """Keys and values in as many bits as weights."""
    blocks = torch.randperm(m * CONTEXT // 16, dtype=torch.int32).view(m, -1)
    layout = BatchLayout.build([1] * m, [CONTEXT] * m, blocks.numpy(), 16, DEVICE)
    shape = (blocks.numel(), 16, model.kv_heads, model.head_dim)
    kv_dtype = KV_DTYPES["fp8" if itemsize == 1 else "bf16"]
    cache = lambda: torch.randn(shape, device=DEVICE, dtype=DTYPE).to(kv_dtype)  # noqa: E731
    angles = torch.randn(2, m, model.head_dim, device=DEVICE, dtype=DTYPE)
    hidden = torch.randn(m, model.hidden, device=DEVICE, dtype=DTYPE)
    caches = [(cache(), cache()) for _ in layers]
    return Step(model, layers, caches, layout, (angles[0], angles[1]), hidden)


def run_step(step: Step, variant: str) -> Tensor:
    """The residual stream behind all layers.

    "joined": as the engine runs them. "apart": RoPE and KV writes are a kernel of their
    own, and attention is launched when that has ended.
    """
    step.layout.forget()
    norm = step.layers[0]["norm"]
    rows = triton_operations.rms_norm(step.hidden, norm, 1e-5)
    stream = ResidualState(step.hidden, rows, norm, 1e-5)
    for w, caches in zip(step.layers, step.caches, strict=True):
        rope = RopeWriteKV(
            step.model.head_dim, None, *step.angles, *caches, step.layout.slot_mapping
        )
        heads = (joined if variant == "joined" else separate)(step, stream, w["qkv"], rope)
        stream = triton_operations.linear_add_norm(
            heads.flatten(1), w["o"], None, stream.residual, w["norm"], 1e-5
        )
        hidden = triton_operations.linear_silu(stream, w["gate_up"], None)
        stream = triton_operations.linear_add_norm(
            hidden, w["down"], None, stream.residual, w["norm"], 1e-5
        )
    return stream.residual


def joined(step: Step, stream: ResidualState, weight: Any, rope: RopeWriteKV) -> Tensor:
    """The result of attention."""
    query = triton_operations.qkv_rope_write_kv(stream, weight, None, rope)
    return triton_attention.attention(
        query,
        rope.k_cache,
        rope.v_cache,
        step.layout,
        AttentionParams(step.model.head_dim**-0.5),
    )


def separate(step: Step, stream: ResidualState, weight: Any, rope: RopeWriteKV) -> Tensor:
    """A layer with one kernel for each operation."""
    fused = triton_operations.rms_norm_linear(stream, weight, None)
    query = triton_operations.rope_write_kv(*rope.operands(fused))
    params = AttentionParams(step.model.head_dim**-0.5)
    config = triton_attention.choose_decode_config(query, rope.k_cache, params)
    make = functools.partial(make_plan, step.layout, 0, config, 32, step.model.kv_heads)
    plan, out = step.layout.once("apart", make), torch.empty_like(query)
    triton_attention.decode_attention(
        query, rope.k_cache, rope.v_cache, step.layout, plan, params, out, config,
    )  # fmt: skip
    return out


def layers(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Both ways by turns."""
    cases = [(name, m, size) for size in args.itemsizes for name in args.models for m in args.rows]
    precompile(run_once, cases, args.workers, budget)
    for name, itemsize in dict.fromkeys((name, itemsize) for name, _, itemsize in cases):
        model = MODELS[name]
        weights = [chain_weights(model, itemsize) for _ in range(model.layers)]
        num_bytes = itemsize * model.layers * sum(
            n * k for linear, (n, k) in model.linear_shapes().items() if linear != "head"
        )  # fmt: skip
        for m in args.rows:
            if budget.left < 3:
                return
            step = make_step(model, itemsize, m, weights)
            row = {"model": name, "m": m, "itemsize": itemsize} | time_both(step)
            kv_dtype = "fp8" if itemsize == 1 else "bf16"
            read = num_bytes + model.layers * kv_bytes(model, [CONTEXT] * m, kv_dtype)
            row["share_of_bandwidth"] = read / row["joined_us"] * 1e6 / args.bandwidth
            print(f"layers {row}", flush=True)
            results.append(row)


def time_both(step: Step) -> dict[str, float]:
    """Microseconds of each variant, and how far the results are apart."""
    outs = [run_step(step, variant).float() for variant in VARIANTS]
    calls = {f"{each}_us": functools.partial(run_step, step, each) for each in VARIANTS}
    us = replay_interleaved({name: capture([call], 1)[0] for name, call in calls.items()})
    return us | {"error": float((outs[1] - outs[0]).norm() / outs[0].norm())}


def run_once(name: str, m: int, itemsize: int) -> None:
    """Two layers, for what they leave in the cache of compiled kernels."""
    layer = chain_weights(MODELS[name], itemsize)
    step = make_step(MODELS[name], itemsize, m, [layer, layer])
    for variant in VARIANTS:
        run_step(step, variant)
    torch.cuda.synchronize()
