"""Times linears of a few rows one by one, with what their layers fuse into them."""

from __future__ import annotations

import argparse
import functools
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_shapes import MODELS
from gpu_timing import (
    DEVICE,
    DTYPE,
    Budget,
    brief,
    copies_beyond_cache,
    num_sms,
    precompile,
    time_configs,
    time_graph,
)
from torch import Tensor

from quire.kernels import reference
from quire.kernels.operands import Fp8Rows, Fp8Weight, ResidualState
from quire.kernels.triton.gemm import gemm_tuning
from quire.kernels.triton.hopper.hopper_fp8_gemm import multiply_rows
from quire.kernels.triton.launch.gemm_config import (
    GemmConfig,
    RingConfig,
    config_from,
    gemm_configs,
)
from quire.kernels.triton.ops import fp8_linear
from quire.kernels.triton.ops.gpu_linear import FEW, MAX_ROWS
from quire.kernels.triton.ops.skinny_gemm import (
    skinny_gemm,
    skinny_gemm_norm,
    skinny_gemm_silu,
)
from quire.kernels.triton.step.elementwise import quantize_rows

TABLE = Path(gemm_tuning.__file__).parent / "gemm_configs.json"


def tune(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """The best config of heads, the choice for layers' GEMMs, beside the library's.

    alone_us: with what the layer fuses into it.
    """
    cases = [
        (m, name, linear, size)
        for size in args.itemsizes
        for m in few(args.rows, size)
        for name in args.models
        for linear in args.linears
    ]
    precompile(run_tuned_once, cases, args.workers, budget)
    for m, name, linear, itemsize in () if args.compile else cases:
        if budget.left < 1:
            print("out of time")
            break
        n, k = MODELS[name].linear_shapes()[linear]
        configs = configs_of(m, n, k, itemsize)
        if linear == "head":
            rows, library = time_alone(m, n, k, itemsize, configs, f"{m} {name} head {itemsize}")
            alone, config = rows[0]["us"], rows[0]["config"]
        else:
            case, config = case_of(m, n, k, itemsize), asdict(configs[0])
            alone, library = time_graph(fused(linear, case)), time_graph(case.library)
        print(
            f"tune {name} {linear:8} {8 * itemsize:2} bits m={m:2} {alone:7.2f} us, library "
            f"{library:7.2f}  {brief(config)}",
            flush=True,
        )
        results.append(
            {"model": name, "linear": linear, "m": m, "n": n, "k": k, "itemsize": itemsize,
             "config": config, "alone_us": alone, "library_us": library}
        )  # fmt: skip


def configs_of(m: int, n: int, k: int, itemsize: int) -> list[GemmConfig]:
    """The engine's choice, and all other configs to try."""
    usual = gemm_tuning.skinny_gemm_config(m, n, k, itemsize, num_sms(), hopper=True)
    return list(dict.fromkeys([usual, *gemm_configs(m, n, k, itemsize, num_sms())]))


def fused(linear: str, case: Case) -> list[functools.partial[Any]]:
    """The linear with what its layer fuses into it, for each weight."""
    x, (m, k), n = case.x, case.x.shape, len(case.expected[0])
    assert isinstance(x, Tensor)
    norm = torch.rand(max(n, k), device=DEVICE, dtype=DTYPE)
    normalized = ResidualState(x, x, norm[:k], 1e-5, torch.rand(32, m, device=DEVICE))
    residual = torch.randn(m, n, device=DEVICE, dtype=DTYPE)
    if linear in ("qkv", "gate_up"):
        call: Any = skinny_gemm if linear == "qkv" else skinny_gemm_silu
        return [functools.partial(call, normalized, w) for w in case.weights]
    return [
        functools.partial(skinny_gemm_norm, x, w, residual, norm[:n], 1e-5) for w in case.weights
    ]


def run_tuned_once(m: int, name: str, linear: str, itemsize: int) -> None:
    """Run a tuned product once, so that its kernel is compiled and stored."""
    n, k = MODELS[name].linear_shapes()[linear]
    if linear == "head":
        for config in configs_of(m, n, k, itemsize):
            run_once(m, n, k, itemsize, config)
    else:
        weight = torch.ones(n, k, device=DEVICE, dtype=DTYPE)
        case = plain_case(m, [weight]) if itemsize == 2 else fp8_case(m, [weight.to(reference.FP8)])
        fused(linear, case)[0]()
    torch.cuda.synchronize()


def few(rows: list[int], itemsize: int) -> list[int]:
    """The numbers of rows that `skinny_gemm` serves; gpu_rows.py has the others."""
    return [m for m in rows if m <= (FEW if itemsize == 1 else MAX_ROWS)]


def linear_calls(case: Case, config: GemmConfig) -> list[functools.partial[Tensor]]:
    """x · Wᵀ for each weight."""
    if isinstance(case.x, Tensor):
        return [functools.partial(skinny_gemm, case.x, w, config=config) for w in case.weights]
    assert isinstance(config, RingConfig)
    return [
        functools.partial(multiply_rows, case.x, w.codes, w.scale, None, config)
        for w in case.weights
        if isinstance(w, Fp8Weight)
    ]


def time_alone(
    m: int, n: int, k: int, itemsize: int, configs: list[GemmConfig], label: str
) -> tuple[list[dict[str, Any]], float]:
    """The configs of one linear, the quickest first, and microseconds of the library."""
    case = case_of(m, n, k, itemsize)
    make = functools.partial(linear_calls, case)
    return time_configs(configs, make, case.expected, label), time_graph(case.library)


def case_of(m: int, n: int, k: int, itemsize: int) -> Case:
    """A linear on as many weights as outgrow the cache."""
    source = numbers(itemsize)
    copies = min(copies_beyond_cache(itemsize * n * k, most=24), source.numel() // (n * k))
    given = [source[i * n * k : (i + 1) * n * k].view(n, k) for i in range(copies)]
    return plain_case(m, given) if itemsize == 2 else fp8_case(m, given)


@functools.cache
def numbers(itemsize: int) -> Tensor:
    """Random numbers that weights are cut from."""
    flat = torch.randn(3 * 2**29, device=DEVICE).to(DTYPE)
    return flat if itemsize == 2 else flat.to(reference.FP8)


@dataclass(frozen=True)
class Case:
    """A linear on several weights: its first result, and how the library makes it."""

    x: Tensor | Fp8Rows  # these of more rows than a GEMM rounds itself
    weights: list[Tensor] | list[Fp8Weight]
    expected: Tensor
    library: list[functools.partial[Tensor]]


def plain_case(m: int, weights: list[Tensor]) -> Case:
    """Weights as they are, against cuBLAS."""
    x = torch.randn(m, weights[0].shape[1], device=DEVICE, dtype=DTYPE)
    library = [functools.partial(F.linear, x, w) for w in weights]
    return Case(x, weights, F.linear(x, weights[0]), library)


def fp8_case(m: int, codes: list[Tensor]) -> Case:
    """Weights in FP8, against `_scaled_mm` behind the kernel that rounds x.

    x is FP8 already, so that both round it to the same and the result is known.
    """
    n, k = codes[0].shape
    x = torch.randint(-8, 9, (m, k), device=DEVICE).to(DTYPE)
    given = x if m <= FEW else quantize_rows(x)
    weights = [Fp8Weight(w, torch.ones(n, device=DEVICE)) for w in codes]
    expected = reference.linear_fp8(x, weights[0].codes, weights[0].scale, None)
    library = [
        functools.partial(fp8_linear.by_library, given, w.codes, w.scale, None) for w in weights
    ]
    return Case(given, weights, expected, library)


def write_table(result: dict[str, Any]) -> None:
    """Put the best config of each measured shape into the table, and what cuBLAS is faster at."""
    best = {(row["itemsize"], row["n"], row["k"], row["m"]): row for row in result["tune"]}
    faster = {key: row["library_us"] < row["alone_us"] for key, row in best.items()}
    save_configs({key: row["config"] for key, row in best.items()}, faster)


def save_configs(
    best: dict[tuple[int, ...], dict[str, Any] | None],
    library_is_faster: dict[tuple[int, ...], bool],
) -> None:
    """Write configs by (itemsize, n, k, m) into the table; what it has of other shapes stays."""
    table = json.loads(TABLE.read_text())
    configs = [None, *(asdict(config_from(each)) for each in table["configs"])]
    by_library = {tuple(key) for key in table["by_library"]} - set(library_is_faster)
    by_library |= {key for key, faster in library_is_faster.items() if faster}
    shapes = {tuple(row[:3]): {m: rest for m, *rest in row[3:]} for row in table["shapes"]}
    for (*shape, m), config in best.items():
        if config is not None and config not in configs:
            configs.append(config)
        shapes.setdefault(tuple(shape), {})[m] = [configs.index(config)]
    rows = [
        [*shape, *([m, *by_rows[m]] for m in sorted(by_rows))]
        for shape, by_rows in sorted(shapes.items())
    ]
    lines = {"configs": configs[1:], "by_library": sorted(by_library), "shapes": rows}
    parts = [f'"num_sms": {table["num_sms"]}']
    for name, each in lines.items():
        joined = ",\n".join(json.dumps(line, separators=(",", ":")) for line in each)
        parts.append(f'"{name}": [\n{joined}\n]')
    TABLE.write_text(f"{{{', '.join(parts)}}}\n")


def run_once(m: int, n: int, k: int, itemsize: int, config: GemmConfig) -> None:
    """One linear, for what it leaves in the cache of compiled kernels."""
    weight: Any = torch.empty(n, k, device=DEVICE, dtype=DTYPE if itemsize == 2 else reference.FP8)
    if itemsize == 1:
        weight = Fp8Weight(weight, torch.empty(n, device=DEVICE))
    skinny_gemm(torch.empty(m, k, device=DEVICE, dtype=DTYPE), weight, config=config)
    torch.cuda.synchronize()
