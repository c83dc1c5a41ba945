"""Tiles of GEMMs of many rows on Hopper: the rules that all types of weights share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quire.kernels.triton.gemm.split_k_config import shares_of

# microseconds of the reduction of split K, for each row and output: where the last program adds up
# all parts, for each of them; where all do, twice their shares
REDUCE_US, SHARED_US = 0.034 / 256, 0.041 / 256


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

    @property
    def rest(self) -> int:
        """Rows of x beyond the largest power of two, which are multiplied by themselves."""
        return self.block_m - (1 << self.block_m.bit_length() - 1)

    def steps(self, k: int, columns: int) -> int:
        """Steps of so many columns that a program does."""
        return math.ceil(math.ceil(k / columns) / self.split)

    def num_programs(self, m: int, n: int) -> int:
        """Programs for x [m, k] and W [n, k]."""
        return math.ceil(n / self.block_n) * math.ceil(m / self.block_m) * self.split

    def shares(self, m: int, num_sms: int) -> int:
        """See `shares_of`, for x [m, k]; programs of the same outputs lie side by side."""
        return shares_of(self.split, self.block_m, math.ceil(m / self.block_m), num_sms)

    def reduce_us(self, m: int, num_sms: int) -> float:
        """Microseconds of the reduction of split K."""
        sums, shares = self.block_n * self.block_m, self.shares(m, num_sms)
        if shares > 1:
            return 2 * (shares - 1) / shares * sums * SHARED_US
        return self.split * sums * REDUCE_US if self.split > 1 else 0.0
