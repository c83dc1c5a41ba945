"""Times linears with weights in each format on a GPU, by the engine's rules, side by side.

    python benchmarks/gpu_weights.py --workers 15 --seconds 300

Each result is checked against the numbers that the codes stand for. Calls of all formats are in
graphs over more weights than the cache holds, replayed in turns; `share` is that of the bandwidth
by the bytes of a weight, `ratio` the time of bfloat16 over a format's. Where the kernels of a layer
round rows for a format (FP8 and INT8 from 17 rows on), rows are rounded beforehand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from gpu_timing import (
    DEVICE,
    Budget,
    copies_beyond_cache,
    differs,
    gpu_parser,
    num_sms,
    parse_on_gpu,
    precompile,
    read_bandwidth,
    save,
    time_interleaved,
)
from torch import Tensor

from quire.kernels.byte_operands import BlockRows
from quire.kernels.dispatch import kernels_for
from quire.kernels.formats.fp4 import MXFP4, NVFP4
from quire.kernels.formats.fp8 import FP8, FP8_A16, BlockFp8
from quire.kernels.formats.int4 import INT4_GROUP_64
from quire.kernels.formats.int8 import INT8_GROUP_64, INT8_UNROTATED, GroupedInt8
from quire.kernels.formats.nf4 import NF4
from quire.kernels.formats.weight_format import WeightFormat
from quire.kernels.operands import QuantSpec, Rows
from quire.kernels.triton.gemm.gemm_tuning import default_skinny_config
from quire.kernels.triton.hopper.hopper_byte_rows import multiply_byte_rows
from quire.kernels.triton.launch.row_memory import empty_rows
from quire.kernels.triton.ops.byte_linear import by_library, many_config
from quire.kernels.triton.ops.int4_linear import plain_config, unpacked
from quire.kernels.triton.ops.linear_table import linear_of
from quire.kernels.triton.step.block_rounding import quantize_blocks
from quire.kernels.triton.step.elementwise import quantize_rows
from quire.quantization.stored_weight import tensors_of

GPU = torch.device(DEVICE)
SHAPES = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]  # of an 8B, [N, K]
ROWS = [1, 4, 16, 64, 128, 256, 512, 1024, 2048]
LIMITS = {"bf16": 6e-3, "fp8": 5e-2, "int8": 2e-2, "int4": 5e-2, "nf4": 5e-2, "mxfp4": 5e-2,
          "nvfp4": 5e-2, "w8a16": 6e-3, "fp8_w8a16": 6e-3, "int8_group": 1.2e-2, "int8_row": 1.2e-2,
          "fp8_block": 5e-2}  # fmt: skip
# "int8_group:exact": paths that a rule may not take, see `path_of`; "int4:tight": rows of x
# without memory for a whole tile behind them; "int4:plain": as other GPUs than Hopper do it
PATHS = "exact", "library", "plain", "tight"
FOUR_BITS = "int4", "nf4", "mxfp4", "nvfp4"
FORMATS: dict[str, WeightFormat | None] = {
    "bf16": None, "fp8": FP8, "int8": INT8_UNROTATED, "int4": INT4_GROUP_64, "nf4": NF4,
    "mxfp4": MXFP4, "nvfp4": NVFP4, "w8a16": INT8_GROUP_64, "fp8_w8a16": FP8_A16, "int8_row": None,
    "int8_group": GroupedInt8(QuantSpec("int8_group", 128)),
    "fp8_block": BlockFp8(QuantSpec("fp8_block", 128)),
}  # fmt: skip


def path_of(name: str) -> Callable[[Rows, Any, None], Tensor]:
    """The engine's linear, or with rows that are not rounded: by our kernels, or by the library."""
    path = name.partition(":")[2]
    if path == "library":
        return unpacked if name.startswith(FOUR_BITS) else by_library
    own = {"exact": exact, "plain": plain}
    return own.get(path, kernels_for("cuda").linear)


def plain(x: Tensor, weight: Any, bias: None) -> Tensor:
    """Few rows times a weight in four bits or 16, by the plain Triton kernel."""
    config = plain_config(len(x))
    if isinstance(weight, Tensor):
        config = default_skinny_config(len(x), *weight.shape, weight.itemsize, num_sms())
    return linear_of(weight).launch(x, weight, bias, config=config).out


def exact(x: Tensor, weight: Any, bias: None) -> Tensor:
    """Many rows times a weight of a byte each, dequantized for each tile."""
    config = many_config(x, weight)
    assert config is not None
    return multiply_byte_rows(x, weight, bias, config)


def weight_of(name: str, n: int, k: int) -> tuple[Any, Tensor]:
    """A random weight as kernels take it, and its numbers in float32."""
    name = name.partition(":")[0]
    plain, found = torch.randn(n, k, device=DEVICE) / k**0.5, FORMATS[name]
    if name == "int8_row":
        found = GroupedInt8(QuantSpec("int8_group", k))
    if found is None:
        return plain.bfloat16(), plain.bfloat16().float()
    rows = found.round_rows(plain)
    return kernels_for("cuda").pack(rows), found.dequantize(rows)


def copy_of(weight: Any) -> Any:
    """A clone of a weight."""
    if isinstance(weight, Tensor):
        return weight.clone()
    cloned: dict[str, Any] = {name: own.clone() for name, own in tensors_of(weight).items()}
    return replace(weight, **cloned)


def copies_of(weight: Any) -> list[Any]:
    """Enough copies of a weight that none is found in the cache."""
    num_bytes = sum(tensor.nbytes for tensor in tensors_of(weight).values())
    return [weight, *(copy_of(weight) for _ in range(copies_beyond_cache(num_bytes) - 1))]


def rows_for(x: Tensor, weight: Any, n: int, name: str) -> Rows:
    """The rows as the kernel before leaves them; those of a path as it takes them."""
    path = name.partition(":")[2]
    kind = linear_of(weight).rounds_next(x.new_empty(len(x), n), weight)
    if kind is None or path in ("exact", "library", "plain"):
        return x.clone() if path == "tight" else x
    rows = quantize_blocks(x, kind) if issubclass(kind, BlockRows) else quantize_rows(x, kind)
    return replace(rows, codes=rows.codes.clone()) if path == "tight" else rows


def compile_case(name: str, m: int, n: int, k: int) -> None:
    """Run a case once."""
    weight, x = weight_of(name, n, k)[0], empty_rows(m, k, dtype=torch.bfloat16, device=GPU).zero_()
    path_of(name)(rows_for(x, weight, n, name), weight, None)
    torch.cuda.synchronize()


def measure(
    formats: list[str], rows: list[int], n: int, k: int, bandwidth: float, budget: Budget
) -> list[dict[str, Any]]:
    """All formats of a shape by rows of x; fewer when the time is over."""
    found = []
    made = {name: weight_of(name, n, k) for name in formats}
    sizes = {name: sum(each.nbytes for each in tensors_of(weight).values())
             for name, (weight, _) in made.items()}  # fmt: skip
    copies = {name: copies_of(weight) for name, (weight, _) in made.items()}
    for m in rows:
        if budget.left < 3:
            break
        x = empty_rows(m, k, dtype=torch.bfloat16, device=GPU).normal_()
        calls: dict[str, Sequence[Callable[[], object]]] = {}
        errors = {}
        for name, (weight, numbers) in made.items():
            given, linear = rows_for(x, weight, n, name), path_of(name)
            out = linear(given, weight, None)
            limit = LIMITS[name.partition(":")[0]]
            errors[name] = differs(out, x.float() @ numbers.t(), limit)
            calls[name] = [partial(linear, given, w, None) for w in copies[name]]
        us = time_interleaved(calls, least_us=200.0)
        for name, each in us.items():
            share = sizes[name] / each * 1e6 / bandwidth
            row = {"format": name, "m": m, "n": n, "k": k, "us": each, "share": share}
            wrong = {"error": errors[name]} if errors[name] else {}
            found.append(row | wrong | ({"ratio": us["bf16"] / each} if "bf16" in us else {}))
        print(f"{n} x {k}, {m} rows: " + ", ".join(
            f"{row['format']} {row['us']:.1f} us ({row['share']:.0%}, {row.get('ratio', 0):.2f}x)"
            f"{' WRONG ' + row['error'] if 'error' in row else ''}" for row in found[-len(us):]
        ), flush=True)  # fmt: skip
    return found


def main() -> None:
    """Time what the command line names."""
    parser = gpu_parser(__doc__, "gpu_weights", 300.0)
    names = [*FORMATS, *(f"{name}:{path}" for name in FORMATS for path in PATHS)]
    parser.add_argument("--formats", nargs="*", default=list(FORMATS), choices=names)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    args = parse_on_gpu(parser)
    budget, bandwidth = Budget(args.seconds), read_bandwidth()
    cases = [(name, m, n, k) for (n, k), m, name
             in itertools.product(SHAPES, args.rows, args.formats)]  # fmt: skip
    precompile(compile_case, cases, args.workers, budget)
    rows = [row for n, k in SHAPES
            for row in measure(args.formats, args.rows, n, k, bandwidth, budget)]  # fmt: skip
    save(args, read_bandwidth=bandwidth, rows=rows)


if __name__ == "__main__":
    main()
