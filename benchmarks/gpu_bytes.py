"""Times configs of linears with a byte a weight and scales of groups on a GPU, against bfloat16.

    python benchmarks/gpu_bytes.py --workers 15 --seconds 100

Each config of few rows that is worth trying is checked and timed in a chain of launches over more
weights than the cache holds; `us` is the best one's, `rule_us` that of the config which the rule
takes. `bf16_us`: the engine's linear in bfloat16. `numbers_us`: the weight becomes numbers, and the
library multiplies.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import asdict
from typing import Any

import record
import torch
from gpu_timing import (
    DEVICE,
    Budget,
    brief,
    copies_beyond_cache,
    precompile,
    read_bandwidth,
    time_configs,
    time_graph,
)
from torch import Tensor

from quire.kernels.byte_operands import ByteWords, Fp8Blocks, Int8Blocks
from quire.kernels.dispatch import kernels_for
from quire.kernels.operands import RoundedRows
from quire.kernels.triton.gemm.block_config import (
    BlockConfig,
    block_config,
    block_configs,
    expected_us,
)
from quire.kernels.triton.gemm.byte_config import byte_config, byte_configs
from quire.kernels.triton.gemm.byte_rows_config import ByteRowsConfig, byte_rows_configs
from quire.kernels.triton.gemm.byte_rows_config import expected_us as rows_us
from quire.kernels.triton.gemm.int4_config import Int4Config
from quire.kernels.triton.hopper.hopper_block_gemm import multiply_blocks
from quire.kernels.triton.hopper.hopper_byte_rows import multiply_byte_rows
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops.byte_linear import BYTES, by_library
from quire.kernels.triton.ops.skinny_gemm import skinny_gemm
from quire.kernels.triton.step.block_rounding import quantize_blocks

SHAPES = [(28672, 4096), (4096, 4096), (6144, 4096), (4096, 14336)]  # of an 8B, [N, K]


def random_words(n: int, k: int, group: int, codes: str) -> ByteWords:
    """A weight of random codes; results of 4,096 columns are of the order of 1. group 0: none."""
    words = torch.randint(-(2**31), 2**31 - 1, (n, k // 4), device=DEVICE, dtype=torch.int32)
    if codes == "e4m3":
        words &= -0x08080809  # no code has all exponent bits: 127 is not a number
    scale = (torch.rand(k // group, n, device=DEVICE) * 0.5 + 0.5).half() if group else None
    row_scale = torch.rand(n, device=DEVICE) * 3e-4 + 1e-4
    return ByteWords(words, scale, None, row_scale, group or 128, k, codes)


def weights_of(n: int, k: int, group: int, codes: str) -> list[ByteWords]:
    """Enough weights that none is found in the cache."""
    return [random_words(n, k, group, codes) for _ in range(copies_beyond_cache(n * k))]


def tables_of(group: int) -> int:
    """Tensors of groups: of scales alone."""
    return 1 if group else 0


def compile_case(m: int, n: int, k: int, group: int, codes: str, config: Int4Config) -> None:
    """Run a config once."""
    x = torch.zeros(m, k, device=DEVICE, dtype=torch.bfloat16)
    skinny_gemm(x, random_words(n, k, group, codes), config=config)
    torch.cuda.synchronize()


def configs_of(m: int, n: int, k: int, group: int, stages: list[int]) -> list[Int4Config]:
    """The rule's config first, then those worth trying, if any stages are named."""
    num_sms = workspace(torch.device(DEVICE, 0)).num_sms
    rule = byte_config(m, n, k, group or 128, num_sms, tables_of(group))
    every = byte_configs(m, n, k, group or 128, num_sms, tables_of(group))
    tried = [each for each in every if each.stages in stages]
    return list(dict.fromkeys([*([rule] if rule else []), *tried]))


def bf16_of(x: Tensor, numbers: Tensor) -> float:
    """Microseconds of the engine's linear in bfloat16."""
    copies = copies_beyond_cache(numbers.nbytes)
    plain = [numbers, *(numbers.clone() for _ in range(copies - 1))]
    linear = kernels_for("cuda").linear
    return time_graph([lambda w=w: linear(x, w, None) for w in plain], 200.0)


def compile_rows(n: int, k: int, group: int, codes: str, config: ByteRowsConfig) -> None:
    """Run a config of many rows in bfloat16 once."""
    x = torch.zeros(config.block_m, k, device=DEVICE, dtype=torch.bfloat16)
    multiply_byte_rows(x, random_words(n, k, group, codes), None, config)
    torch.cuda.synchronize()


def rows_worth(m: int, n: int, k: int) -> list[ByteRowsConfig]:
    """Configs of many rows in bfloat16 that may be the best, the rule's first."""
    num_sms = workspace(torch.device(DEVICE, 0)).num_sms
    us = {each: rows_us(m, n, k, num_sms, each) for each in byte_rows_configs(m, n, k)}
    return sorted(us, key=lambda each: us[each])[:5] if m > 64 else []


def measure(
    m: int, n: int, k: int, group: int, codes: str, stages: list[int], bandwidth: float,
    budget: Budget,
) -> dict[str, Any] | None:  # fmt: skip
    """All configs of a shape, beside bfloat16 and the way by numbers."""
    if budget.left < 3:
        return None
    weights = weights_of(n, k, group, codes)
    x = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    numbers = BYTES.numbers(weights[0], torch.bfloat16)
    expected, name = x @ numbers.t(), f"{codes} g{group} {n}x{k} {m} rows"
    found = time_configs(
        configs_of(m, n, k, group, stages),
        lambda config: [lambda w=w: skinny_gemm(x, w, config=config) for w in weights],
        expected,
        name,
        least_us=200.0,
    )
    rule = configs_of(m, n, k, group, [])[0]
    rule_us = next((row["us"] for row in found if row["config"] == asdict(rule)), None)
    many = time_configs(
        rows_worth(m, n, k),
        lambda config: [lambda w=w: multiply_byte_rows(x, w, None, config) for w in weights],
        expected,
        f"rows {name}",
        least_us=200.0,
    )
    bf16_us = bf16_of(x, numbers)
    numbers_us = None
    if m >= 128:
        calls = [lambda w=w: by_library(x, w, None) for w in weights]
        numbers_us = time_graph(calls, 200.0)
    us = found[0]["us"] if found else float("inf")
    share = (n * k + (2 * n * k // group if group else 0)) / us * 1e6 / bandwidth
    best = "; ".join(f"{each['us']:.1f} {brief(each['config'])}" for each in found[:5])
    best += "; many " + "; ".join(f"{each['us']:.1f} {brief(each['config'])}" for each in many)
    print(f"{name}: {share:.0%}, {bf16_us / us:.2f}x, rule {rule_us or 0:.1f}, bf16 {bf16_us:.1f}, "
          f"numbers {numbers_us or 0:.1f}, best {best}", flush=True)  # fmt: skip
    return {"m": m, "n": n, "k": k, "group": group, "codes": codes, "us": us, "share": share,
            "rule_us": rule_us, "bf16_us": bf16_us, "numbers_us": numbers_us,
            "configs": found[:8], "many": many}  # fmt: skip


def compile_block(n: int, k: int, group: int, codes: str, config: BlockConfig) -> None:
    """Run a config of blocks once."""
    x = torch.zeros(config.block_m, k, device=DEVICE, dtype=torch.bfloat16)
    multiply_blocks(rounded(x, codes), random_words(n, k, group, codes), None, config)
    torch.cuda.synchronize()


def rounded(x: Tensor, codes: str) -> RoundedRows:
    """x in blocks of a weight's codes."""
    return quantize_blocks(x, Int8Blocks if codes == "s8" else Fp8Blocks)


def blocks_worth(m: int, n: int, k: int) -> list[BlockConfig]:
    """Configs of blocks that may be the best: the rule's, and those of a similar expected time."""
    num_sms = workspace(torch.device(DEVICE, 0)).num_sms
    us = {each: expected_us(m, n, k, num_sms, each) for each in block_configs(m, n, k)}
    near = sorted(us, key=lambda each: us[each])[:10]
    return list(
        dict.fromkeys([*([rule] if (rule := block_config(m, n, k, num_sms)) else []), *near])
    )


def measure_blocks(
    m: int, n: int, k: int, group: int, codes: str, budget: Budget
) -> dict[str, Any] | None:
    """Configs in eight bits with scales of blocks, beside bfloat16; rounding x apart."""
    if budget.left < 3:
        return None
    weights = weights_of(n, k, group, codes)
    x = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    given, numbers = rounded(x, codes), BYTES.numbers(weights[0], torch.bfloat16)
    found = time_configs(
        blocks_worth(m, n, k),
        lambda config: [lambda w=w: multiply_blocks(given, w, None, config) for w in weights],
        x @ numbers.t(),
        f"blocks {n}x{k} {m} rows",
        limit=5e-2,
        least_us=200.0,
    )
    bf16_us, round_us = bf16_of(x, numbers), time_graph([lambda: rounded(x, codes)] * 20, 200.0)
    best = "; ".join(f"{each['us']:.1f} {brief(each['config'])}" for each in found)
    print(
        f"blocks {n}x{k} {m} rows: bf16 {bf16_us:.1f}, rounding {round_us:.1f}, {best}", flush=True
    )
    return {"m": m, "n": n, "k": k, "bf16_us": bf16_us, "round_us": round_us, "configs": found}


def main() -> None:
    """Time what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 32, 64, 128])
    parser.add_argument("--stages", type=int, nargs="*", default=[2, 3])
    parser.add_argument("--many", type=int, nargs="*", default=[], help="rows rounded by blocks")
    parser.add_argument("--group", type=int, default=128, help="0: a scale for each row alone")
    parser.add_argument("--codes", choices=["s8", "e4m3"], default="s8")
    parser.add_argument("--workers", type=int, default=1, help="processes that compile beforehand")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--name", default="gpu_bytes")
    args = parser.parse_args()
    record.require_gpu()
    budget, bandwidth = Budget(args.seconds), read_bandwidth()
    torch.manual_seed(0)
    cases = [
        (m, n, k, args.group, args.codes, config)
        for m, (n, k) in itertools.product(args.rows, SHAPES)
        for config in configs_of(m, n, k, args.group, args.stages)
    ]
    precompile(compile_case, cases, args.workers, budget)
    shapes = itertools.product(SHAPES, args.many)
    each = {(n, k, args.group, args.codes, config) for (n, k), m in shapes
            for config in blocks_worth(m, n, k)}  # fmt: skip
    precompile(compile_block, list(each), args.workers, budget)
    shapes = itertools.product(SHAPES, args.rows)
    of_rows = {(n, k, args.group, args.codes, config) for (n, k), m in shapes
               for config in rows_worth(m, n, k)}  # fmt: skip
    precompile(compile_rows, list(of_rows), args.workers, budget)
    many = [measure_blocks(m, n, k, args.group, args.codes, budget)
            for (n, k), m in itertools.product(SHAPES, args.many)]  # fmt: skip
    rows = [measure(m, n, k, args.group, args.codes, args.stages, bandwidth, budget)
            for (n, k), m in itertools.product(SHAPES, args.rows)]  # fmt: skip
    gpu = {"gpu": torch.cuda.get_device_name(), "read_bandwidth": bandwidth}
    record.save(args.name, {**gpu, "rows": [row for row in rows if row],
                            "blocks": [row for row in many if row]})  # fmt: skip


if __name__ == "__main__":
    main()
