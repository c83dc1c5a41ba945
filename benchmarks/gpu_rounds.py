"""A layer's linears where memory and registers leave room for one round of programs, or for more.

    python benchmarks/gpu_rounds.py --workers 15 --seconds 100

Programs are placed where the previous kernel ends first, so with room to spare some multiprocessors
get more than others. Times the four linears of a layer in a chain, for formats in words of codes,
by the rule and as it would choose without regard to that: "plain".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from gpu_int4_layer import LINEARS, chain_of, make_inputs
from gpu_shapes import SHAPES
from gpu_timing import DEVICE, Budget, gpu_parser, parse_on_gpu, precompile, save, time_interleaved
from gpu_weights import FORMATS, copy_of
from torch import Tensor

from quire.kernels.dispatch import kernels_for
from quire.kernels.formats.int4 import Int4
from quire.kernels.operands import QuantSpec
from quire.kernels.triton.gemm import byte_config, int4_config
from quire.kernels.triton.launch.row_memory import empty_rows
from quire.kernels.triton.ops.linear_table import linear_of

LAYERS = 6  # whose weights no cache holds
MODELS = ("8b", "llama-3.2-3b", "1b", "qwen2.5-1.5b")
KINDS = FORMATS | {"int4_128": Int4(QuantSpec("int4", group=128))}
Weights = dict[str, Any]


def weights_of(name: str, model: str) -> list[Weights]:
    """Random weights of some layers."""
    first, kind = {}, KINDS[name]
    assert kind is not None
    for linear in LINEARS:
        n, k = SHAPES[model].linear_shapes()[linear]
        plain = torch.randn(n, k, device=DEVICE) / k**0.5
        first[linear] = kernels_for("cuda").pack(kind.round_rows(plain))

    return [first, *({k: copy_of(w) for k, w in first.items()} for _ in range(LAYERS - 1))]


def configs_of(weights: Weights, m: int, head_dim: int) -> Weights:
    """The rule's configs."""
    return {
        name: linear_of(w).ring_config(m, w, head_dim if name == "qkv" else 0)  # type: ignore[attr-defined]
        for name, w in weights.items()
    }


@contextmanager
def plainly() -> Iterator[None]:
    """Rules without regard to how many programs a round has room for."""
    plain: Callable[..., Any] = lambda config, *_: config  # noqa: E731
    with (
        mock.patch.object(int4_config, "filling", plain),
        mock.patch.object(byte_config, "filling", plain),
        mock.patch.object(int4_config, "in_one_round", plain),
        mock.patch.object(byte_config, "in_one_round", plain),
        mock.patch.object(int4_config, "runs_at_once", return_value=True),
        mock.patch.object(int4_config, "registers_of_one_row", return_value=96),
    ):
        forget()
        yield
    forget()


def forget() -> None:
    """Forget configs chosen so far."""
    int4_config.int4_config.cache_clear()
    byte_config.byte_config.cache_clear()


def case_of(name: str, model: str, m: int) -> dict[str, Callable[[], Tensor]]:
    """Both runs of a case, by their names."""
    layers, shape = weights_of(name, model), SHAPES[model]
    gpu = torch.device(DEVICE, 0)
    x = empty_rows(m, shape.heads * shape.head_dim, dtype=torch.bfloat16, device=gpu)
    given = replace(make_inputs(shape, m), x=x.normal_())
    rule = configs_of(layers[0], m, shape.head_dim)
    with plainly():
        plain = configs_of(layers[0], m, shape.head_dim)
    return {"plain": chain_of(given, plain, layers), "rule": chain_of(given, rule, layers)}


def compile_case(name: str, model: str, m: int) -> None:
    """Run a case once."""
    for run in case_of(name, model, m).values():
        run()
    torch.cuda.synchronize()


def main() -> None:
    """Time what the command line names."""
    parser = gpu_parser(__doc__, "gpu_rounds")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 16])
    parser.add_argument(
        "--formats", nargs="*", default=["int4", "int4_128", "mxfp4", "w8a16", "fp8_w8a16"]
    )
    parser.add_argument("--models", nargs="*", default=MODELS, help="of benchmarks/gpu_shapes.py")
    args = parse_on_gpu(parser)
    budget, rows = Budget(args.seconds), []
    cases = list(itertools.product(args.formats, args.models, args.rows))
    precompile(compile_case, cases, args.workers, budget)
    for name, model, m in cases:
        if budget.left < 2:
            break
        runs = case_of(name, model, m)
        same = torch.equal(runs["plain"](), runs["rule"]())
        us = time_interleaved({each: [run] for each, run in runs.items()}, 600.0)
        us = {each: round(own / LAYERS, 2) for each, own in us.items()}
        print(f"{name} {model} {m} rows: {us}, same: {same}", flush=True)
        rows.append({"format": name, "model": model, "m": m, "us": us, "same": same})
    save(args, rows=rows)


if __name__ == "__main__":
    main()
