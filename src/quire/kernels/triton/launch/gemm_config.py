"""The ways to cut a product of few rows, and those worth trying for a shape."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from quire.kernels.triton.launch.workspace import NUM_PARTIALS

_SHARED_MEMORY = 227 * 1024  # bytes that a Hopper multiprocessor has for its programs


@dataclass(frozen=True, slots=True)
class SkinnyConfig:
    """A way of `skinny_gemm` to cut W.

    split > 0: so many programs share each tile, all at the same k-steps. split = 0: `per_sm`
    programs a multiprocessor share all tiles evenly, wherever the borders fall. tma: the copy
    engine fetches W (Hopper and later).
    """

    block_n: int
    block_k: int
    stages: int
    split: int = 0
    per_sm: int = 2
    warps: int = 4
    tma: bool = False
    min_block_m: int = 16

    def grid(self, n: int, k: int, num_sms: int) -> tuple[int, int]:
        """(programs, most programs that share a tile) for a weight [n, k]."""
        k_tiles = -(-k // self.block_k)
        num_tiles = -(-n // self.block_n)
        num_units = num_tiles * k_tiles
        if self.split:
            split = min(self.split, k_tiles)
            return num_tiles * split, split
        num_programs = min(self.per_sm * num_sms, num_units)
        shortest = num_units // num_programs
        if shortest % k_tiles == 0 and num_units % num_programs == 0:  # whole tiles
            return num_programs, 1
        return num_programs, -(-(k_tiles - 1) // shortest) + 1


@dataclass(frozen=True, slots=True)
class RingConfig:
    """A way of the ring on Hopper to cut W: `split` programs share each tile of block_n rows.

    stages: places in the ring, two at least, each for a step's `tiles` times 128 bytes of the rows.
    """

    block_n: int
    stages: int
    split: int = 1
    tiles: int = 1
    warps: int = 4


Way = SkinnyConfig | RingConfig


def tile_rows(m: int) -> int:
    """Rows of x in a tile of a ring's kernel, for m of them: a power of two, eight at least."""
    return max(8, 1 << (m - 1).bit_length())


def room_for(m: int, itemsize: int, way: Way) -> int:
    """How many programs a Hopper multiprocessor has shared memory for, of a product with m rows."""
    if isinstance(way, SkinnyConfig):
        a_column = itemsize * way.block_n + 2 * max(way.min_block_m, tile_rows(m))
        return _SHARED_MEMORY // (way.stages * way.block_k * a_column)
    rounds = itemsize == 1 and m <= 16  # x itself, which takes some 8 KiB and no place in the ring
    rows = way.block_n if rounds else way.block_n + tile_rows(m)
    return _SHARED_MEMORY // (128 * way.stages * way.tiles * rows + 1024 * (9 if rounds else 2))


def way_from(config: dict[str, Any]) -> Way:
    """A way as tables keep it."""
    return RingConfig(**config) if "tiles" in config else SkinnyConfig(**config)


def ways_for(m: int, n: int, k: int, itemsize: int, num_sms: int) -> list[Way]:
    """Of x [m, k] and W [n, k] on Hopper, x in 16 bits: up to 64 rows, in FP8 up to 16.

    Tiles that are shared make programs for half of the multiprocessors or more, at most two on
    each, or as many as there are tiles. With up to 4 rows the kernel without a ring is not tried.
    """
    ways: list[Way] = []
    for (block_n, tiles), split in itertools.product(((128, 1), (64, 2)), (1, 2, 3, 4, 5, 6, 8)):
        programs = -(-n // block_n) * split
        fills = num_sms / 2 <= programs <= 2 * num_sms and split * tiles * 128 <= k * itemsize
        room = 2 * programs * block_n * max(16, m) <= NUM_PARTIALS
        if split > 1 and not (fills and room):
            continue
        rounds = -(-programs // num_sms)
        warps = 8 if m > 16 and block_n == 128 else 4
        ways += [
            _ring(_places(m, block_n, each), block_n, split, tiles, warps)
            for each in ((1, 2, 3) if split == 1 else (1, 2))
            if (split == 1 and each <= rounds + 1) or each >= rounds
        ]
        if itemsize == 2 and m > 4 and block_n == 64:
            ways.append(SkinnyConfig(block_n, 128, 5, split))
    if itemsize == 2 and m > 4:
        ways += [SkinnyConfig(64, 128, 4, 1, tma=True), SkinnyConfig(128, 64, 4, 1, tma=True)]
    return list(dict.fromkeys(ways))


def _ring(places: int, block_n: int, split: int, tiles: int, warps: int) -> RingConfig:
    """With room for at least three steps."""
    tiles = tiles if places >= 3 * tiles else 1
    return RingConfig(block_n, places // tiles, split, tiles, warps)


def _places(m: int, block_n: int, on_each: int) -> int:
    """Of 128 bytes of the rows of W and x in a ring, so many programs being on a multiprocessor.

    Up to 16 rows of x that a program rounds itself take some 8 KiB, beside W's.
    """
    rounded = m <= 16
    block_m = 0 if rounded else 1 << (m - 1).bit_length()
    room = _SHARED_MEMORY // on_each - 1024 * (10 if rounded else 2)
    return min(10, room // (128 * (block_n + block_m)))


def rows_ways_for(m: int, n: int, k: int, num_sms: int) -> list[RingConfig]:
    """The same of x in FP8, as `hopper_rows` takes it: one to three programs on most
    multiprocessors."""
    ways = []
    block_m = 1 << (m - 1).bit_length()
    cuts = ((64, 1, 4), (64, 2, 4), (128, 1, 8))  # rows of a tile, tiles of a step, warps
    for (block_n, tiles, warps), on_each, split in itertools.product(cuts, (1, 2, 3), range(1, 9)):
        programs = -(-n // block_n) * split
        places = (_SHARED_MEMORY // on_each - 1152) // (128 * (block_m + block_n))
        stages = min(10, places) // tiles
        fills = num_sms / 2 <= programs <= on_each * num_sms
        room = programs * block_n * block_m <= NUM_PARTIALS and k >= 384 * split
        if stages > 1 and (split == 1 or (fills and room)):
            ways.append(RingConfig(block_n, stages, split, tiles, warps))
    return list(dict.fromkeys(ways))
