"""Chooses the GEMM config for a shape with few rows: tuned shapes have one, others a similar one's.

gemm_configs.json has the best config of each tuned shape, by rows of x. Any other shape on Hopper
takes the config of the tuned shape that is most similar, where similarity is a distance of shapes
plus what a formula expects of that config for the new shape. How far that is from the best, and
what else was tried: docs/decisions/gemm-configs.md. benchmarks/gemm_similar.py finds the constants.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from quire.kernels.triton.gemm.int4_config import Int4Config
from quire.kernels.triton.gemm.split_k_config import split_k_config
from quire.kernels.triton.launch.gemm_config import (
    GemmConfig,
    RingConfig,
    SkinnyConfig,
    config_from,
    fp8_gemm_configs,
    gemm_configs,
    tile_rows,
)

ROWS = (4, 8, 16, 32, 64, 128)  # of x, that all shapes are tuned for
COSTS = (2.36, 0.41, 1.53, 0.75, 1.61)  # microseconds, see `expected_us`
WEIGHTS = (3.13, 0.33, 1.45, 2.46, 2.71, 0.59)  # of the parts of a distance, see `_features`
Shape = tuple[int, int]  # n, k


@dataclass(frozen=True, slots=True)
class TunedGemm:
    """The best configs of a shape, for a number of rows of x.

    config: None where the library is faster. rope_config: one whose tiles hold whole heads where
    those of `config` do not, if RoPE inside of the GEMM then saves more than that config costs.
    """

    config: GemmConfig | None
    rope_config: GemmConfig | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """All of gemm_configs.json: tuned shapes by kind of GEMM, see `_kind`, then by rows of x.

    num_sms: multiprocessors of the GPU they were tuned on. by_library: (itemsize, n, k, m) where a
    GEMM with nothing fused is left to cuBLAS.
    """

    num_sms: int
    shapes: dict[tuple[int, bool], dict[Shape, dict[int, TunedGemm]]]
    by_library: frozenset[tuple[int, ...]]


@functools.cache
def skinny_gemm_config(
    m: int, n: int, k: int, itemsize: int, num_sms: int, *, hopper: bool
) -> GemmConfig:
    """The config for x [m, k] and W [n, k] with `itemsize` bytes an element."""
    config = _best(m, n, k, itemsize, num_sms, hopper=hopper).config
    assert config is not None
    return config


@functools.cache
def rope_gemm_config(
    m: int,
    n: int,
    k: int,
    itemsize: int,
    num_sms: int,
    kv_heads: int,
    head_dim: int,
    *,
    hopper: bool,
) -> GemmConfig | None:
    """The config for a GEMM that makes heads and applies RoPE; None: better by its own kernel."""
    best = _best(m, n, k, itemsize, num_sms, hopper=hopper)
    for config in (best.config, best.rope_config):
        if config is not None and holds_whole_heads(config, n, kv_heads, head_dim):
            return config
    return None


def holds_whole_heads(
    config: GemmConfig | Int4Config, n: int, kv_heads: int, head_dim: int
) -> bool:
    """Whether tiles hold whole heads, all of one kind, that their kernel can apply RoPE to."""
    if head_dim & (head_dim - 1) or head_dim < 16 or n % config.block_n:
        return False
    in_ring = not isinstance(config, SkinnyConfig)
    if in_ring and head_dim not in (64, 128):  # where a thread has whole pairs
        return False
    return config.block_n % head_dim == 0 and kv_heads * head_dim % config.block_n == 0


@functools.cache
def library_is_faster(m: int, n: int, k: int, itemsize: int, num_sms: int, *, hopper: bool) -> bool:
    """Whether a GEMM with nothing fused is better left to cuBLAS; arguments as above.

    Measured for some shapes. Of others, where W has 16 bits and no Hopper kernel can read it.
    """
    if not (hopper and _has_ring(k, itemsize)):
        return itemsize > 1
    rows = _tuned_rows(m, n, k, itemsize, num_sms)
    return (itemsize, n, k, rows) in table().by_library


@functools.cache
def fp8_gemm_config(m: int, n: int, k: int, num_sms: int) -> RingConfig | None:
    """The config for x [m, k] with more than 16 rows and W [n, k], both in FP8, on Hopper.

    None: better left to the library, as wide weights are with more than 128 rows.
    """
    m = max(m, 17)  # fewer rows that were rounded for another weight
    if m > 256:
        return None
    split = split_k_config(m, n, k, num_sms)
    if split is not None:
        return split
    if m > 128:
        return RingConfig(64, 5) if math.ceil(n / 64) <= num_sms else None
    rows = _tuned_rows(m, n, k, 1, num_sms)
    if rows is not None:
        config = table().shapes[1, True][n, k][rows].config
    elif library_is_expected_faster(m, n, k, num_sms):
        return None
    else:
        config = similar(m, n, k, 1, num_sms).config
    assert config is None or isinstance(config, RingConfig)
    return config


@functools.cache
def bytes_gemm_config(m: int, n: int, k: int, num_sms: int) -> RingConfig | None:
    """The config for x [m, k] and W [n, k], both in INT8, on Hopper, where no library is.

    FP8's, as tiles have the same bytes. None: left to kernels with one program for a tile of 128
    outputs, of which there are enough.
    """
    if not 0 < m <= 256:
        return None
    found = fp8_gemm_config(m, n, k, num_sms)
    if found is not None or math.ceil(m / 128) * math.ceil(n / 128) >= num_sms:
        return found
    configs = fp8_gemm_configs(m, n, k, num_sms)
    return min(configs, key=lambda each: expected_us(m, n, k, 1, num_sms, each), default=None)


def library_is_expected_faster(m: int, n: int, k: int, num_sms: int) -> bool:
    """Whether to leave an FP8 GEMM to the library that was not tuned, see `fp8_gemm_config`.

    So it is if not all tiles of W fit at once, three on a multiprocessor, and if long tiles are
    somewhat more than multiprocessors.
    """
    tiles = n / (64 * num_sms)
    return m > 64 and (tiles > 3 or (1 < tiles < 1.5 and k >= 3072))


def default_skinny_config(m: int, n: int, k: int, itemsize: int, num_sms: int) -> SkinnyConfig:
    """The config of the plain Triton kernel, for any GPU and shape.

    Tiles of 64 rows and 256 bytes, four stages of them, and as many programs as shared memory holds
    (two, about 128 KiB in flight on a multiprocessor). Where each program would get less than two
    steps, fewer of them. With weights of 8 bits x, which has 16, takes the greater part of it.
    """
    block_k, stages = 256 // itemsize, 4 if m <= 32 else 3
    if itemsize == 1 and m > 16:
        block_k, stages = (256, 3) if m <= 32 else (128, 4)
    num_units = -(-n // 64) * -(-k // block_k)
    per_sm = 2 if num_units >= 4 * num_sms else 1
    return SkinnyConfig(block_n=64, block_k=block_k, stages=stages, per_sm=per_sm)


def _best(m: int, n: int, k: int, itemsize: int, num_sms: int, *, hopper: bool) -> TunedGemm:
    """The config for x of 16 bits: from the table, from a similar shape, or the default."""
    if not hopper or not _has_ring(k, itemsize) or _kind(m, itemsize)[1]:
        return TunedGemm(default_skinny_config(m, n, k, itemsize, num_sms))
    rows = _tuned_rows(m, n, k, itemsize, num_sms)
    if rows is None:
        return similar(m, n, k, itemsize, num_sms)
    return table().shapes[itemsize, False][n, k][rows]


def _has_ring(k: int, itemsize: int) -> bool:
    """Whether the copy engine can step through a weight, of a type that tensor cores multiply."""
    return itemsize <= 2 and k * itemsize % 16 == 0


def _kind(m: int, itemsize: int) -> tuple[int, bool]:
    """(itemsize, whether x is FP8, too): one kernel serves GEMMs of a kind."""
    return itemsize, itemsize == 1 and m > 16


def _tuned_rows(m: int, n: int, k: int, itemsize: int, num_sms: int) -> int | None:
    """The nearest number of rows from m upwards that a shape was tuned for on such a GPU."""
    found = table().shapes[_kind(m, itemsize)].get((n, k), {})
    return min((rows for rows in found if rows >= m and num_sms == table().num_sms), default=None)


def similar(
    m: int, n: int, k: int, itemsize: int, num_sms: int, without: Collection[Shape] = ()
) -> TunedGemm:
    """The config of the most similar tuned shape. without: shapes to leave out."""
    rows = min(each for each in ROWS if each >= m)
    configs: Sequence[GemmConfig] = gemm_configs(rows, n, k, itemsize, num_sms)
    if _kind(m, itemsize)[1]:
        configs = fp8_gemm_configs(rows, n, k, num_sms)
    us = {each: expected_us(rows, n, k, itemsize, num_sms, each) for each in configs}
    best, least = TunedGemm(min(configs, key=lambda each: us[each])), math.inf
    features = _features(n, k, itemsize, num_sms)
    for shape, found in _tuned_for(rows, itemsize):
        if found.config in us and shape not in without:
            there = _features(*shape, itemsize, table().num_sms)
            distance = math.dist(features, there) + math.log(us[found.config])
            if distance < least:
                best, least = found, distance
    return best if best.rope_config in us else TunedGemm(best.config)


@functools.cache
def _tuned_for(rows: int, itemsize: int) -> list[tuple[Shape, TunedGemm]]:
    """All tuned shapes with their times for this many rows."""
    found = []
    for shape, by_rows in table().shapes[_kind(rows, itemsize)].items():
        nearest = min((each for each in by_rows if each >= rows), default=None)
        if nearest is not None:
            found.append((shape, by_rows[nearest]))
    return found


@functools.cache
def _features(n: int, k: int, itemsize: int, num_sms: int) -> tuple[float, ...]:
    """Weighted features of a shape: tiles of 64 rows on a multiprocessor and k, both as
    logarithms, how much of the last round of tiles of 64 and of 128 rows has work, how short rows
    are, and whether they end within a step of 256 bytes."""
    tiles, wide_tiles = -(-n // 64) / num_sms, -(-n // 128) / num_sms
    filled = (each / math.ceil(each) for each in (tiles, wide_tiles))
    step_bytes = k * itemsize % 256
    parts = math.log(n / num_sms), math.log(k), *filled, 1024 / (k * itemsize), step_bytes > 0
    return tuple(weight * part for weight, part in zip(WEIGHTS, parts, strict=True))


def expected_us(m: int, n: int, k: int, itemsize: int, num_sms: int, config: GemmConfig) -> float:
    """Microseconds by a formula that is some 10 % off.

    Terms: a launch, megabytes of W, those that the busiest multiprocessor reads, how often a
    program fills its ring, parts of 32 KiB that are added up.
    """
    split = max(1, config.split)
    step = 128 * config.tiles if isinstance(config, RingConfig) else config.block_k * itemsize
    num_bytes = step * math.ceil(math.ceil(k * itemsize / step) / split)  # of a row, for a program
    programs = -(-n // config.block_n) * split / num_sms
    busiest = math.ceil(programs) if programs < 4 else programs
    parts = split * config.block_n * tile_rows(m) / 2**13 if split > 1 else 0.0
    read = busiest * num_bytes * config.block_n / 1e6
    terms = 1.0, itemsize / 1e6 * n * k, read, num_bytes / (step * config.stages), parts
    return sum(cost * term for cost, term in zip(COSTS, terms, strict=True))


@functools.cache
def table() -> Table:
    """The table of tuned shapes, from benchmarks/gemm_similar.py."""
    text = (resources.files("quire.kernels.triton.gemm") / "gemm_configs.json").read_text()
    given: dict[str, Any] = json.loads(text)
    configs = [None, *map(config_from, given["configs"])]
    shapes: dict[tuple[int, bool], dict[Shape, dict[int, TunedGemm]]]
    shapes = {kind: {} for kind in ((1, False), (1, True), (2, False))}
    for itemsize, n, k, *tuned in given["shapes"]:
        for m, *indices in tuned:
            found = TunedGemm(*(configs[index] for index in indices))
            shapes[_kind(m, itemsize)].setdefault((n, k), {})[m] = found
    return Table(given["num_sms"], shapes, frozenset(map(tuple, given["by_library"])))
