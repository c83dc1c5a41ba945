"""Split K in the rings of few rows: sums shared by all programs of a tile, or by the last alone.

    python benchmarks/gpu_split_k.py --rows 16 20 32 33 40 64 --workers 15 --seconds 120

Linears of an 8B and others, with the norm and residual that o and down fuse; both paths by the same
config, interleaved, with equal bits. A result row: format, n, k, rows of x, microseconds if the
last program adds up all sums, and if each adds up some tokens'.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from gpu_timing import DTYPE, Budget, gpu_parser, parse_on_gpu, precompile, save, time_interleaved
from gpu_weights import GPU, copies_of, weight_of
from torch import Tensor

from quire.kernels.triton.launch.row_memory import empty_rows
from quire.kernels.triton.ops import gemm_launch, words_linear
from quire.kernels.triton.ops.skinny_gemm import skinny_gemm, skinny_gemm_norm

SHAPES = [(4096, 4096), (4096, 14336), (6144, 4096), (3584, 18944), (2048, 8192)]
FORMATS = ["int4", "nf4", "w8a16", "bf16"]


@contextmanager
def split_path(*, shared: bool) -> Iterator[None]:
    """Whether sums are shared, whatever the rule says of the number of rows."""

    def shares(split: int, block_m: int, *_: int, **__: int) -> int:
        return split if shared and split & (split - 1) == 0 and 2 * split <= block_m else 1

    with (
        mock.patch.object(gemm_launch, "shares_of", shares),
        mock.patch.object(words_linear, "shares_of", shares),
    ):
        yield


def multiply(x: Tensor, weight: Any, residual: Tensor, norm: Tensor, *, shared: bool) -> Tensor:
    """QKV, or a projection with residual and norm."""
    with split_path(shared=shared):
        if residual.shape[1] == 6144:
            return skinny_gemm(x, weight)
        return skinny_gemm_norm(x, weight, residual, norm, 1e-5).residual


def inputs(m: int, n: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows x [m, k], residual [m, n], a norm's weight [n]."""
    x = empty_rows(m, k, dtype=DTYPE, device=GPU).normal_()
    residual = torch.randn(m, n, dtype=DTYPE, device=GPU)
    return x, residual, torch.rand(n, dtype=DTYPE, device=GPU)


def compile_case(name: str, m: int, n: int, k: int) -> None:
    """Run both paths once."""
    x, *rest = inputs(m, n, k)
    weight = weight_of(name, n, k)[0]
    for shared in (False, True):
        multiply(x, weight, *rest, shared=shared)
    torch.cuda.synchronize()


def measure(name: str, n: int, k: int, m: int, weights: list[Any]) -> list[Any]:
    """A result row; other bits are an error."""
    x, *rest = inputs(m, n, k)
    calls: dict[bool, Sequence[Callable[[], object]]] = {
        shared: [partial(multiply, x, weight, *rest, shared=shared) for weight in weights]
        for shared in (False, True)
    }
    outs = [multiply(x, weights[0], *rest, shared=shared) for shared in calls]
    assert torch.equal(*outs), (name, n, k, m)
    us = time_interleaved(calls, least_us=150.0)
    print(f"{name} {n} x {k}, {m} rows: {us[False]:.2f} to {us[True]:.2f} us", flush=True)
    return [name, n, k, m, round(us[False], 2), round(us[True], 2)]


def main() -> None:
    """Measure what the command line names."""
    parser = gpu_parser(__doc__, "gpu_split_k")
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 20, 32, 33, 40, 64])
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    args = parse_on_gpu(parser)
    budget = Budget(args.seconds)
    cases = [(name, m, n, k) for name, (n, k), m in
             itertools.product(args.formats, SHAPES, args.rows)]  # fmt: skip
    precompile(compile_case, cases, args.workers, Budget(budget.left / 2))
    rows = []
    for name, (n, k) in itertools.product(args.formats, SHAPES):
        weights = copies_of(weight_of(name, n, k)[0])
        rows += [measure(name, n, k, m, weights) for m in args.rows if budget.left > 1]
    save(args, rows=rows)


if __name__ == "__main__":
    main()
