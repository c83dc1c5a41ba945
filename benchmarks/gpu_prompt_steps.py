"""Times all layers of steps of prompts by their number of tokens: which sizes cost least a token.

    python benchmarks/gpu_prompt_steps.py --seconds 60

Kernels are those of the engine, between them attention to 2,000 earlier keys a token. Each size is
repeated for so long that the clock is that of a loaded card (power bounds it),
and all sizes twice, forwards and backwards. Then each GEMM of a layer alone. A step of --decodes
more rows, one after each size given as 2048+48, counts as one of its prompts' tokens.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import record
import torch
from gpu_chains import chain_weights
from gpu_shapes import SHAPES, Model
from gpu_timing import DEVICE, DTYPE, Budget, capture, replay, time_graph
from torch import Tensor

from quire.kernels.batch_layout import BatchLayout
from quire.kernels.operands import AttentionParams, ResidualState, RopeWriteKV
from quire.kernels.triton import triton_operations
from quire.kernels.triton.ops import paged_attention as triton_attention
from quire.kernels.triton.step.elementwise import quantize_rows

BLOCK, PART, CONTEXT = 16, 512, 2000  # tokens of a KV block, of a prompt's part, of keys before it
LAYERS = 4  # in turn, so that none finds its weights in the cache
LEAD_IN = 0.4  # of the time of a size that is not counted, for the clock to adapt
CASES = ("8b:2", "8b:1", "qwen2.5-7b:2", "llama-3.2-3b:2")
SIZES = (
    "1536", "1792", "1920", "2048", "2176", "2048+48", "2304", "2432", "2560", "2688", "2816",
    "3072", "3328", "3584", "4096", "5120", "6144", "8192",
)  # fmt: skip


@dataclass(frozen=True)
class PromptStep:
    """Layers, and one step's rows."""

    model: Model
    layers: list[dict[str, Any]]
    caches: list[tuple[Tensor, Tensor]]
    layout: BatchLayout
    angles: Tensor
    hidden: Tensor

    def run(self) -> Tensor:
        """All layers as the engine runs them, no head; returns the residual stream."""
        self.layout.forget()
        norm = self.layers[0]["norm"]
        residual = self.hidden.clone()
        rows = triton_operations.rms_norm(residual, norm, 1e-5)
        stream = ResidualState(residual, rows, norm, 1e-5)
        for w, caches in zip(self.layers, self.caches, strict=True):
            rope = RopeWriteKV(
                self.model.head_dim, None, *self.angles, *caches, self.layout.slot_mapping
            )
            query = triton_operations.qkv_rope_write_kv(stream, w["qkv"], None, rope)
            heads = triton_attention.attention(
                query, *caches, self.layout, AttentionParams(self.model.head_dim**-0.5)
            )
            after = (stream.residual, w["norm"], 1e-5)
            stream = triton_operations.linear_add_norm(heads.flatten(1), w["o"], None, *after)
            gated = triton_operations.linear_silu(stream, w["gate_up"], None)
            after = (stream.residual, w["norm"], 1e-5)
            stream = triton_operations.linear_add_norm(gated, w["down"], None, *after)
        return stream.residual


def parts_of(size: str) -> list[int]:
    """Query tokens of each request of a step, decodes first: 2048 or 2048+48."""
    prompts, _, decodes = size.partition("+")
    whole, rest = divmod(int(prompts), PART)
    return [1] * int(decodes or 0) + [PART] * whole + [rest] * (rest > 0)


def make_step(
    model: Model, layers: list[dict[str, Any]], caches: list[tuple[Tensor, Tensor]], size: str
) -> PromptStep:
    """A step of this size; its keys are anywhere in the caches."""
    queries = parts_of(size)
    blocks = (CONTEXT + PART) // BLOCK + 1
    table = torch.randint(0, len(caches[0][0]), (len(queries), blocks), dtype=torch.int32)
    lens = [CONTEXT + n for n in queries]
    layout = BatchLayout.build(queries, lens, table.numpy(), BLOCK, DEVICE)
    layout = replace(layout, has_decodes=True)  # as in a recorded step, which serves any mix
    num_tokens = sum(queries)
    angles = torch.zeros(2, num_tokens, model.head_dim, device=DEVICE, dtype=DTYPE)
    angles[0] = 1.0  # RoPE changes nothing
    hidden = torch.randn(num_tokens, model.hidden, device=DEVICE, dtype=DTYPE)
    return PromptStep(model, layers, caches, layout, angles, hidden)


def measure(case: str, sizes: list[str], budget: Budget, share: float) -> list[dict[str, Any]]:
    """A row for each size of one model. share: seconds for all of it."""
    name, itemsize = case.split(":")
    model = SHAPES[name]
    layers = [chain_weights(model, int(itemsize)) for _ in range(LAYERS)]
    shape = (4096, BLOCK, model.kv_heads, model.head_dim)
    kv_dtype = layers[0]["caches"].dtype
    cache = lambda: torch.randn(shape, device=DEVICE, dtype=DTYPE).to(kv_dtype)  # noqa: E731
    caches = [(cache(), cache()) for _ in layers]
    steps = {size: make_step(model, layers, caches, size) for size in sizes}  # graphs use theirs
    graphs = {}
    for size, step in steps.items():
        step.run()
        graphs[size] = capture([step.run], 1)[0]
    seconds = 0.7 * share / (2 * len(sizes))
    times: dict[str, list[float]] = {size: [] for size in sizes}
    for size in [*sizes, *reversed(sizes)]:
        times[size].append(sustained(graphs[size], seconds))
    found = []
    for size in sizes:
        num_tokens, us = int(size.partition("+")[0]), statistics.mean(times[size]) / LAYERS
        row = {"model": name, "itemsize": int(itemsize), "size": size, "layer_us": us,
               "spread": max(times[size]) / min(times[size]) - 1,
               "ns_a_token": 1000 * us / num_tokens}  # fmt: skip
        if budget.left > 1:
            row["gemms_us"] = gemms(model, layers[0], sum(parts_of(size)))
        print(f"{name:>13} {itemsize} {size:>8} {us:8.1f} us a layer, "
              f"{row['ns_a_token']:6.1f} ns a token, spread {row['spread']:.3f}, "
              f"{ {k: round(v, 1) for k, v in row.get('gemms_us', {}).items()} }",
              flush=True)  # fmt: skip
        found.append(row)
    return found


def sustained(graph: torch.cuda.CUDAGraph, seconds: float) -> float:
    """The mean of replays' microseconds after the lead-in."""
    begin, times = time.monotonic(), []
    while (passed := time.monotonic() - begin) < seconds or not times:
        us = replay(graph)
        if passed >= LEAD_IN * seconds:
            times.append(us)
    return statistics.mean(times)


def gemms(model: Model, w: dict[str, Any], num_tokens: int) -> dict[str, float]:
    """Microseconds of each GEMM of a layer alone."""
    found = {}
    for name, (_, k) in model.linear_shapes().items():
        if name != "head":
            x = torch.randn(num_tokens, k, device=DEVICE, dtype=DTYPE)
            rows = x if isinstance(w[name], Tensor) else quantize_rows(x)
            call = functools.partial(triton_operations.linear, rows, w[name], None)
            found[name] = time_graph([call])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="SHAPE:BYTES_OF_A_WEIGHT")
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="TOKENS[+DECODES]")
    parser.add_argument("--name", default="gpu_prompt_steps", help="of the result file")
    parser.add_argument("--out", type=Path, default=record.RESULTS, help="folder")
    args = parser.parse_args()
    record.require_gpu()
    budget = Budget(args.seconds)
    rows: list[dict[str, Any]] = []
    for index, case in enumerate(args.cases):
        share = budget.left / (len(args.cases) - index)
        rows += measure(case, list(args.sizes), budget, max(4.0, share - 4))
        torch.cuda.empty_cache()
        found = {"gpu": torch.cuda.get_device_name(), "steps": rows}
        record.save(args.name, found, args.out)


if __name__ == "__main__":
    main()
