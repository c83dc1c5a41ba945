"""How kernels cut their work: measured choices for known shapes, a rule for all others."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class SkinnyConfig:
    """A way of `skinny_gemm` to cut W.

    split > 0: so many programs share each tile, all at the same k-steps. split = 0: `per_sm`
    programs a multiprocessor share all tiles evenly, wherever the borders fall. tma: the copy
    engine fetches W (Hopper and later).
    """

    block_n: int
    block_k: int
    stages: int
    split: int = 0
    per_sm: int = 2
    warps: int = 4
    tma: bool = False
    min_block_m: int = 16

    def grid(self, n: int, k: int, num_sms: int) -> tuple[int, int]:
        """(programs, most programs that share a tile) for a weight [n, k]."""
        k_tiles = -(-k // self.block_k)
        num_tiles = -(-n // self.block_n)
        num_units = num_tiles * k_tiles
        if self.split:
            split = min(self.split, k_tiles)
            return num_tiles * split, split
        num_programs = min(self.per_sm * num_sms, num_units)
        shortest = num_units // num_programs
        if shortest % k_tiles == 0 and num_units % num_programs == 0:  # whole tiles
            return num_programs, 1
        return num_programs, -(-(k_tiles - 1) // shortest) + 1


@functools.cache
def skinny_config(m: int, n: int, k: int, itemsize: int, num_sms: int) -> SkinnyConfig:
    """The choice for x [m, k] and W [n, k] with `itemsize` bytes an element.

    Of a measured shape, the nearest measured number of rows from m upwards; else by rule.
    """
    rows = [
        row
        for row in measured()
        if (row["n"], row["k"], row["itemsize"]) == (n, k, itemsize) and row["m"] >= m
    ]
    if rows:
        return SkinnyConfig(**min(rows, key=lambda row: int(row["m"]))["config"])
    return skinny_rule(m, n, k, itemsize, num_sms)


def skinny_rule(m: int, n: int, k: int, itemsize: int, num_sms: int) -> SkinnyConfig:
    """The choice for a shape that nobody measured.

    Tiles of 64 rows and 256 bytes, four stages of them, and as many programs as shared memory holds
    (two, about 128 KiB in flight on a multiprocessor). Where each program would get less than two
    steps, fewer of them.
    """
    block_k = 256 // itemsize
    num_units = -(-n // 64) * -(-k // block_k)
    per_sm = 2 if num_units >= 4 * num_sms else 1
    return SkinnyConfig(block_n=64, block_k=block_k, stages=4 if m <= 32 else 3, per_sm=per_sm)


@functools.cache
def measured() -> list[dict[str, Any]]:
    """The table of measured shapes, made by benchmarks/gpu_kernels.py."""
    text = (resources.files("quire.kernels.triton") / "tuned.json").read_text()
    table: list[dict[str, Any]] = json.loads(text)["skinny_gemm"]
    return table


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How decode attention is cut. tile: keys at a time; min_units: tiles worth a program.

    stages: of the loop's pipeline, where a tile's blocks are looked up before it is fetched: n
    tiles of keys and values in shared memory take 2n + 1 stages.
    """

    tile: int
    stages: int
    per_sm: int = 2
    warps: int = 4
    min_units: int = 1


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """How prefill attention is cut. rows: queries times heads of a group; tile: keys at a time."""

    rows: int
    tile: int
    stages: int
    warps: int = 8


def decode_config(k_cache: Tensor) -> DecodeConfig:
    """By rule: a stage holds 32 KiB of keys and values."""
    tile = 2**14 // (_padded_head_dim(k_cache) * k_cache.dtype.itemsize)
    return DecodeConfig(tile=max(16, min(128, tile)), stages=7)


def prefill_config(k_cache: Tensor) -> PrefillConfig:
    """By rule: 128 rows for a pair of warpgroups, and tiles that shared memory holds two of."""
    tile = 2**14 // (_padded_head_dim(k_cache) * k_cache.dtype.itemsize)
    return PrefillConfig(rows=128, tile=max(16, min(128, tile)), stages=2)


def _padded_head_dim(k_cache: Tensor) -> int:
    head_dim = k_cache.shape[3]
    return 1 << (head_dim - 1).bit_length()
