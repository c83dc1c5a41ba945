"""Tiles of GEMMs of many rows on Hopper: the rules that all types of weights share."""

from __future__ import annotations

import math
from dataclasses import dataclass

_OF_ALL, _RESERVED = 228 * 1024, 1024  # bytes of a multiprocessor's shared memory, and of a program
REDUCE_US = 0.034 / 256  # of sums, for each row, output and part, in microseconds


@dataclass(frozen=True, slots=True)
class TileConfig:
    """`split` programs share a tile of block_n outputs for block_m rows of x."""

    block_m: int
    block_n: int
    stages: int
    split: int = 1

    @property
    def warps(self) -> int:
        """A warpgroup for 64 outputs."""
        return self.block_n // 16

    def steps(self, k: int, columns: int) -> int:
        """Steps of so many columns that a program does."""
        return math.ceil(math.ceil(k / columns) / self.split)

    def num_programs(self, m: int, n: int) -> int:
        """Programs for x [m, k] and W [n, k]."""
        return math.ceil(n / self.block_n) * math.ceil(m / self.block_m) * self.split

    @property
    def reduce_us(self) -> float:
        """Microseconds of the reduction of split K."""
        return self.split * self.block_n * self.block_m * REDUCE_US if self.split > 1 else 0.0


def fitting_programs(shared_memory: int) -> int:
    """Programs of so many bytes of shared memory that a multiprocessor has room for."""
    return _OF_ALL // (shared_memory + _RESERVED)
