"""Times configs of linears with four-bit weights on a GPU, against bandwidth or bfloat16.

    python benchmarks/gpu_int4.py --name gpu_int4 --rows 1 4 16 64 --many 96 129 257 384

Each config worth trying is checked and timed in a chain of launches over more weights than the
cache holds; `us` is the best one's, `rule_us` that of the config which the rule takes. With many
rows, in FP8, those are tried whose expected time is near the best; `bf16_us` is the library's time,
`w4a16_us` that without rounding, up to 128 rows.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import asdict
from typing import Any

import record
import torch
from gpu_shapes import SHAPES
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

from quire.kernels.operands import Int4Words
from quire.kernels.triton.gemm.int4_config import Int4Config, int4_config, int4_configs
from quire.kernels.triton.gemm.int4_rows_config import (
    Int4RowsConfig,
    expected_us,
    int4_rows_config,
    int4_rows_configs,
)
from quire.kernels.triton.hopper.hopper_int4_rows import multiply_rows_int4
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops.int4_weight import dequantize_int4, row_scales
from quire.kernels.triton.ops.skinny_gemm import skinny_gemm
from quire.kernels.triton.step.elementwise import quantize_rows

MOST_CONFIGS = 8  # of many rows


def random_words(n: int, k: int, group: int) -> Int4Words:
    """A weight of random codes; results of 4,096 columns are of the order of 1."""
    words = torch.randint(-(2**31), 2**31 - 1, (n, k // 8), device=DEVICE, dtype=torch.int32)
    scale = (torch.rand(k // group, n, device=DEVICE) * 0.01 + 0.002).half()
    return Int4Words(words, scale, None, row_scales(scale, None), group, k)


def weights_of(n: int, k: int, group: int) -> list[Int4Words]:
    """Enough weights that none is found in the cache."""
    num_bytes = n * k // 2 + 2 * n * k // group
    return [random_words(n, k, group) for _ in range(copies_beyond_cache(num_bytes))]


def numbers_of(weight: Int4Words) -> Tensor:
    """The weight in bfloat16."""
    out = torch.empty(len(weight.words), weight.inputs, device=DEVICE, dtype=torch.bfloat16)
    return dequantize_int4(weight, out)


def compile_case(m: int, n: int, k: int, group: int, config: Int4Config) -> None:
    """Run a config once."""
    x = torch.zeros(m, k, device=DEVICE, dtype=torch.bfloat16)
    skinny_gemm(x, random_words(n, k, group), config=config)
    torch.cuda.synchronize()


def few_rows(
    m: int, n: int, k: int, group: int, stages: list[int], bandwidth: float, budget: Budget
) -> dict[str, Any] | None:
    """All configs of a shape: the best one's microseconds and share of the bandwidth."""
    if budget.left < 5:
        return None
    weights = weights_of(n, k, group)
    x = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    expected, num_sms = x @ numbers_of(weights[0]).t(), workspace(x.device).num_sms
    rule = int4_config(m, n, k, group, num_sms)
    assert rule is not None  # few rows of common sizes
    every = (each for each in int4_configs(m, n, k, group, num_sms) if each.stages in stages)
    configs = list(dict.fromkeys([rule, *every]))
    found = time_configs(
        configs,
        lambda config: [lambda w=w: skinny_gemm(x, w, config=config) for w in weights],
        expected,
        f"{n}x{k} {m} rows",
        least_us=200.0,
    )
    if not found:
        return None
    rule_us = next((row["us"] for row in found if row["config"] == asdict(rule)), None)
    num_bytes = n * k / 2 + 2 * n * k / group
    share = num_bytes / found[0]["us"] * 1e6 / bandwidth
    row = {"m": m, "n": n, "k": k, "group": group, "us": found[0]["us"], "share": share,
           "rule_us": rule_us, "config": found[0]["config"]}  # fmt: skip
    best = "; ".join(f"{each['us']:.2f} {brief(each['config'])}" for each in found[:6])
    print(f"{n} x {k}, {m} rows: {share:.0%}, by the rule {rule_us or 0:.2f}, best {best}")
    return row


def worth_trying(m: int, n: int, k: int) -> list[Int4RowsConfig]:
    """Configs of many rows that may be the best: of the expected time up to 1.6 times the least."""
    num_sms = workspace(torch.device(DEVICE, 0)).num_sms
    found = {each: expected_us(m, n, k, num_sms, each)
             for each in int4_rows_configs(m, n, k)}  # fmt: skip
    near = sorted(found, key=lambda each: found[each])[:MOST_CONFIGS]
    return [each for each in near if found[each] <= 1.6 * found[near[0]]]


def compile_rows(n: int, k: int, group: int, config: Int4RowsConfig) -> None:
    """Run a config of many rows once."""
    x = torch.zeros(config.block_m, k, device=DEVICE, dtype=torch.bfloat16)
    multiply_rows_int4(quantize_rows(x), random_words(n, k, group), None, config)
    torch.cuda.synchronize()


def many_rows(m: int, n: int, k: int, group: int, budget: Budget) -> dict[str, Any] | None:
    """Configs of a shape in FP8, beside the library in bfloat16."""
    if budget.left < 3:
        return None
    weights = weights_of(n, k, group)
    x = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    given, numbers = quantize_rows(x), numbers_of(weights[0])
    plain = [numbers, *(numbers.clone() for _ in range(copies_beyond_cache(2 * n * k) - 1))]
    bf16_us = time_graph([lambda w=w: torch.nn.functional.linear(x, w) for w in plain], 200.0)
    w4a16_us = None
    if m <= 128:
        w4a16_us = time_graph([lambda w=w: skinny_gemm(x, w) for w in weights], 200.0)
    rule = int4_rows_config(m, n, k, workspace(x.device).num_sms)
    found = time_configs(
        list(dict.fromkeys([rule, *worth_trying(m, n, k)])),
        lambda config: [lambda w=w: multiply_rows_int4(given, w, None, config) for w in weights],
        x @ numbers.t(),
        f"{n}x{k} {m} rows",
        limit=5e-2,
        least_us=200.0,
    )
    if not found:
        return None
    rule_us = next((row["us"] for row in found if row["config"] == asdict(rule)), None)
    shown = "; ".join(f"{each['us']:.2f} {brief(each['config'])}" for each in found)
    print(f"{n} x {k}, {m} rows: bf16 {bf16_us:.1f}, w4a16 {w4a16_us or 0:.1f}, "
          f"by the rule {rule_us or 0:.2f}, {shown}", flush=True)  # fmt: skip
    return {"m": m, "n": n, "k": k, "group": group, "us": found[0]["us"], "rule_us": rule_us,
            "bf16_us": bf16_us, "w4a16_us": w4a16_us, "configs": found}  # fmt: skip


def main() -> None:
    """Time what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--stages", type=int, nargs="*", default=[2, 3, 4], help="of few rows")
    parser.add_argument("--many", type=int, nargs="*", default=[], help="rows in FP8")
    parser.add_argument("--models", nargs="*", default=["8b"], help="of benchmarks/gpu_shapes.py")
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--workers", type=int, default=1, help="processes that compile beforehand")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--name", default="gpu_int4")
    args = parser.parse_args()
    record.require_gpu()
    budget, bandwidth = Budget(args.seconds), read_bandwidth()
    torch.manual_seed(0)
    shapes = [
        SHAPES[model].linear_shapes()[linear]
        for model in args.models
        for linear in ("qkv", "o", "gate_up", "down")
    ]
    num_sms = workspace(torch.device(DEVICE, 0)).num_sms
    cases = [
        (m, n, k, args.group, config)
        for m, (n, k) in itertools.product(args.rows, shapes)
        for config in int4_configs(m, n, k, args.group, num_sms)
        if config.stages in args.stages
    ]
    precompile(compile_case, cases, args.workers, budget)
    each = {(n, k, args.group, config) for (n, k), m in itertools.product(shapes, args.many)
            for config in worth_trying(m, n, k)}  # fmt: skip
    precompile(compile_rows, list(each), args.workers, budget)
    few = [few_rows(m, n, k, args.group, args.stages, bandwidth, budget)
           for (n, k), m in itertools.product(shapes, args.rows)]  # fmt: skip
    many = [many_rows(m, n, k, args.group, budget)
            for (n, k), m in itertools.product(shapes, args.many)]  # fmt: skip
    gpu = {"gpu": torch.cuda.get_device_name(), "read_bandwidth": bandwidth}
    found = {"few": [row for row in few if row], "many": [row for row in many if row]}
    record.save(args.name, gpu | found)


if __name__ == "__main__":
    main()
