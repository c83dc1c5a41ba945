"""Chooses how Hopper cuts a GEMM in FP8 with a four-bit weight: by rule, from the sizes alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from quire.kernels.triton.gemm.tile_config import TileConfig
from quire.kernels.triton.launch.gemm_config import SHARED_MEMORY
from quire.kernels.triton.launch.workspace import NUM_PARTIALS


@dataclass(frozen=True, slots=True)
class Int4RowsConfig(TileConfig):
    """A tile of a four-bit weight; the ring has `stages` blocks of 128 columns."""

    @property
    def shared_memory(self) -> int:
        """Bytes of a program: the ring, two steps of words, and twice 64 rows of results.

        A step has up to eight groups, each with a scale of two bytes and a zero point.
        """
        ring, words = self.stages * 128 * (self.block_m + self.block_n), 2 * 152 * self.block_n
        return ring + words + 2 * 64 * 2 * self.block_n + 512


# microseconds of a step of 256 columns, by rows and outputs of a tile, measured on one H200; tiles
# of 256 rows and 128 outputs take twice as long as those of 64 outputs
STEP_US = {
    (384, 64): 1.29, (320, 64): 1.13, (256, 64): 0.94, (192, 128): 1.62, (192, 64): 0.87,
    (128, 128): 1.28, (128, 64): 0.8,
}  # fmt: skip
START_US = 1.0  # of a program besides
STORE_US = 1.2  # of a tile
MOST_STAGES = 6


def expected_us(m: int, n: int, k: int, num_sms: int, config: Int4RowsConfig) -> float:
    """Microseconds that a config should take: rounds of tiles, and the reduction of split K."""
    rounds = math.ceil(config.num_programs(m, n) / num_sms)
    steps_us = config.steps(k, 256) * STEP_US[config.block_m, config.block_n]
    return START_US + rounds * (steps_us + STORE_US + config.reduce_us(m, num_sms))


def int4_rows_configs(m: int, n: int, k: int) -> Iterator[Int4RowsConfig]:
    """Configs for x [m, k] and W [n, k] that the workspace has the room for."""
    for block_m, block_n in STEP_US:
        if -(-m // block_m) * block_m > -(-m // 256) * 256:
            continue  # there is no memory behind x for so many rows, see `empty_rows`
        for split in range(1, min(math.ceil(k / 256), 16) + 1):
            tiles = math.ceil(n / block_n) * math.ceil(m / block_m)
            if split > 1 and tiles * split * block_n * block_m > NUM_PARTIALS:
                break
            sizes = (Int4RowsConfig(block_m, block_n, stages, split)
                     for stages in range(MOST_STAGES, 1, -1))  # fmt: skip
            yield next(each for each in sizes if each.shared_memory <= SHARED_MEMORY)


def int4_rows_config(m: int, n: int, k: int, num_sms: int) -> Int4RowsConfig:
    """The config of the least expected time."""
    return _of_rows(math.ceil(m / 64), n, k, num_sms)


@functools.cache
def _of_rows(sixty_fours: int, n: int, k: int, num_sms: int) -> Int4RowsConfig:
    """The config for up to 64 * sixty_fours rows, which differ in nothing that decides."""
    m = 64 * sixty_fours
    return min(int4_rows_configs(m, n, k), key=lambda each: expected_us(m, n, k, num_sms, each))
