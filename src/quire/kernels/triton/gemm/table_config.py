"""Chooses how Hopper's GEMM cuts a weight whose codes are looked up (NF4): by rule, from sizes."""

from __future__ import annotations

import functools
import math

from quire.kernels.triton.gemm.int4_config import Int4Config, block_rows, fitting, shared_memory

TABLE = 2**15  # bytes of shared memory, see `hopper_codebooks.store_pairs`
_LEAST = 48 * 1024  # bytes beside the table; for more in all Triton asks CUDA only with more here
_MOST_ROWS = 16  # of x; with more, the tensor cores need shared memory themselves


def has_table(m: int, group: int) -> bool:
    """Whether codes of a weight are looked up two at a time, and scales multiply sums of groups."""
    return m <= _MOST_ROWS and group > 32


@functools.cache
def table_config(
    m: int, n: int, k: int, group: int, num_sms: int, head_dim: int = 0
) -> Int4Config | None:
    """The config for x [m, k] and W [n, k]; None where no program or workspace has the room.

    head_dim: as in `int4_config`. Two programs fit on a multiprocessor, or one of eight warps.
    """
    block_n, parts, warps = (64, 2, 4) if m <= 8 else (64, 1, 4)
    if m <= 8 and head_dim > 64:
        block_n, warps = 128, 8
    elif m > 8 and (head_dim > 64 or n > 128 * num_sms):
        block_n = 128
    tiles, steps = math.ceil(n / block_n), math.ceil(k / (256 * parts))
    split = max(1, min(4, steps // 2, (8 // warps) * num_sms // tiles))
    stage = parts * (128 * block_n + 512 * block_rows(m))
    found = Int4Config(block_n, parts, max(2, math.ceil(_LEAST / stage)), split, warps)

    def memory(config: Int4Config) -> int:
        return shared_memory(m, k, group, zeros=False, config=config) + TABLE

    return fitting(found, k, tiles * block_n * block_rows(m), memory)
