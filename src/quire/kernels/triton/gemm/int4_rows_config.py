"""Chooses how Hopper cuts a GEMM in FP8 with a four-bit weight: by rule, from the sizes alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from quire.kernels.triton.gemm.int4_config import SHARED_MEMORY
from quire.kernels.triton.gemm.tile_config import GroupedTileConfig, fitting_programs
from quire.kernels.triton.launch.workspace import NUM_PARTIALS


@dataclass(frozen=True, slots=True)
class Int4RowsConfig(GroupedTileConfig):
    """A tile of a four-bit weight."""

    @property
    def rest(self) -> int:
        """Rows of x beyond the largest power of two, which are multiplied by themselves."""
        return self.block_m - (1 << self.block_m.bit_length() - 1)

    @property
    def registers(self) -> int | None:
        """The most that a thread may have, so that two programs fit on a multiprocessor."""
        return 128 if (self.block_m, self.block_n) == (128, 128) else None

    def shared_memory(self, k: int, group: int, *, zeros: bool) -> int:
        """Bytes of shared memory of a program."""
        return self.memory_with(k, group, 2 if zeros else 1)

    def per_sm(self, k: int, group: int, *, zeros: bool) -> int:
        """Programs that a multiprocessor has room for."""
        fitting = fitting_programs(self.shared_memory(k, group, zeros=zeros))
        return min(2 if self.block_m == 128 else 1, fitting)


# microseconds of a step of 256 columns, by rows and outputs of a tile: of a program alone on a
# multiprocessor, and of two beside each other where two fit; measured on one H200
STEP_US = {
    (256, 128): (1.6,), (256, 64): (0.87,), (192, 128): (1.55,), (192, 64): (0.8,),
    (128, 128): (1.44, 1.9), (128, 64): (0.82, 1.1),
}  # fmt: skip
LOOK_UP_US = {128: 0.4, 64: 0.2}  # more where codes are looked up, by outputs of a tile
LOOK_UP_BESIDE = 2.5  # times that for two programs beside each other
START_US = 3.9  # of a program besides
SHORT_RING = 1.25  # times as long with two stages, for more than 128 rows and 64 outputs


def expected_us(
    m: int, n: int, k: int, group: int, num_sms: int, *, zeros: bool, config: Int4RowsConfig,
    codebook: bool = False,
) -> float:  # fmt: skip
    """Microseconds that a config should take: rounds of programs, and the reduction of split K."""
    alone, *beside = STEP_US[config.block_m, config.block_n]
    if codebook:
        alone += LOOK_UP_US[config.block_n]
        beside = [us + LOOK_UP_BESIDE * LOOK_UP_US[config.block_n] for us in beside]
    if config.block_m > 128 and (config.block_n, config.stages) == (64, 2):
        alone *= SHORT_RING
    steps, programs = config.steps(k, 256), config.num_programs(m, n)
    at_once = num_sms * config.per_sm(k, group, zeros=zeros)
    full, rest = divmod(programs, at_once)
    us = full * (steps * (beside[0] if at_once > num_sms else alone) + START_US)
    if rest:
        us += steps * (beside[0] if rest > num_sms else alone) + START_US
    return us + config.reduce_us


def int4_rows_configs(
    m: int, n: int, k: int, group: int, *, zeros: bool = False
) -> Iterator[Int4RowsConfig]:
    """Configs for x [m, k] and W [n, k] that programs and the workspace have the room for."""
    for block_m, block_n in STEP_US:
        if -(-m // block_m) * block_m > -(-m // 256) * 256:
            continue  # there is no memory behind x for so many rows, see `empty_rows`
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
    m: int, n: int, k: int, group: int, num_sms: int, *, zeros: bool = False, codebook: bool = False
) -> Int4RowsConfig | None:
    """The config of the least expected time; None where none has the room."""
    return _of_rows(math.ceil(m / 64), n, k, group, num_sms, zeros, codebook)


@functools.cache
def _of_rows(
    sixty_fours: int, n: int, k: int, group: int, num_sms: int, zeros: bool, codebook: bool
) -> Int4RowsConfig | None:
    """The config for up to 64 * sixty_fours rows, which differ in nothing that decides."""
    m = 64 * sixty_fours
    found = {expected_us(m, n, k, group, num_sms, zeros=zeros, codebook=codebook, config=each): each
             for each in int4_rows_configs(m, n, k, group, zeros=zeros)}  # fmt: skip
    return found[min(found)] if found else None
