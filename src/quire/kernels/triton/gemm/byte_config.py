"""Chooses how Hopper's GEMM of few rows cuts a weight of a byte each: by rule, from the sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from quire.kernels.triton.gemm.int4_config import (
    CUTS,
    WIDE,
    Int4Config,
    block_rows,
    configs_of,
    filling,
    fitting,
    group_rows,
    in_one_round,
    quickest_split,
    runs_at_once,
    runs_wide_at_once,
)


def byte_memory(m: int, k: int, group: int, tables: int, config: Int4Config) -> int:
    """Bytes of shared memory of a program. tables: of scales and of zeros."""
    stage = config.parts * (256 * config.block_n + 512 * block_rows(m))
    groups = 2 * config.parts * config.block_n * group_rows(k, group, config)
    return config.stages * stage + tables * groups + 64


def scales_codes(m: int, group: int) -> bool:
    """Whether scales multiply codes, not the sums of groups, see `multiply_codes`.

    As measured: sums take registers, which eight warps lack above 16 rows, and groups of 64 above
    32; but with 33 to 64 rows, tiles of 64 outputs and groups of 128 they were quicker.
    """
    return group == 32 or m > (32 if group == 64 else 64) or (group == 128 and 16 < m <= 32)


@functools.cache
def byte_config(
    m: int, n: int, k: int, group: int, num_sms: int, tables: int, head_dim: int = 0
) -> Int4Config | None:
    """The config for x [m, k] and W [n, k]; None where no program or workspace has the room.

    head_dim: 64 or 128, of heads that tiles have to hold whole; 0 for none. Otherwise as
    `int4_config`.
    """
    memory = functools.partial(byte_memory, m, k, group, tables)
    sums_groups = tables > 0 and not scales_codes(m, group)
    # of eight warps: there are no registers for a second program; zeros take some, too
    is_alone = m == 1 or m > (32 if not sums_groups else 16 if tables == 1 else 8)
    if not head_dim and not is_alone and runs_wide_at_once(m, n, num_sms, memory):
        return WIDE
    block_n, parts, warps = _cut(m, n, k, num_sms, head_dim, sums_groups=sums_groups)
    tiles, steps = math.ceil(n / block_n), math.ceil(k / (256 * parts))
    tiles *= math.ceil(m / block_rows(m))
    # programs of a multiprocessor, as measured
    most = 4 if m == 1 else 3 if 8 < m <= 32 and parts == 1 else 2 if m <= 64 else 1
    split = 1 if parts == 4 else max(1, min(4, steps // 2, most * num_sms // tiles))
    if m <= 64 and warps == 8 and is_alone:
        split = quickest_split(split, tiles, steps, num_sms)
    found = Int4Config(block_n, parts, 2, split, warps)
    if 8 < m <= 32:
        found = in_one_round(found, tiles, num_sms, memory)
    deep, split = replace(found, stages=3), found.split
    gains = split > 1 and steps >= 6 * split and (1 < m <= 8 or 16 < m <= 32)
    gains = gains and runs_at_once(deep, tiles, num_sms, memory)
    if gains or (m == 1 and split == 1 and parts == 2):
        found = deep
    if not head_dim:
        found = filling(found, m, n, k, num_sms, memory)
    return fitting(found, k, tiles * block_n * block_rows(m), memory)


def _cut(
    m: int, n: int, k: int, num_sms: int, head_dim: int, *, sums_groups: bool
) -> tuple[int, int, int]:
    """Outputs of a tile, parts and warps, as measured."""
    if m > 64:
        return 128, 1, 8
    if head_dim > 64:
        return head_dim, 2 if m < 2 else 1, 8 if m < 2 or m > 16 else 4
    if m == 1 and not head_dim:
        return 32, 4 if k <= 4096 and n <= 64 * num_sms else 2, 4
    is_large = n > 128 * num_sms
    if m > 16 or (m > 4 and is_large):
        return 64, 1, 4
    if m > 8 and (sums_groups or k <= 8192 or n <= 32 * num_sms):
        return 64, 1, 4
    return 32 if is_large and not head_dim else 64, 2, 4


def byte_configs(
    m: int, n: int, k: int, group: int, num_sms: int, tables: int
) -> Iterator[Int4Config]:
    """Configs worth trying for x [m, k] and W [n, k]."""
    memory = functools.partial(byte_memory, m, k, group, tables)
    return configs_of(CUTS, m, n, k, num_sms, memory)
