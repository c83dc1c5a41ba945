"""Chooses how Hopper cuts a GEMM of many rows in bfloat16 with a weight of a byte each: by rule."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from quire.kernels.triton.gemm.int4_config import SHARED_MEMORY
from quire.kernels.triton.gemm.tile_config import TileConfig
from quire.kernels.triton.launch.workspace import NUM_PARTIALS


@dataclass(frozen=True, slots=True)
class ByteRowsConfig(TileConfig):
    """A tile of a weight of a byte each."""

    def group_rows(self, k: int, group: int) -> int:
        """Rows of scales that a program has in shared memory, a power of two."""
        return max(4, 1 << (256 // group * self.steps(k, 256) - 1).bit_length())

    def shared_memory(self, k: int, group: int, tables: int) -> int:
        """Bytes of a program: the ring of words and columns of x, and tables of groups' numbers."""
        groups = tables * 2 * self.block_n * self.group_rows(k, group)
        return self.stages * (128 * self.block_n + 256 * self.block_m) + groups + 64


# microseconds of a step of 256 columns, by rows and outputs of a tile, on one H200
STEP_US = {(256, 128): 2.95, (128, 128): 1.7, (128, 64): 0.95}
START_US = 3.0  # of a program besides


def expected_us(m: int, n: int, k: int, num_sms: int, config: ByteRowsConfig) -> float:
    """Microseconds that a config should take: rounds of programs, and the reduction of split K."""
    steps, programs = config.steps(k, 256), config.num_programs(m, n)
    us = math.ceil(programs / num_sms) * (
        steps * STEP_US[config.block_m, config.block_n] + START_US
    )
    return us + config.reduce_us


def byte_rows_configs(m: int, n: int, k: int, group: int, tables: int) -> Iterator[ByteRowsConfig]:
    """Configs for x [m, k] and W [n, k] that programs and the workspace have the room for."""
    for block_m, block_n in STEP_US:
        if block_m > 128 >= m:
            continue
        for split in range(1, min(math.ceil(k / 256), 8) + 1):
            tiles = math.ceil(n / block_n) * math.ceil(m / block_m)
            if split > 1 and tiles * split * block_n * block_m > NUM_PARTIALS:
                break
            both = (ByteRowsConfig(block_m, block_n, stages, split) for stages in (4, 3, 2))
            fits = [x for x in both if x.shared_memory(k, group, tables) <= SHARED_MEMORY]
            yield from fits[:1]


@functools.cache
def byte_rows_config(
    m: int, n: int, k: int, group: int, num_sms: int, tables: int
) -> ByteRowsConfig | None:
    """The config of the least expected time; None where none has the room."""
    found = {expected_us(m, n, k, num_sms, each): each
             for each in byte_rows_configs(m, n, k, group, tables)}  # fmt: skip
    return found[min(found)] if found else None
