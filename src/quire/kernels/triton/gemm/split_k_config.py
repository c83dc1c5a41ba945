"""Split K on Hopper: how many programs share a tile, and which of them add up its sums."""

from __future__ import annotations

import math

from quire.kernels.triton.launch.gemm_config import SHARED_MEMORY, RingConfig, tile_rows


def shares_of(split: int, block_m: int, stride: int, num_sms: int) -> int:
    """Programs that each add up a share of a tile's tokens: all `split`, or 1 for the last alone.

    A share has 16 tokens or more; of 32 the last alone was quicker. stride: between the ids of
    programs of a tile. They wait for each other, so those between must not be on all
    multiprocessors.
    """
    is_even = split & (split - 1) == 0 and block_m >= 64 and 16 * split <= block_m & -block_m
    return split if is_even and split * stride <= num_sms else 1


def split_k_config(m: int, n: int, k: int, num_sms: int) -> RingConfig | None:
    """The config for x [m, k] and W [n, k] in 8 bits whose programs share sums, see `shares_of`.

    None where it does not pay. As many programs as multiprocessors at most; each has three times
    as many columns as a tile has rows, and 1,280 fewer than a program alone would have.
    """
    block_m, tiles = tile_rows(m), math.ceil(n / 64)
    for split in (8, 4, 2):
        shares = shares_of(split, block_m, 1, num_sms) == split and split * tiles <= num_sms
        if shares and k >= max(3 * block_m * split, 1280 * split // (split - 1)):
            slots = min(10, SHARED_MEMORY // (128 * (block_m + 64)))
            wide = block_m <= 64 or (block_m <= 128 and k <= 5120 * split)  # fewer barriers
            return RingConfig(64, slots // 2 if wide else slots, split, 2 if wide else 1)
    return None
