"""Chooses how Hopper's GEMM cuts a weight whose codes are looked up (NF4): by rule, from sizes."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from quire.kernels.triton.gemm.int4_config import (
    Int4Config,
    block_rows,
    fitting,
    programs_that_fit,
    shared_memory,
)

TABLE = 2**15  # bytes of shared memory: 128 for each byte, see `hopper_codebooks.store_pairs`
# Triton asks CUDA for more than 48 KiB only by what it allocates itself, without the table: so the
# ring has to have as much
_LEAST = 48 * 1024
_MOST_ROWS = 32  # of x; with 64, the tensor cores need shared memory themselves


def has_table(m: int) -> bool:
    """Whether codes are looked up two at a time, and scales multiply sums of groups."""
    return m <= _MOST_ROWS


@functools.cache
def table_config(
    m: int, n: int, k: int, group: int, num_sms: int, head_dim: int = 0
) -> Int4Config | None:
    """The config for x [m, k] and W [n, k]; None where no program or workspace has the room.

    head_dim: as in `int4_config`. Two programs fit on a multiprocessor, or one of eight warps.
    """
    block_n, parts, warps = 64, 2 if m <= 8 else 1, 4
    if head_dim > 64:
        block_n, warps = 128, 8
    elif 8 < m <= 16 and n > 128 * num_sms:
        block_n = 128
    tiles, steps = math.ceil(n / block_n), math.ceil(k / (256 * parts))
    fits = 8 // warps  # programs of a multiprocessor
    split = max(1, min(4, steps // 2, fits * num_sms // tiles))
    stage = parts * (128 * block_n + 512 * block_rows(m))
    found = Int4Config(block_n, parts, max(2, math.ceil(_LEAST / stage)), split, warps)

    def memory(config: Int4Config) -> int:
        return shared_memory(m, k, group, zeros=False, config=config) + TABLE

    while programs_that_fit(found, memory) < fits and found.split < 8:  # each has fewer scales
        found = replace(found, split=found.split + 1)
    return fitting(found, k, tiles * block_n * block_rows(m), memory)
