"""Times configs of linears with weights in four bits or a byte each, against bandwidth or bfloat16.

    python benchmarks/gpu_int4.py --name gpu_int4 --rows 1 4 16 64 --many 96 129 257 384
    python benchmarks/gpu_int4.py --codes s8 --name gpu_bytes --workers 15 --seconds 100

Each config worth trying is checked and timed in a chain of launches over more weights than the
cache holds; `us` is the best one's, `rule_us` that of the config which the rule takes, `bf16_us`
the engine's in bfloat16. With many rows, which are rounded (to FP8; for bytes in blocks), those are
tried whose expected time is near the best; `exact_us` is the time without rounding, up to 128 rows.
Bytes have another kernel for more than 64 rows that are not rounded (`exact`), and `numbers_us` is
the time where the weight becomes numbers, and the library multiplies.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Any

import torch
from gpu_shapes import SHAPES
from gpu_timing import (
    DEVICE,
    Budget,
    brief,
    copies_beyond_cache,
    gpu_parser,
    num_sms,
    parse_on_gpu,
    precompile,
    read_bandwidth,
    save,
    time_configs,
    time_graph,
)
from torch import Tensor

from quire.kernels.byte_operands import ByteWords, Fp8Blocks, Int8Blocks
from quire.kernels.dispatch import kernels_for
from quire.kernels.operands import Int4Words, RoundedRows
from quire.kernels.triton.gemm import block_config as blocks
from quire.kernels.triton.gemm import byte_rows_config as byte_rows
from quire.kernels.triton.gemm import int4_rows_config as int4_rows
from quire.kernels.triton.gemm.byte_config import byte_config, byte_configs
from quire.kernels.triton.gemm.int4_config import Int4Config, int4_config, int4_configs
from quire.kernels.triton.hopper.hopper_block_gemm import multiply_blocks
from quire.kernels.triton.hopper.hopper_byte_rows import multiply_byte_rows
from quire.kernels.triton.hopper.hopper_int4_rows import multiply_rows_int4
from quire.kernels.triton.ops.byte_linear import BYTES, by_library
from quire.kernels.triton.ops.int4_weight import dequantize_int4, row_scales
from quire.kernels.triton.ops.skinny_gemm import skinny_gemm
from quire.kernels.triton.step.block_rounding import quantize_blocks
from quire.kernels.triton.step.elementwise import quantize_rows

MOST_CONFIGS = 8  # of many rows
Words = Int4Words | ByteWords
Config = Int4Config | int4_rows.Int4RowsConfig | blocks.BlockConfig | byte_rows.ByteRowsConfig
Row = dict[str, Any]


def random_words(n: int, k: int, group: int, codes: str = "int4") -> Any:
    """A weight of random codes; results of 4,096 columns are of the order of 1. group 0: none."""
    columns = k // (8 if codes == "int4" else 4)
    words = torch.randint(-(2**31), 2**31 - 1, (n, columns), device=DEVICE, dtype=torch.int32)
    if codes == "int4":
        scale = (torch.rand(k // group, n, device=DEVICE) * 0.01 + 0.002).half()
        return Int4Words(words, scale, None, row_scales(scale, None), group, k)
    if codes == "e4m3":
        words &= -0x08080809  # no code has all exponent bits: 127 is not a number
    groups = (torch.rand(k // group, n, device=DEVICE) * 0.5 + 0.5).half() if group else None
    row_scale = torch.rand(n, device=DEVICE) * 3e-4 + 1e-4
    return ByteWords(words, groups, None, row_scale, group or 128, k, codes)


def bytes_of(n: int, k: int, group: int, codes: str) -> int:
    """Bytes of a weight with its groups' scales."""
    return n * k // (2 if codes == "int4" else 1) + (2 * n * k // group if group else 0)


def weights_of(n: int, k: int, group: int, codes: str = "int4") -> list[Any]:
    """Enough weights that none is found in the cache."""
    copies = copies_beyond_cache(bytes_of(n, k, group, codes))
    return [random_words(n, k, group, codes) for _ in range(copies)]


def numbers_of(weight: Words) -> Tensor:
    """The weight in bfloat16."""
    if isinstance(weight, ByteWords):
        return BYTES.numbers(weight, torch.bfloat16)
    out = torch.empty(len(weight.words), weight.inputs, device=DEVICE, dtype=torch.bfloat16)
    return dequantize_int4(weight, out)


def rounded(x: Tensor, codes: str) -> RoundedRows:
    """x as the kernels of many rows take it."""
    if codes == "int4":
        return quantize_rows(x)
    return quantize_blocks(x, Int8Blocks if codes == "s8" else Fp8Blocks)


def few_configs(
    m: int, n: int, k: int, group: int, codes: str, stages: list[int]
) -> list[Int4Config]:
    """The rule's config first, then those worth trying with one of these numbers of stages."""
    if codes == "int4":
        rule, every = (f(m, n, k, group, num_sms()) for f in (int4_config, int4_configs))
    else:
        own = m, n, k, group or 128, num_sms(), 1 if group else 0  # tables of groups: scales alone
        rule, every = byte_config(*own), byte_configs(*own)
    assert rule is not None  # few rows of common sizes
    return list(dict.fromkeys([rule, *(each for each in every if each.stages in stages)]))


def many_configs(m: int, n: int, k: int, codes: str) -> list[Config]:
    """For rounded rows: the rule's config first, then those of nearly the least expected time."""
    module, name = (int4_rows, "int4_rows_config") if codes == "int4" else (blocks, "block_config")
    rule = getattr(module, name)(m, n, k, num_sms())
    assert rule is not None  # common sizes
    return list(dict.fromkeys([rule, *_near(module, f"{name}s", m, n, k)]))


def exact_configs(m: int, n: int, k: int, codes: str) -> list[Config]:
    """For more than 64 rows that are not rounded, of a weight of bytes."""
    return _near(byte_rows, "byte_rows_configs", m, n, k) if m > 64 and codes != "int4" else []


def _near(module: Any, name: str, m: int, n: int, k: int) -> list[Config]:
    """Configs of an expected time up to 1.6 times the least. name: what lists all configs."""
    us = {
        each: module.expected_us(m, n, k, num_sms(), each)
        for each in getattr(module, name)(m, n, k)
    }
    near = sorted(us, key=lambda each: us[each])[:MOST_CONFIGS]
    return [each for each in near if us[each] <= 1.6 * us[near[0]]]


def multiply(x: Any, weight: Any, config: Config) -> Tensor:
    """x times a weight by the kernel of this config."""
    if isinstance(config, Int4Config):
        return skinny_gemm(x, weight, config=config)
    if isinstance(config, byte_rows.ByteRowsConfig):
        return multiply_byte_rows(x, weight, None, config)
    if isinstance(config, blocks.BlockConfig):
        return multiply_blocks(x, weight, None, config)
    return multiply_rows_int4(x, weight, None, config)


def compile_case(m: int, n: int, k: int, group: int, codes: str, config: Config) -> None:
    """Run a config once."""
    is_few = isinstance(config, Int4Config)
    x = torch.zeros(m if is_few else config.block_m, k, device=DEVICE, dtype=torch.bfloat16)
    given = x if is_few or isinstance(config, byte_rows.ByteRowsConfig) else rounded(x, codes)
    multiply(given, random_words(n, k, group, codes), config)
    torch.cuda.synchronize()


class Case:
    """A weight's shape and number of rows, beside bfloat16."""

    def __init__(self, m: int, n: int, k: int, group: int, codes: str) -> None:
        self.m, self.shape, self.codes = m, (n, k, group, codes), codes
        self.weights = weights_of(n, k, group, codes)
        self.x = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
        numbers = numbers_of(self.weights[0])
        self._expected, self._label = self.x @ numbers.t(), f"{codes} g{group} {n}x{k} {m} rows"
        copies = copies_beyond_cache(numbers.nbytes)
        plain, linear = (
            [numbers, *(numbers.clone() for _ in range(copies - 1))],
            kernels_for("cuda").linear,
        )
        self.bf16_us = time_graph([lambda w=w: linear(self.x, w, None) for w in plain], 200.0)

    def times(self, configs: list[Any], x: Any, limit: float = 1e-2) -> list[Row]:
        """Each config that is right, the quickest first."""
        return time_configs(
            configs,
            lambda config: [lambda w=w: multiply(x, w, config) for w in self.weights],
            self._expected, self._label, limit=limit, least_us=200.0,
        )  # fmt: skip

    def row(self, found: list[Row], rule: Any, **more: Any) -> Row:
        """A result row, which is printed. rule: the engine's config."""
        rule_us = next((each["us"] for each in found if each["config"] == asdict(rule)), None)
        best = "; ".join(f"{each['us']:.2f} {brief(each['config'])}" for each in found[:6])
        shown = ", ".join(
            f"{name} {value:.2f}" for name, value in more.items() if isinstance(value, float)
        )
        print(f"{self._label}: bf16 {self.bf16_us:.1f}, by the rule {rule_us or 0:.2f}, {shown}, "
              f"best {best}", flush=True)  # fmt: skip
        n, k, group, codes = self.shape
        own = {"m": self.m, "n": n, "k": k, "group": group, "codes": codes, "us": found[0]["us"]}
        return own | {"rule_us": rule_us, "bf16_us": self.bf16_us, "configs": found[:8]} | more


def few_rows(case: Case, configs: list[Int4Config], bandwidth: float) -> Row | None:
    """The best of these configs, with its share of the bandwidth."""
    found = case.times(configs, case.x)
    if not found:
        return None
    more: Row = {"share": bytes_of(*case.shape) / found[0]["us"] * 1e6 / bandwidth}
    if exact := exact_configs(case.m, *case.shape[:2], case.codes):
        more["exact"] = case.times(exact, case.x)
    if case.m >= 128 and case.codes != "int4":
        more["numbers_us"] = time_graph(
            [lambda w=w: by_library(case.x, w, None) for w in case.weights], 200.0
        )
    return case.row(found, configs[0], **more)


def many_rows(case: Case, configs: list[Config]) -> Row | None:
    """The best of these configs for rounded rows; rounding them apart."""
    given = rounded(case.x, case.codes)
    found = case.times(configs, given, limit=5e-2)
    if not found:
        return None
    more = {"round_us": time_graph([lambda: rounded(case.x, case.codes)] * 20, 200.0)}
    if case.m <= 128 and case.codes == "int4":
        more["exact_us"] = time_graph(
            [lambda w=w: skinny_gemm(case.x, w) for w in case.weights], 200.0
        )
    return case.row(found, configs[0], **more)


def main() -> None:
    """Time what the command line names."""
    parser = gpu_parser(__doc__, "gpu_int4")
    parser.add_argument("--codes", choices=["int4", "s8", "e4m3"], default="int4")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--stages", type=int, nargs="*", default=[2, 3, 4], help="of few rows")
    parser.add_argument("--many", type=int, nargs="*", default=[], help="rows that are rounded")
    parser.add_argument("--models", nargs="*", default=["8b"], help="of benchmarks/gpu_shapes.py")
    parser.add_argument("--group", type=int, default=128, help="0: a scale for each row, of bytes")
    args = parse_on_gpu(parser)
    if args.codes != "int4" and args.name == "gpu_int4":
        args.name = "gpu_bytes"
    budget, bandwidth, weight = Budget(args.seconds), read_bandwidth(), (args.group, args.codes)
    shapes = [
        SHAPES[model].linear_shapes()[linear]
        for model in args.models
        for linear in ("qkv", "o", "gate_up", "down")
    ]
    few = {(m, *shape): few_configs(m, *shape, *weight, args.stages)
           for shape, m in itertools.product(shapes, args.rows)}  # fmt: skip
    many = {(m, *shape): many_configs(m, *shape, args.codes)
            for shape, m in itertools.product(shapes, args.many)}  # fmt: skip
    exact = {key: exact_configs(*key, args.codes) for key in few}
    cases = [(*key, *weight, config) for each in (few, many, exact)
             for key, configs in each.items() for config in configs]  # fmt: skip
    precompile(compile_case, cases, args.workers, budget)
    rows = [few_rows(Case(*key, *weight), configs, bandwidth)
            for key, configs in few.items() if budget.left > 5]  # fmt: skip
    more = [many_rows(Case(*key, *weight), configs)
            for key, configs in many.items() if budget.left > 3]  # fmt: skip
    save(args, read_bandwidth=bandwidth, few=[row for row in rows if row],
         rows_in_fp8=[row for row in more if row])  # fmt: skip


if __name__ == "__main__":
    main()
