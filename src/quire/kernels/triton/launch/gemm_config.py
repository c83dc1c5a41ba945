"""GEMM configs: tiles, stages and split of k of the kernels for few rows, and which to try.

gemm/gemm_tuning.py chooses one for a shape.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from quire.kernels.triton.launch.workspace import NUM_PARTIALS

# bytes of a Hopper multiprocessor's shared memory, and of CUDA's for each program
_OF_ALL, _RESERVED = 228 * 1024, 1024
SHARED_MEMORY = _OF_ALL - _RESERVED  # the most of one program


@dataclass(frozen=True, slots=True)
class SkinnyConfig:
    """Tiles of the plain Triton kernel: block_n x block_k of W [n, k].

    split > 0: programs that share each tile, each with a part of k. split = 0: `per_sm` programs
    a multiprocessor share all tiles evenly, wherever the borders fall. tma: the copy engine fetches
    W (Hopper and later).
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
    """Tiles of a Hopper kernel in W: `split` programs share each tile of block_n rows.

    Each reads W through a ring in shared memory of `stages` (two at least) slots; a slot holds
    `tiles` times 128 bytes of each row.
    """

    block_n: int
    stages: int
    split: int = 1
    tiles: int = 1
    warps: int = 4


GemmConfig = SkinnyConfig | RingConfig


def config_from(fields: dict[str, Any]) -> GemmConfig:
    """A config from its fields, as JSON files have them."""
    return RingConfig(**fields) if "tiles" in fields else SkinnyConfig(**fields)


def fitting_programs(shared_memory: int, spare: int = 0) -> int:
    """Programs of so many bytes of shared memory that a multiprocessor has room for.

    spare: bytes that are left over, as the rules were measured that count so.
    """
    return (_OF_ALL - spare) // (shared_memory + _RESERVED)


def tile_rows(m: int) -> int:
    """Rows of x in a tile of a Hopper kernel, for x of m rows: a power of two, eight at least."""
    return max(8, 1 << (m - 1).bit_length())


def gemm_configs(m: int, n: int, k: int, itemsize: int, num_sms: int) -> list[GemmConfig]:
    """Configs worth trying on Hopper for x [m, k] and W [n, k] with `itemsize` bytes an element.

    x has 16 bits: up to 64 rows, with W in FP8 up to 16. Programs that share tiles fill half of the
    multiprocessors or more, and are at most two on each. With up to 4 rows the plain Triton kernel
    is not tried.
    """
    configs: list[GemmConfig] = []
    for (block_n, tiles), split in itertools.product(((128, 1), (64, 2)), (1, 2, 3, 4, 5, 6, 8)):
        programs = -(-n // block_n) * split
        fills = num_sms / 2 <= programs <= 2 * num_sms and split * tiles * 128 <= k * itemsize
        fits = 2 * programs * block_n * max(16, m) <= NUM_PARTIALS
        if split > 1 and not (fills and fits):
            continue
        rounds = -(-programs // num_sms)
        warps = 8 if m > 16 and block_n == 128 else 4
        configs += [
            _ring_config(_ring_slots(m, block_n, per_sm), block_n, split, tiles, warps)
            for per_sm in ((1, 2, 3) if split == 1 else (1, 2))
            if (split == 1 and per_sm <= rounds + 1) or per_sm >= rounds
        ]
        if itemsize == 2 and m > 4 and block_n == 64:
            configs.append(SkinnyConfig(block_n, 128, 5, split))
    if itemsize == 2 and m > 4:
        configs += [SkinnyConfig(64, 128, 4, 1, tma=True), SkinnyConfig(128, 64, 4, 1, tma=True)]
    return list(dict.fromkeys(configs))


def _ring_config(slots: int, block_n: int, split: int, tiles: int, warps: int) -> RingConfig:
    """A ring of slots of 128 bytes, joined to wider ones where that leaves three or more."""
    tiles = tiles if slots >= 3 * tiles else 1
    return RingConfig(block_n, slots // tiles, split, tiles, warps)


def _ring_slots(m: int, block_n: int, per_sm: int) -> int:
    """Slots of 128 bytes of each row that fit, with `per_sm` programs on a multiprocessor.

    Up to 16 rows of x need no slots; the program keeps them beside the ring, in 8 KiB.
    """
    block_m = 0 if m <= 16 else 1 << (m - 1).bit_length()
    num_bytes = SHARED_MEMORY // per_sm - 1024 * (10 if m <= 16 else 2)
    return min(10, num_bytes // (128 * (block_n + block_m)))


def fp8_gemm_configs(m: int, n: int, k: int, num_sms: int) -> list[RingConfig]:
    """Configs worth trying on Hopper for x [m, k] and W [n, k], both in FP8, 17 to 256 rows.

    One to three programs on most multiprocessors.
    """
    configs = []
    block_m = 1 << (m - 1).bit_length()
    cuts = ((64, 1, 4), (64, 2, 4), (128, 1, 8))  # rows of a tile, tiles of a step, warps
    for (block_n, tiles, warps), per_sm, split in itertools.product(cuts, (1, 2, 3), range(1, 9)):
        programs = -(-n // block_n) * split
        slots = (SHARED_MEMORY // per_sm - 1152) // (128 * (block_m + block_n))
        stages = min(10, slots) // tiles
        fills = num_sms / 2 <= programs <= per_sm * num_sms
        fits = programs * block_n * block_m <= NUM_PARTIALS and k >= 384 * split
        if stages > 1 and (split == 1 or (fills and fits)):
            configs.append(RingConfig(block_n, stages, split, tiles, warps))
    return list(dict.fromkeys(configs))
