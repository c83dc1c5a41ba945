"""Chooses how Hopper's GEMM of few rows cuts a weight of a byte each: by rule, from the sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from quire.kernels.triton.gemm.int4_config import (
    CUTS,
    Int4Config,
    block_rows,
    configs_of,
    filling,
    fitting,
    group_rows,
)


def byte_memory(m: int, k: int, group: int, tables: int, config: Int4Config) -> int:
    """Bytes of shared memory of a program. tables: of scales and of zeros."""
    stage = config.parts * (256 * config.block_n + 512 * block_rows(m))
    groups = 2 * config.parts * config.block_n * group_rows(k, group, config)
    return config.stages * stage + tables * groups + 64


def scales_codes(m: int, group: int) -> bool:
    """Whether scales multiply codes, not the sums of groups, see `multiply_codes`."""
    return group == 32 or m > 64 or (group == 64 and m > 32)


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
    elif n > 128 * num_sms and not head_dim:
        block_n, parts, warps = 32, 2, 4
    elif m == 1 and k <= 8192 and not head_dim:
        block_n, parts, warps = 32, 4, 4
    else:
        block_n, parts, warps = 64, 2, 4
    tiles, steps = math.ceil(n / block_n), math.ceil(k / (256 * parts))
    tiles *= math.ceil(m / block_rows(m))
    most = 3 if 8 < m <= 32 and parts == 1 else 2 if m <= 64 else 1  # programs of a multiprocessor
    split = 1 if parts == 4 else max(1, min(4, steps // 2, most * num_sms // tiles))
    stages = 3 if m == 1 and split == 1 and parts == 2 else 2
    found = Int4Config(block_n, parts, stages, split, warps)
    memory = functools.partial(byte_memory, m, k, group, tables)
    if not head_dim:
        found = filling(found, m, n, k, num_sms, memory)
    return fitting(found, k, tiles * block_n * block_rows(m), memory)


def byte_configs(
    m: int, n: int, k: int, group: int, num_sms: int, tables: int
) -> Iterator[Int4Config]:
    """Configs worth trying for x [m, k] and W [n, k]."""
    memory = functools.partial(byte_memory, m, k, group, tables)
    return configs_of(CUTS, m, n, k, num_sms, memory)
