"""Times all layers of steps of prompts by their number of tokens: which sizes cost least a token.

    python benchmarks/gpu_prompt_steps.py --seconds 60

Kernels are those of the engine, between them attention to 2,000 earlier keys a token. Each size is
repeated for so long that the clock is that of a loaded card (power bounds it),
and all sizes twice, forwards and backwards. Then each GEMM of a layer alone. A step of --decodes
more rows, one after each size given as 2048+48, counts as one of its prompts' tokens.
"""

from __future__ import annotations

import functools
import statistics
import time
from dataclasses import replace
from typing import Any

import torch
from gpu_chains import chain_weights
from gpu_layers import Step, run_step
from gpu_shapes import SHAPES, Model
from gpu_timing import (
    DEVICE,
    DTYPE,
    Budget,
    capture,
    gpu_parser,
    parse_on_gpu,
    replay,
    save,
    time_graph,
)
from torch import Tensor

from quire.kernels.batch_layout import BatchLayout
from quire.kernels.triton import triton_operations
from quire.kernels.triton.step.elementwise import quantize_rows

BLOCK, PART, CONTEXT = 16, 512, 2000  # tokens of a KV block, of a prompt's part, of keys before it
LAYERS = 4  # in turn, so that none finds its weights in the cache
LEAD_IN = 0.4  # of the time of a size that is not counted, for the clock to adapt
CASES = ("8b:2", "8b:1", "qwen2.5-7b:2", "llama-3.2-3b:2")
SIZES = (
    "1536", "1792", "1920", "2048", "2176", "2048+48", "2304", "2432", "2560", "2688", "2816",
    "3072", "3328", "3584", "4096", "5120", "6144", "8192",
)  # fmt: skip


def run(step: Step) -> Tensor:
    """All layers as the engine runs them, no head; long steps change the residual stream itself."""
    return run_step(replace(step, hidden=step.hidden.clone()), "joined")


def parts_of(size: str) -> list[int]:
    """Query tokens of each request of a step, decodes first: 2048 or 2048+48."""
    prompts, _, decodes = size.partition("+")
    whole, rest = divmod(int(prompts), PART)
    return [1] * int(decodes or 0) + [PART] * whole + [rest] * (rest > 0)


def make_step(
    model: Model, layers: list[dict[str, Any]], caches: list[tuple[Tensor, Tensor]], size: str
) -> Step:
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
    return Step(model, layers, caches, layout, (angles[0], angles[1]), hidden)


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
        run(step)
        graphs[size] = capture([functools.partial(run, step)], 1)[0]
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
    parser = gpu_parser(__doc__, "gpu_prompt_steps", 60.0, compiles=False)
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="SHAPE:BYTES_OF_A_WEIGHT")
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="TOKENS[+DECODES]")
    args = parse_on_gpu(parser)
    budget = Budget(args.seconds)
    rows: list[dict[str, Any]] = []
    for index, case in enumerate(args.cases):
        share = budget.left / (len(args.cases) - index)
        rows += measure(case, list(args.sizes), budget, max(4.0, share - 4))
        torch.cuda.empty_cache()
        save(args, steps=rows)


if __name__ == "__main__":
    main()
