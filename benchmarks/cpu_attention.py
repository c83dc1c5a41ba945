"""Times attention over paged keys and values on a CPU: compiled, and by PyTorch's operations.

python benchmarks/cpu_attention.py

Decodes by batch and context, whole prompts by length, in the head shapes of two models, bfloat16.
Caches are too many for the processor's own memory. The floor of a decode is its keys' and values'
bytes over the bandwidth of reading memory; a prompt's is its products over the speed of a large one
in float32 or bfloat16, whichever is faster. Both are measured in the same run, in turns with the
rest.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import record
import torch
from torch import Tensor

from quire.kernels.batch_layout import BatchLayout
from quire.kernels.cpu import native_attention, torch_attention
from quire.kernels.cpu.native import num_threads, set_num_threads
from quire.kernels.operands import AttentionParams

MODELS = {"1B": (32, 8, 64), "8B": (32, 8, 128)}  # heads, key heads, numbers of a head
KERNELS = {"compiled": native_attention.attention, "torch": torch_attention.attention}
CONTEXTS, BATCHES, PROMPTS = (128, 1024, 4096, 16384), (1, 8, 32), (512, 2048, 8192)
OUTGROWN = 100_000_000  # bytes, of which no processor here keeps half
BLOCK_SIZE = 16


def main() -> None:
    parser = record.parser(__doc__, "cpu_attention")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--threads", type=int, default=num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1, help="for a case and a way, a round")
    parser.add_argument("--most-bytes", type=int, default=1 << 29, help="of a case's cache")
    parser.add_argument("--longest", type=int, default=max(PROMPTS), help="prompt that is tried")
    args = parser.parse_args()
    set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    rows = []
    for model in args.models:
        most_tokens = args.most_bytes // token_bytes(model)
        sizes = [(n, batch) for n in CONTEXTS for batch in BATCHES if n * batch <= most_tokens]
        rows += [measure(model, [1] * batch, [n] * batch, args) for n, batch in sizes]
        rows += [measure(model, [n], [n], args) for n in PROMPTS if n <= args.longest]
    print(record.save(args.name, {"threads": args.threads, "rows": rows}, args.out))


def token_bytes(model: str) -> int:
    _, kv_heads, dim = MODELS[model]
    return 2 * kv_heads * dim * torch.bfloat16.itemsize


def measure(
    model: str, queries: list[int], lens: list[int], args: argparse.Namespace
) -> dict[str, Any]:
    """Microseconds of a layer's call each way, and of the floor; medians of the rounds."""
    heads, kv_heads, dim = MODELS[model]
    each = -(-lens[0] // BLOCK_SIZE)
    table = torch.randperm(each * len(lens), dtype=torch.int32).view(len(lens), each)
    layout = BatchLayout.build(queries, lens, table.numpy(), BLOCK_SIZE)
    num_bytes = sum(lens) * token_bytes(model)
    decodes = max(queries) == 1
    copies = -(-OUTGROWN // num_bytes) if decodes else 1
    shape = (copies, 2, table.numel(), BLOCK_SIZE, kv_heads, dim)
    numbers = torch.randn(BLOCK_SIZE * kv_heads * dim).bfloat16()
    caches = [(k, v) for k, v in numbers.repeat(copies * 2 * table.numel()).view(shape)]
    query = torch.randn(sum(queries), heads, dim).bfloat16()
    work = 2 * heads * dim * sum(n * (n + 1) for n in lens)  # of prompts
    floor = read_seconds if decodes else linear_seconds
    found: dict[str, list[float]] = {name: [] for name in (*KERNELS, "floor")}
    for _ in range(args.rounds):
        found["floor"].append(floor() * (num_bytes if decodes else work))
        for name, attend in KERNELS.items():
            found[name].append(time_calls(attend, query, caches, layout, args.seconds))
    times = {f"{name}_us": statistics.median(t) * 1e6 for name, t in found.items()}
    size = {"gigabytes": num_bytes / 1e9} if decodes else {"gflop": work / 1e9}
    row = {"model": model, "batch": len(lens), "tokens": lens[0], "decodes": decodes}
    print(row | times, flush=True)
    return row | size | times


def time_calls(
    attend: Callable[[Tensor, Tensor, Tensor, BatchLayout, AttentionParams], Tensor],
    query: Tensor,
    caches: list[tuple[Tensor, Tensor]],
    layout: BatchLayout,
    seconds: float,
) -> float:
    """Seconds of a call: the median of calls on one layer's cache after the other."""
    times: list[float] = []
    params = AttentionParams(query.shape[-1] ** -0.5)
    while not times or (sum(times) < seconds and len(times) < 200):
        cache = caches[len(times) % len(caches)]
        begin = time.perf_counter()
        attend(query, *cache, layout, params)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def read_seconds() -> float:
    """Seconds to read a byte with all threads."""
    data = torch.ones(OUTGROWN // 4)
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - begin)
    return min(times) / data.nbytes


def linear_seconds() -> float:
    """Seconds of a multiply-add in a large product with all threads, in float32 or bfloat16."""
    times = []
    for dtype in (torch.float32, torch.bfloat16):
        square = torch.randn(1024, 1024).to(dtype)
        for _ in range(3):
            begin = time.perf_counter()
            square @ square
            times.append(time.perf_counter() - begin)
    return min(times) / (2 * 1024**3)


if __name__ == "__main__":
    main()
