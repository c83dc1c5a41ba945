"""FP8 GEMMs of 33 to 256 rows: by the rule, by other splits of k, and by PyTorch's library.

    python benchmarks/gpu_fp8_rows.py --rows 64 96 128 200 256 --workers 15 --seconds 60

For shapes of many models, most of which no config was tuned for. A weight is read from memory
each time. A result row: n, k, rows of x, microseconds by the library, by the rule (null: it leaves
the shape to the library) and by the best config.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from gpu_timing import (
    DEVICE,
    DTYPE,
    Budget,
    copies_beyond_cache,
    differs,
    gpu_parser,
    parse_on_gpu,
    precompile,
    save,
    time_interleaved,
)
from torch import Tensor

from quire.kernels import reference
from quire.kernels.operands import RoundedRows
from quire.kernels.triton.gemm.gemm_tuning import fp8_gemm_config, table
from quire.kernels.triton.hopper.hopper_fp8_gemm import multiply_rows
from quire.kernels.triton.launch.gemm_config import RingConfig, tile_rows
from quire.kernels.triton.launch.row_memory import empty_rows
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops.fp8_linear import by_library
from quire.kernels.triton.step.elementwise import quantize_rows

GPU = torch.device(DEVICE)
FIRST = [(4096, 4096), (4096, 14336), (6144, 4096), (3584, 3584), (3584, 18944), (4608, 3584),
         (3072, 3072), (3072, 8192), (2048, 2048), (2048, 8192), (8192, 8192)]  # fmt: skip
NUMBERS = 2**29  # of all copies of a weight


def shapes_of(count: int, num_sms: int) -> list[tuple[int, int]]:
    """Some [n, k] of the table, of at most as many tiles of 64 outputs as multiprocessors."""
    others = [shape for shape in sorted(table().shapes[1, True])
              if 512 <= shape[0] <= 64 * num_sms and shape not in FIRST]  # fmt: skip
    random.Random(3).shuffle(others)
    return (FIRST + others)[:count]


def configs_of(m: int, n: int, k: int, num_sms: int) -> Iterator[RingConfig]:
    """Splits by powers of two, in one round or two, with all of the shared memory."""
    for tiles, split in itertools.product((1, 2), (1, 2, 4, 8)):
        programs = -(-n // 64) * split
        if programs <= 2 * num_sms and k >= 192 * split:
            rounds = -(-programs // num_sms)
            slots = min(10, (227 * 1024 // rounds - 1152) // (128 * (64 + tile_rows(m))))
            if slots // tiles > 1:
                yield RingConfig(64, slots // tiles, split, tiles)


def compile_case(m: int, config: RingConfig) -> None:
    """Run a config once."""
    codes = torch.zeros(256, 16384, device=GPU).to(reference.FP8)
    multiply_rows(rows_of(m, 16384), codes, torch.ones(256, device=GPU), None, config)
    torch.cuda.synchronize()


def rows_of(m: int, k: int) -> RoundedRows:
    """Random rows in FP8, in memory of whole tiles as a step leaves them."""
    return quantize_rows(empty_rows(m, k, dtype=DTYPE, device=GPU).normal_())


def measure(n: int, k: int, m: int, weights: Sequence[Tensor], num_sms: int) -> list[float | None]:
    """A result row; wrong results are an error."""
    x, scale, rule = rows_of(m, k), torch.ones(n, device=GPU), fp8_gemm_config(m, n, k, num_sms)
    configs = {*configs_of(m, n, k, num_sms), *([rule] if rule else [])}
    calls = {each: [partial(multiply_rows, x, w, scale, None, each) for w in weights]
             for each in configs}  # fmt: skip
    library = [partial(by_library, x, w, scale, None) for w in weights]
    expected = library[0]()
    for config, each in calls.items():
        error = differs(each[0](), expected)
        assert not error, (n, k, m, config, error)
    us = time_interleaved({None: library, **calls}, least_us=120.0)
    best = min(calls, key=lambda each: us[each])
    print(f"{n} x {k}, {m} rows: library {us[None]:.1f} us, rule {us[rule]:.1f}, best "
          f"{us[best]:.1f} ({best.split} x {best.stages} x {best.tiles})", flush=True)  # fmt: skip
    taken = us[rule] if rule else None
    return [n, k, m, *(each and round(each, 2) for each in (us[None], taken, us[best]))]


def main() -> None:
    """Measure what the command line names."""
    parser = gpu_parser(__doc__, "gpu_fp8_rows")
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 96, 128, 200, 256])
    parser.add_argument("--shapes", type=int, default=50)
    args = parse_on_gpu(parser)
    budget, num_sms = Budget(args.seconds), workspace(GPU).num_sms
    cases = list(itertools.product(shapes_of(args.shapes, num_sms), args.rows))
    compiled = {(tile_rows(m), config): (m, config)
                for (n, k), m in cases for config in configs_of(m, n, k, num_sms)}  # fmt: skip
    precompile(compile_case, list(compiled.values()), args.workers, Budget(budget.left / 2))
    numbers = torch.randn(NUMBERS, device=GPU).to(reference.FP8)
    found = []
    for (n, k), m in cases:
        if budget.left < 1:
            print("out of time")
            break
        copies = min(copies_beyond_cache(n * k), NUMBERS // (n * k))
        weights = [*numbers[: copies * n * k].view(copies, n, k)]
        found.append(measure(n, k, m, weights, num_sms))
    save(args, num_sms=num_sms, rows=found)


if __name__ == "__main__":
    main()
