"""Chooses how Hopper's GEMM cuts a four-bit weight: by rule, from the sizes alone."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from quire.kernels.triton.launch.gemm_config import SHARED_MEMORY, fitting_programs, tile_rows
from quire.kernels.triton.launch.workspace import NUM_PARTIALS

MOST_BLOCK_M = 128  # rows of x in a tile


@dataclass(frozen=True, slots=True)
class Int4Config:
    """`split` programs share a tile of block_n outputs; see `hopper_int4_ring` for `parts`.

    registers: the most of a thread.
    """

    block_n: int
    parts: int
    stages: int
    split: int = 1
    warps: int = 4
    registers: int | None = None


WIDE = Int4Config(128, 1, 2, warps=8, registers=128)
# of a program: outputs of a tile, parts, warps
CUTS = ((64, 1, 4), (128, 1, 8), (128, 1, 4), (32, 2, 4), (64, 2, 8), (64, 2, 4), (32, 4, 4))
Memory = Callable[..., int]  # bytes of shared memory of a program with `config`


def block_rows(m: int) -> int:
    """Rows of x in a tile, for m rows: a power of two."""
    return min(MOST_BLOCK_M, 1 << (m - 1).bit_length())


def group_rows(k: int, group: int, config: Int4Config) -> int:
    """Rows of scales that a program has in shared memory, a power of two."""
    steps = math.ceil(math.ceil(k / (256 * config.parts)) / config.split)
    return max(4, 1 << (256 // group * steps - 1).bit_length())


def shared_memory(m: int, k: int, group: int, *, zeros: bool, config: Int4Config) -> int:
    """Bytes of shared memory of a program: the ring of words and columns of x, scales, zeros."""
    stage = config.parts * (128 * config.block_n + 512 * block_rows(m))
    groups = config.parts * config.block_n * group_rows(k, group, config) * 2
    return config.stages * stage + (2 if zeros else 1) * groups + 64


@functools.cache
def int4_config(
    m: int, n: int, k: int, group: int, num_sms: int, *, zeros: bool = False, head_dim: int = 0
) -> Int4Config | None:
    """The config for x [m, k] and W [n, k]; None where no program or workspace has the room.

    head_dim: 64 or 128, of heads that tiles have to hold whole; 0 for none.

    Few stages: several small programs on a multiprocessor hide each other's latency, and leave room
    for those of the next kernel, which load their words before this one has ended.
    """
    memory = partial(shared_memory, m, k, group, zeros=zeros)
    # above 32 rows there may be room for one program alone; quicker up to 48 rows all the same
    least = 8 if group == 16 else 16  # of the many scales three small programs fit, not four
    if not head_dim and least < m <= 48 and runs_wide_at_once(m, n, num_sms, memory):
        return WIDE
    block_n, parts, warps = _cut(m, n, k, num_sms, head_dim)
    tiles, steps = math.ceil(n / block_n), math.ceil(k / (256 * parts))
    tiles *= math.ceil(m / block_rows(m))
    few = 8 < m <= 16
    most = 3 if 8 < m <= 32 and parts == 1 else 2 if m <= 64 else 1  # programs of a multiprocessor
    if few:
        most = 2 if warps == 8 else 4 if parts == 1 and k > 8192 else most
    split = max(1, min(6 if few and warps == 4 else 4, steps // 2, most * num_sms // tiles))
    if 32 < m <= 64 and warps == 8:  # registers of one program at a time
        split = quickest_split(split, tiles, steps, num_sms)
    found = Int4Config(block_n, parts, 2, split, warps)
    if 8 < m <= 32:
        found = in_one_round(found, tiles, num_sms, memory)
        deep, is_long = replace(found, stages=3), steps >= 8 * found.split > 8
        found = deep if is_long and runs_at_once(deep, tiles, num_sms, memory) else found
    if m <= 16:
        both = tiles / num_sms, programs_that_fit(found, memory)
        found = replace(found, registers=_registers(found, m, *both, group, zeros=zeros))
    if not head_dim:
        found = filling(found, m, n, k, num_sms, memory)
    return fitting(found, k, tiles * block_n * block_rows(m), memory)


@functools.cache
def half_heads_config(
    m: int, n: int, k: int, group: int, num_sms: int, head_dim: int, *, zeros: bool
) -> Int4Config | None:
    """The config for RoPE in tiles less than a head, with pairs of both its halves.

    None where tiles with whole heads are as quick: with two rows, with more than eight, and where
    not all programs run at once.
    """
    if m == 2 or m > 8 or head_dim not in (64, 128) or n % head_dim:
        return None
    block_n, parts, split, at_once = (32, 4, 1, 2) if m == 1 else (64, 1, 4, 3)
    tiles, steps = n // block_n, math.ceil(k / (256 * parts))
    if block_n >= head_dim or split * tiles > at_once * num_sms:
        return None
    found = Int4Config(block_n, parts, 2, max(1, min(split, steps // 2)))
    memory = partial(shared_memory, m, k, group, zeros=zeros)
    return fitting(found, k, tiles * block_n * block_rows(m), memory)


def filling(
    config: Int4Config, m: int, n: int, k: int, num_sms: int, memory: Memory
) -> Int4Config:  # fmt: skip
    """The config with memory for no more than one round of its programs, by more stages.

    Where there is room for more, a multiprocessor that the previous kernel leaves first gets more
    than its share, and is the last to end. With 9 to 16 rows, for layers that are wide or long.
    """
    share = math.ceil(n / config.block_n) * config.split / num_sms
    most = math.ceil(share)
    if not 8 < m <= 16 or config.parts > 1 or n <= k < 2 * n:
        return config
    if share < 0.5 or most > 3:  # four are as many as there are registers for
        return config
    every = (replace(config, stages=stages) for stages in range(2, 9))
    return next((each for each in every if programs_that_fit(each, memory) <= most), config)


def runs_at_once(config: Int4Config, tiles: int, num_sms: int, memory: Memory) -> bool:
    """Whether multiprocessors have the memory for all programs of `tiles` tiles."""
    return tiles * config.split <= num_sms * programs_that_fit(config, memory)


def in_one_round(config: Int4Config, tiles: int, num_sms: int, memory: Memory) -> Int4Config:
    """The config with fewer parts of k, if all its programs run at once then and not before.

    Otherwise the last round leaves multiprocessors with one program, or none.
    """
    fewer = (replace(config, split=split) for split in range(config.split, 1, -1))
    return next((each for each in fewer if runs_at_once(each, tiles, num_sms, memory)), config)


def programs_that_fit(config: Int4Config, memory: Memory) -> int:
    """Programs for which a multiprocessor has memory."""
    return fitting_programs(memory(config=config), spare=2048)


def fitting(config: Int4Config, k: int, sums: int, memory: Memory) -> Int4Config | None:
    """The config, with as many parts of k as it takes for their scales to fit, or None.

    sums: of all tiles, for each part.
    """
    for split in range(config.split, math.ceil(k / (256 * config.parts)) + 1):
        found = replace(config, split=split)
        if split > 1 and split * sums > NUM_PARTIALS:
            return None
        if memory(config=found) <= SHARED_MEMORY:
            return found
    return None


def _registers(
    config: Int4Config, m: int, share: float, most: int, group: int, *, zeros: bool
) -> int | None:  # fmt: skip
    """The limit of registers of a thread, up to 16 rows; share and most as below.

    128 leaves room for four small programs on a multiprocessor, or two of eight warps. Without a
    limit ptxas takes fewer for small ones, so that five fit. Of tiles of 32 outputs five fit, too,
    and with 80 six or more, although it serializes the MMAs of two rows then.
    """
    if m == 1 and config.block_n == 32:
        return registers_of_one_row(share, most, group, zeros=zeros)
    if m == 2 and config.block_n == 32:
        return 80 if most > 5 else None
    is_small = config.split == config.parts == 1 and config.block_n == 64
    if is_small and m <= 8 and most > 4 and math.ceil(share / 5) < math.ceil(share / 4):
        return None
    return 128 if is_small or (config.warps == 8 and config.parts < 4) else None


def registers_of_one_row(share: float, most: int, group: int, *, zeros: bool) -> int | None:
    """The limit of registers with which rounds of tiles of 32 outputs are full.

    share: programs for each multiprocessor; most: for how many it has shared memory. ptxas takes
    112 without a limit, which four programs on a multiprocessor have; with 96 it takes 72 in small
    groups, for seven, and else 92, for five; with 104 also 72 (with zeros 80; in Triton 3.9: 92).
    """
    if share <= 4 or group == 16:
        return None
    if group < 128:  # with 80 it takes 56
        return 80 if group == 64 and not zeros and 7 < share <= 9 <= most else 96
    fives, sevens = math.ceil(share / 5) * 5, math.ceil(share / 7) * 7
    return 96 if fives < sevens and not zeros else 104


def runs_wide_at_once(m: int, n: int, num_sms: int, memory: Memory) -> bool:
    """Whether tiles of 128 outputs, two for each multiprocessor, are one round; those of 64 not."""
    if not 64 * (3 if m <= 32 else 2) * num_sms < n <= 2 * 128 * num_sms:
        return False
    return fitting_programs(memory(config=WIDE)) >= 2


def quickest_split(most: int, tiles: int, steps: int, num_sms: int) -> int:
    """The number of programs for a tile with the least rounds · (steps of each + 2).

    For programs of which a multiprocessor runs one at a time.
    """
    rounds = {s: math.ceil(s * tiles / num_sms) * (steps / s + 2) for s in range(1, most + 1)}
    return min(rounds, key=lambda s: rounds[s])


def _cut(m: int, n: int, k: int, num_sms: int, head_dim: int) -> tuple[int, int, int]:
    """Outputs of a tile, parts and warps, as measured."""
    if m > 64:
        return 128, 1, 8
    if head_dim > 64:
        return head_dim, 2 if m < 2 else 1, 8 if m < 2 or m > 8 else 4
    if m == 1:
        programs = 2 * math.ceil(n / 64)
        if programs <= num_sms < 4 / 3 * programs and 3072 < k <= 4096:  # x and W in two stages
            return 64, 4, 8
        return 32 if n > 64 * num_sms and not head_dim else 64, 2, 4
    if 8 < m <= 16 and not head_dim and n <= 32 * num_sms:
        if k <= 8192 and k % 1024 == 0:  # o of 3,584 columns was slower so, others quicker
            return 64, 2, 4
    large = n > 128 * num_sms
    in_one_round = n <= 256 * num_sms  # four programs on a multiprocessor
    if m > 8 or (large and (m > 4 or in_one_round)):
        return 64, 1, 4
    is_long = k > 8192 and n <= 32 * num_sms  # four programs share a tile
    return 32 if large and not head_dim else 64, 2, 8 if 2 < m <= 4 and is_long else 4


def int4_configs(m: int, n: int, k: int, group: int, num_sms: int) -> Iterator[Int4Config]:
    """Configs worth trying for x [m, k] and W [n, k] without zeros."""
    memory = partial(shared_memory, m, k, group, zeros=False)
    return configs_of((*CUTS, (128, 2, 8)), m, n, k, num_sms, memory)


def configs_of(
    cuts: Iterable[tuple[int, int, int]], m: int, n: int, k: int, num_sms: int, memory: Memory
) -> Iterator[Int4Config]:
    """Configs of these outputs of a tile, parts and warps that may be quick, and fit."""
    block_m = block_rows(m)
    for (block_n, parts, warps), split, stages in itertools.product(cuts, (1, 2, 3, 4), (2, 3, 4)):
        programs = math.ceil(n / block_n) * math.ceil(m / block_m) * split
        steps = math.ceil(k / (256 * parts))
        registers = parts * block_n * max(8, parts * block_m) / warps  # of sums
        if parts * block_m < 2 or registers > (2048 if m <= 64 else 4096):
            continue
        found = Int4Config(block_n, parts, stages, split, warps)
        if memory(config=found) > SHARED_MEMORY or stages > max(2, steps):
            continue
        if split > 1 and (2 * split > steps or programs > 4 * num_sms):
            continue
        if split == 1 and 2 * programs < num_sms:
            continue
        if split == 1 or programs * block_n * tile_rows(block_m) <= NUM_PARTIALS:
            yield found
