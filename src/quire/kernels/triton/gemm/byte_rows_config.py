"""Chooses how Hopper cuts a GEMM of many rows in bfloat16 with a weight of a byte each: by rule."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from quire.kernels.triton.gemm.tile_config import TileConfig
from quire.kernels.triton.launch.gemm_config import SHARED_MEMORY
from quire.kernels.triton.launch.workspace import NUM_PARTIALS


@dataclass(frozen=True, slots=True)
class ByteRowsConfig(TileConfig):
    """A tile of a weight of a byte each; rings of W and of x have as many stages."""

    @property
    def columns(self) -> int:
        """Columns of x in a stage."""
        return 64 if self.block_m > 128 else 128

    @property
    def shared_memory(self) -> int:
        """Bytes of a program: the rings of x, and of 128 columns of W.

        These have up to four groups, each with a scale of two bytes and a zero point.
        """
        return self.stages * (2 * self.columns * self.block_m + (128 + 12) * self.block_n) + 256


# microseconds of a step of 256 columns, by rows and outputs of a tile, on one H200
STEP_US = {
    (384, 128): 4.1, (320, 128): 3.45, (256, 128): 2.6, (192, 128): 2.4, (128, 128): 1.65,
    (128, 64): 0.95,
}  # fmt: skip
MOST_STAGES = 6
START_US = 3.0  # of a program besides


def expected_us(m: int, n: int, k: int, num_sms: int, config: ByteRowsConfig) -> float:
    """Microseconds that a config should take: rounds of programs, and the reduction of split K."""
    step_us = STEP_US[config.block_m, config.block_n]
    rounds = math.ceil(config.num_programs(m, n) / num_sms)
    return rounds * (config.steps(k, 256) * step_us + START_US) + config.reduce_us(m, num_sms)


def byte_rows_configs(m: int, n: int, k: int) -> Iterator[ByteRowsConfig]:
    """Configs for x [m, k] and W [n, k] that programs and the workspace have the room for."""
    for block_m, block_n in STEP_US:
        if block_m > 128 >= m or -(-m // block_m) * block_m > -(-m // 256) * 256:
            continue  # there is no memory behind x for so many rows, see `empty_rows`
        for split in range(1, min(math.ceil(k / 256), 8) + 1):
            tiles = math.ceil(n / block_n) * math.ceil(m / block_m)
            if split > 1 and tiles * split * block_n * block_m > NUM_PARTIALS:
                break
            sizes = (ByteRowsConfig(block_m, block_n, stages, split)
                     for stages in range(MOST_STAGES, 1, -1))  # fmt: skip
            yield next(each for each in sizes if each.shared_memory <= SHARED_MEMORY)


@functools.cache
def byte_rows_config(m: int, n: int, k: int, num_sms: int) -> ByteRowsConfig:
    """The config of the least expected time."""
    return min(byte_rows_configs(m, n, k), key=lambda each: expected_us(m, n, k, num_sms, each))
