"""Times products that make heads together with the turning and writing of those heads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from gpu_products import Case
from gpu_timing import DEVICE, DTYPE, time_by_turns
from torch import Tensor

from quire.kernels import reference
from quire.kernels.operands import Fp8Weight, RopeWriteKV
from quire.kernels.triton.launch.gemm_config import Way, way_from
from quire.kernels.triton.ops.skinny_gemm import skinny_gemm, skinny_gemm_rope
from quire.kernels.triton.step.rope_kernels import rope_write_kv

HEAD_DIM = 128  # shorter heads fill the tiles of any way
KV_HEADS = 2  # is compiled in, and makes no difference
NEAR = 3  # ways of either kind that are timed again with what becomes of heads
Calls = list[Callable[[], object]]


def turning_of(m: int, itemsize: int) -> RopeWriteKV:
    """Keys and values in as many bits as weights."""
    kept = reference.FP8 if itemsize == 1 else DTYPE
    k_cache, v_cache = torch.zeros(2, 8, 16, KV_HEADS, HEAD_DIM, device=DEVICE).to(kept)
    cos, sin = torch.randn(2, m, HEAD_DIM, device=DEVICE).to(DTYPE)
    return RopeWriteKV(HEAD_DIM, None, cos, sin, k_cache, v_cache, torch.arange(m, device=DEVICE))


def joined(x: Tensor, weight: Any, turning: RopeWriteKV, way: Way) -> Tensor:
    """In one launch; queries."""
    return skinny_gemm_rope(x, weight, turning, way)


def apart(x: Tensor, weight: Any, turning: RopeWriteKV, way: Way) -> Tensor:
    """In two."""
    return rope_write_kv(*turning.operands(skinny_gemm(x, weight, config=way)))


def time_heads(
    case: Case, m: int, itemsize: int, rows: list[dict[str, Any]], taken: tuple[bool, Way]
) -> list[dict[str, Any]]:
    """Of the product's ways `rows`, the quickest first, some with all that is done to heads.

    taken: whether the choice turns heads inside of the product, and its way, timed as well.
    """
    ways = [way_from(row["config"]) for row in rows]
    whole = [way for way in ways if way.block_n % HEAD_DIM == 0]
    wanted = [(True, way) for way in whole[:NEAR]] + [(False, way) for way in ways[:NEAR]]
    turning, x = turning_of(m, itemsize), case.x
    assert isinstance(x, Tensor)
    calls: dict[Any, Calls] = {
        (inside, way): [
            functools.partial(joined if inside else apart, x, w, turning, way) for w in case.weights
        ]
        for inside, way in dict.fromkeys([*wanted, taken])
    }
    times = time_by_turns(calls, least_us=200)
    found = [
        {"inside": inside, "config": asdict(way), "us": us} for (inside, way), us in times.items()
    ]
    return sorted(found, key=lambda row: row["us"])


def run_heads_once(m: int, n: int, itemsize: int, way: Way | None) -> None:
    """One small product with heads, for what it leaves in the cache of compiled kernels.

    By None: the kernel that turns heads otherwise.
    """
    k = 2048
    if way is None:
        fused = torch.zeros(m, n, device=DEVICE, dtype=DTYPE)
        rope_write_kv(*turning_of(m, itemsize).operands(fused))
    else:
        weight: Any = torch.zeros(n, k, device=DEVICE).to(DTYPE if itemsize == 2 else reference.FP8)
        if itemsize == 1:
            weight = Fp8Weight(weight, torch.ones(n, device=DEVICE))
        joined(torch.zeros(m, k, device=DEVICE, dtype=DTYPE), weight, turning_of(m, itemsize), way)
    torch.cuda.synchronize()
