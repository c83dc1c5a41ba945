"""Chooses how Hopper cuts a GEMM in FP8 with scales of blocks: by rule, from the sizes alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from quire.kernels.triton.gemm.tile_config import TileConfig
from quire.kernels.triton.launch.gemm_config import SHARED_MEMORY, fitting_programs
from quire.kernels.triton.launch.workspace import NUM_PARTIALS


@dataclass(frozen=True, slots=True)
class BlockConfig(TileConfig):
    """A tile whose steps are blocks of 128 columns with a scale each."""

    @property
    def registers(self) -> int | None:
        """The most that a thread may have, so that three programs fit on a multiprocessor."""
        return 168 if (self.block_m, self.block_n) == (128, 64) else None

    def table(self, k: int) -> int:
        """Rows of scales that a program has in shared memory, a power of two."""
        return max(4, 1 << (self.steps(k, 128) - 1).bit_length())

    def shared_memory(self, k: int) -> int:
        """Bytes of shared memory of a program: the ring of tiles of W and x, and their scales."""
        both = self.block_n + self.block_m
        return self.stages * 128 * both + 2 * both * self.table(k) + 64

    def per_sm(self, k: int) -> int:
        """Programs that a multiprocessor has room for."""
        most = 3 if self.block_n == 64 else 1
        return min(most, fitting_programs(self.shared_memory(k)))


# microseconds of a step of 128 columns, by rows and outputs of a tile: of a program alone on a
# multiprocessor, and for each of those beside each other where they take longer; on one H200
STEP_US = {(128, 64): (0.56, 0.28), (64, 64): (0.42, 0.158), (128, 128): (0.62, 0.62)}
START_US = 4.5  # of a program besides
MOST_INPUTS = 2**16  # whose scales fit beside two stages of tiles of 64 by 64, whatever the split


def expected_us(m: int, n: int, k: int, num_sms: int, config: BlockConfig) -> float:
    """Microseconds that a config should take: rounds of programs, and the reduction of split K."""
    steps, programs = config.steps(k, 128), config.num_programs(m, n)
    full, rest = divmod(programs, num_sms * config.per_sm(k))
    alone, each = STEP_US[config.block_m, config.block_n]
    us = full * (steps * max(alone, config.per_sm(k) * each) + START_US)
    if rest:
        us += steps * max(alone, math.ceil(rest / num_sms) * each) + START_US
    return us + config.reduce_us(m, num_sms)


def block_configs(m: int, n: int, k: int) -> Iterator[BlockConfig]:
    """Configs for x [m, k] and W [n, k] that programs and the workspace have the room for."""
    for block_m, block_n in STEP_US:
        if block_m > 64 >= m:
            continue
        for split in range(1, max(1, min(k // 512, 8)) + 1):
            tiles = math.ceil(n / block_n) * math.ceil(m / block_m)
            if split > 1 and tiles * split * block_n * block_m > NUM_PARTIALS:
                break
            for stages in (2, 3, 4):  # of equal times the last is taken
                found = BlockConfig(block_m, block_n, stages, split)
                if found.shared_memory(k) <= SHARED_MEMORY:
                    yield found


@functools.cache
def block_config(m: int, n: int, k: int, num_sms: int) -> BlockConfig | None:
    """The config of the least expected time; None where none has the room."""
    found = {expected_us(m, n, k, num_sms, each): each for each in block_configs(m, n, k)}
    return found[min(found)] if found else None
