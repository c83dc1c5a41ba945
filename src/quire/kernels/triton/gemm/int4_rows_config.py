"""Chooses how Hopper cuts a GEMM in FP8 with a four-bit weight: by rule, from the sizes alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from quire.kernels.triton.gemm.int4_config import SHARED_MEMORY
from quire.kernels.triton.launch.workspace import NUM_PARTIALS

_OF_ALL, _RESERVED = 228 * 1024, 1024  # bytes of a multiprocessor's shared memory, and of a program


@dataclass(frozen=True, slots=True)
class Int4RowsConfig:
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
    def registers(self) -> int | None:
        """The most that a thread may have, so that two programs fit on a multiprocessor."""
        return 128 if (self.block_m, self.block_n) == (128, 128) else None

    def group_rows(self, k: int, group: int) -> int:
        """Rows of scales that a program has in shared memory, a power of two."""
        steps = math.ceil(math.ceil(k / 256) / self.split)
        return max(4, 1 << (256 // group * steps - 1).bit_length())

    def shared_memory(self, k: int, group: int, *, zeros: bool) -> int:
        """Bytes of shared memory of a program: the ring of words and columns of x, scales."""
        groups = (2 if zeros else 1) * 2 * self.block_n * self.group_rows(k, group)
        return self.stages * (128 * self.block_n + 256 * self.block_m) + groups + 64

    def per_sm(self, k: int, group: int, *, zeros: bool) -> int:
        """Programs that a multiprocessor has room for."""
        fitting = _OF_ALL // (self.shared_memory(k, group, zeros=zeros) + _RESERVED)
        return min(2 if self.block_m == 128 else 1, fitting)


# microseconds of a step of 256 columns, by rows and outputs of a tile: of a program alone on a
# multiprocessor, and of two beside each other where two fit; measured on one H200
STEP_US = {(256, 128): (1.8,), (256, 64): (0.93,), (128, 128): (1.44, 1.9), (128, 64): (0.82, 1.1)}
START_US = 3.9  # of a program besides
REDUCE_US = 0.06 / 256  # of sums, for each row, output and part


def expected_us(
    m: int, n: int, k: int, group: int, num_sms: int, *, zeros: bool, config: Int4RowsConfig
) -> float:
    """Microseconds that a config should take: rounds of programs, and the reduction of split K."""
    alone, *beside = STEP_US[config.block_m, config.block_n]
    steps = math.ceil(math.ceil(k / 256) / config.split)
    programs = math.ceil(n / config.block_n) * math.ceil(m / config.block_m) * config.split
    at_once = num_sms * config.per_sm(k, group, zeros=zeros)
    full, rest = divmod(programs, at_once)
    us = full * (steps * (beside[0] if at_once > num_sms else alone) + START_US)
    if rest:
        us += steps * (beside[0] if rest > num_sms else alone) + START_US
    if config.split > 1:
        us += config.split * config.block_n * config.block_m * REDUCE_US
    return us


def int4_rows_configs(
    m: int, n: int, k: int, group: int, *, zeros: bool = False
) -> Iterator[Int4RowsConfig]:
    """Configs for x [m, k] and W [n, k] that programs and the workspace have the room for."""
    for block_m, block_n in STEP_US:
        for split in range(1, min(math.ceil(k / 256), 16) + 1):
            tiles = math.ceil(n / block_n) * math.ceil(m / block_m)
            if split > 1 and tiles * split * block_n * block_m > NUM_PARTIALS:
                break
            both = [Int4RowsConfig(block_m, block_n, stages, split) for stages in (3, 2)]
            fits = [each.shared_memory(k, group, zeros=zeros) <= SHARED_MEMORY for each in both]
            if fits[1]:  # more stages, unless fewer programs fit on a multiprocessor
                fewer = both[1].per_sm(k, group, zeros=zeros) > both[0].per_sm(
                    k, group, zeros=zeros
                )
                yield both[1 if fewer or not fits[0] else 0]


def int4_rows_config(
    m: int, n: int, k: int, group: int, num_sms: int, *, zeros: bool = False
) -> Int4RowsConfig | None:
    """The config of the least expected time; None where none has the room."""
    return _of_tiles(math.ceil(m / 128), n, k, group, num_sms, zeros)


@functools.cache
def _of_tiles(
    m_tiles: int, n: int, k: int, group: int, num_sms: int, zeros: bool
) -> Int4RowsConfig | None:
    """The config for up to 128 * m_tiles rows, which differ in nothing that decides."""
    m = 128 * m_tiles
    found = {expected_us(m, n, k, group, num_sms, zeros=zeros, config=each): each
             for each in int4_rows_configs(m, n, k, group, zeros=zeros)}  # fmt: skip
    return found[min(found)] if found else None
