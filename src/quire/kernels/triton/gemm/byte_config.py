"""Chooses how Hopper's GEMM of few rows cuts a weight of a byte each: by rule, from the sizes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

from quire.kernels.triton.gemm.int4_config import (
    SHARED_MEMORY,
    Int4Config,
    block_rows,
    group_rows,
)
from quire.kernels.triton.launch.workspace import NUM_PARTIALS


def byte_memory(m: int, k: int, group: int, tables: int, config: Int4Config) -> int:
    """Bytes of shared memory of a program. tables: of scales and of zeros."""
    stage = config.parts * (256 * config.block_n + 512 * block_rows(m))
    groups = 2 * config.parts * config.block_n * group_rows(k, group, config)
    return config.stages * stage + tables * groups + 64


@functools.cache
def byte_config(
    m: int, n: int, k: int, group: int, num_sms: int, tables: int, head_dim: int = 0
) -> Int4Config | None:
    """The config for x [m, k] and W [n, k]; None where no program or workspace has the room.

    head_dim: 64 or 128, of heads that tiles have to hold whole; 0 for none. Otherwise as
    `int4_config`.
    """
    if m > 64:
        block_n, parts, warps = 128, 1, 8
    elif head_dim > 64:
        block_n, parts, warps = head_dim, 2 if m < 2 else 1, 8 if m < 2 or m > 16 else 4
    elif m > 16 or (m > 4 and n > 128 * num_sms) or (m > 8 and k <= 8192):
        block_n, parts, warps = 64, 1, 4
    elif n > 128 * num_sms:
        block_n, parts, warps = 32, 2, 4
    elif m == 1 and k <= 8192:
        block_n, parts, warps = 32, 4, 4
    else:
        block_n, parts, warps = 64, 2, 4
    tiles, steps = math.ceil(n / block_n), math.ceil(k / (256 * parts))
    tiles *= math.ceil(m / block_rows(m))
    most = 3 if 8 < m <= 32 and parts == 1 else 2 if m <= 64 else 1  # programs of a multiprocessor
    split = 1 if parts == 4 else max(1, min(4, steps // 2, most * num_sms // tiles))
    stages = 3 if m == 1 and split == 1 and parts == 2 else 2
    sums = tiles * block_n * block_rows(m)
    for each in range(split, steps + 1):  # as many parts as it takes for their scales to fit
        found = Int4Config(block_n, parts, stages, each, warps)
        if each > 1 and each * sums > NUM_PARTIALS:
            return None
        if byte_memory(m, k, group, tables, found) <= SHARED_MEMORY:
            return found
    return None


def byte_configs(
    m: int, n: int, k: int, group: int, num_sms: int, tables: int
) -> Iterator[Int4Config]:
    """Configs worth trying for x [m, k] and W [n, k]."""
    cuts = ((64, 1, 4), (128, 1, 8), (128, 1, 4), (32, 2, 4), (64, 2, 8), (64, 2, 4), (32, 4, 4))
    block_m = block_rows(m)
    for (block_n, parts, warps), split, stages in itertools.product(cuts, (1, 2, 3, 4), (2, 3, 4)):
        programs = math.ceil(n / block_n) * math.ceil(m / block_m) * split
        steps = math.ceil(k / (256 * parts))
        registers = parts * block_n * max(8, parts * block_m) / warps  # of sums
        found = Int4Config(block_n, parts, stages, split, warps)
        if parts * block_m < 2 or registers > (2048 if m <= 64 else 4096):
            continue
        if byte_memory(m, k, group, tables, found) > SHARED_MEMORY or stages > max(2, steps):
            continue
        if split > 1 and (2 * split > steps or programs > 4 * num_sms):
            continue
        if split == 1 and 2 * programs < num_sms:
            continue
        if split == 1 or programs * block_n * block_m <= NUM_PARTIALS:
            yield found
