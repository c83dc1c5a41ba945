"""Chooses how Hopper's GEMM cuts a four-bit weight: by rule, from the sizes alone."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from quire.kernels.triton.launch.gemm_config import tile_rows
from quire.kernels.triton.launch.workspace import NUM_PARTIALS

MOST_BLOCK_M = 128  # rows of x in a tile
INT16_ROWS = (1, *range(9, 17))  # rows of x, of which it comes in INT16
SHARED_MEMORY = 226 * 1024  # bytes that a multiprocessor has for its programs


@dataclass(frozen=True, slots=True)
class Int4Config:
    """`split` programs share a tile of block_n outputs; see `hopper_int4_ring` for `parts`.

    scaled: whether scales multiply codes also where they could multiply the sums of groups. int16:
    x comes in INT16, see `hopper_int16_rows`. registers: the most of a thread.
    """

    block_n: int
    parts: int
    stages: int
    split: int = 1
    warps: int = 4
    scaled: bool = False
    int16: bool = False
    registers: int | None = None


def block_rows(m: int) -> int:
    """Rows of x in a tile, for m rows: a power of two."""
    return min(MOST_BLOCK_M, 1 << (m - 1).bit_length())


def scales_codes(m: int, group: int) -> bool:
    """Whether scales multiply codes, not the sums of groups, see `multiply_int4`."""
    return group == 32 or m > 64 or (group == 64 and m > 32)


def group_rows(k: int, group: int, config: Int4Config) -> int:
    """Rows of scales that a program has in shared memory, a power of two."""
    steps = math.ceil(math.ceil(k / (256 * config.parts)) / config.split)
    return max(4, 1 << (256 // group * steps - 1).bit_length())


def x_scale_rows(m: int, k: int, config: Int4Config) -> int:
    """Rows of x's scales that a program has in shared memory, see `load_scales`: a power of two."""
    steps = math.ceil(math.ceil(k / (256 * config.parts)) / config.split)
    together = max(1, 4 // (config.parts * block_rows(m)))
    return max(1, 1 << (4 * steps // together - 1).bit_length())


def shared_memory(m: int, k: int, group: int, *, zeros: bool, config: Int4Config) -> int:
    """Bytes of shared memory of a program: the ring of words and columns of x, scales, zeros."""
    stage = config.parts * (128 * config.block_n + 512 * block_rows(m))
    groups = 2 * config.parts * config.block_n * group_rows(k, group, config)
    scales = 4 * max(4, config.parts * block_rows(m)) * x_scale_rows(m, k, config)
    return config.stages * stage + (2 if zeros else 1) * (groups + config.int16 * scales) + 64


@functools.cache
def int4_config(
    m: int, n: int, k: int, group: int, num_sms: int, *, zeros: bool = False, head_dim: int = 0
) -> Int4Config | None:
    """The config for x [m, k] and W [n, k]; None where no program or workspace has the room.

    head_dim: 64 or 128, of heads that tiles have to hold whole; 0 for none.

    Few stages: several small programs on a multiprocessor hide each other's latency, and leave room
    for those of the next kernel, which load their words before this one has ended.
    """
    if m > 64:
        block_n, parts, warps = 128, 1, 8
    elif head_dim > 64:
        block_n, parts, warps = head_dim, 2 if m < 2 else 1, 8 if m < 2 or m > 16 else 4
    elif m > 16 or (m > 4 and n > 128 * num_sms) or (m > 8 and k <= 8192):
        block_n, parts, warps = 64, 1, 4
    elif n > 128 * num_sms:
        block_n, parts, warps = 32, 2, 4
    else:
        block_n, parts, warps = 64, 2, 4
    tiles, steps = math.ceil(n / block_n), math.ceil(k / (256 * parts))
    tiles *= math.ceil(m / block_rows(m))
    most = 3 if 8 < m <= 32 and parts == 1 else 2 if m <= 64 else 1  # programs of a multiprocessor
    split = max(1, min(4, steps // 2, most * num_sms // tiles))
    stages = 3 if 16 < m <= 32 and split > 1 and steps > 8 * split else 2
    sums = tiles * block_n * block_rows(m)
    for each in range(split, steps + 1):  # as many parts as it takes for their scales to fit
        found = Int4Config(block_n, parts, stages, each, warps)
        if each > 1 and each * sums > NUM_PARTIALS:
            return None
        if shared_memory(m, k, group, zeros=zeros, config=found) <= SHARED_MEMORY:
            return found
    return None


@functools.cache
def int16_config(
    m: int, n: int, k: int, group: int, num_sms: int, *, zeros: bool = False, head_dim: int = 0
) -> Int4Config | None:
    """`int4_config` for x in INT16; None where that does not pay, or has no room.

    Of tiles of 128 outputs two fit on a multiprocessor, if a thread keeps to 128 registers.
    """
    if m not in INT16_ROWS:
        return None
    large = head_dim > 64 or (m > 1 and n >= 28 * num_sms)
    block_n, warps = (128, 8) if large else (64, 4)
    parts = 2 if m == 1 and not large else 1
    tiles, steps = math.ceil(n / block_n), math.ceil(k / (256 * parts))
    split = max(1, min(4, steps // 2, 2 * num_sms // tiles))
    found = Int4Config(block_n, parts, 2, split, warps, int16=True, registers=128)
    if split > 1 and split * tiles * block_n * block_rows(m) > NUM_PARTIALS:
        return None
    return found if shared_memory(m, k, group, zeros=zeros, config=found) <= SHARED_MEMORY else None


def int4_configs(m: int, n: int, k: int, group: int, num_sms: int) -> Iterator[Int4Config]:
    """Configs worth trying for x [m, k] and W [n, k] without zeros."""
    cuts = ((64, 1, 4), (128, 1, 8), (128, 1, 4), (32, 2, 4), (64, 2, 8), (64, 2, 4), (32, 4, 4),
            (128, 2, 8))  # fmt: skip
    block_m = block_rows(m)
    for (block_n, parts, warps), split, stages in itertools.product(cuts, (1, 2, 3, 4), (2, 3, 4)):
        programs = math.ceil(n / block_n) * math.ceil(m / block_m) * split
        steps = math.ceil(k / (256 * parts))
        registers = parts * block_n * max(8, parts * block_m) / warps  # of sums
        if parts * block_m < 2 or registers > (2048 if m <= 64 else 4096):
            continue
        found = Int4Config(block_n, parts, stages, split, warps)
        if shared_memory(m, k, group, zeros=False, config=found) > SHARED_MEMORY:
            continue
        if stages > max(2, steps):
            continue
        if split > 1 and (2 * split > steps or programs > 4 * num_sms):
            continue
        if split == 1 and 2 * programs < num_sms:
            continue
        if split > 1 and programs * block_n * tile_rows(block_m) > NUM_PARTIALS:
            continue
        yield found
        if not scales_codes(m, group) and group < 128 and parts * block_m >= 8:
            yield replace(found, scaled=True)
