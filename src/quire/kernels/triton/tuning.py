"""How kernels cut their work: measured choices for known shapes, a rule for all others."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from torch import Tensor

_RINGS = 2 * 96 * 1024  # bytes of W that a multiprocessor's two programs hold


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


@functools.cache
def product_config(
    m: int, n: int, k: int, itemsize: int, num_sms: int, *, hopper: bool, heads: bool = False
) -> SkinnyConfig | RingConfig:
    """The choice for x [m, k] and W [n, k] with `itemsize` bytes an element.

    Of a shape measured on such a GPU, the nearest number of rows from m upwards; else by rule. But
    rings that hold half of a weight are filled while the kernel in front runs, which no product
    measured by itself shows. heads: by rule such that tiles hold whole ones of 128.
    """
    ring = hopper and _has_ring(k, itemsize)
    row = _measured_row(m, n, k, itemsize, num_sms)
    small = m <= 4 and n * k * itemsize <= 2 * num_sms * _RINGS
    if ring and itemsize == 2 and small and not (row and "tiles" in row["config"]):
        return ring_rule(m, n, k, itemsize, num_sms, heads=heads)
    if row and (hopper or "tiles" not in row["config"]):
        return way_from(row["config"])
    if ring and m <= 16:
        return ring_rule(m, n, k, itemsize, num_sms, heads=heads)
    if ring and itemsize == 2:
        return rows_rule(m, n, k, itemsize, num_sms)
    return skinny_rule(m, n, k, itemsize, num_sms)


def _has_ring(k: int, itemsize: int) -> bool:
    """Whether the copy engine can step through a weight, of a type that tensor cores multiply."""
    return itemsize <= 2 and k * itemsize % 16 == 0


@functools.cache
def turned_config(
    m: int,
    n: int,
    k: int,
    itemsize: int,
    num_sms: int,
    kv_heads: int,
    head_dim: int,
    *,
    hopper: bool,
) -> SkinnyConfig | RingConfig | None:
    """The choice for a product that makes heads, if its tiles hold whole ones, all of one kind.

    With more rows in 16 bits other tiles, so that they do, cost more than the kernel that turns
    heads otherwise (8B in bfloat16, 16 rows: 5.01 instead of 4.90 ms of all layers).
    """
    heads = head_dim == 128 and (m <= 8 or itemsize == 1)
    way = product_config(m, n, k, itemsize, num_sms, hopper=hopper, heads=heads)
    if head_dim & (head_dim - 1) or head_dim < 16 or n % way.block_n:
        return None
    if isinstance(way, RingConfig) and head_dim not in (64, 128):  # a thread has whole pairs
        return None
    whole = way.block_n % head_dim == 0 and kv_heads * head_dim % way.block_n == 0
    return way if whole else None


def way_from(config: dict[str, Any]) -> SkinnyConfig | RingConfig:
    """A way as the table keeps it."""
    return RingConfig(**config) if "tiles" in config else SkinnyConfig(**config)


def ring_rule(
    m: int, n: int, k: int, itemsize: int, num_sms: int, *, heads: bool = False
) -> RingConfig:
    """The choice for up to 16 rows of a shape that nobody measured.

    Tiles of 64 rows, shared by as few programs as put 1.4 on each multiprocessor, but at most
    eight, with more than 8 rows five. Not in FP8 where W's rows are short, or not very long and two
    or three would share: to meet takes longer than what idle multiprocessors could read. But with
    few rows and few idle ones, a single program on each has too little in flight.

    Tiles of 128 rows where those of 64 would begin a second round and no more. With more tiles, two
    or three programs on each. In FP8 a program has x to round, so larger tiles, for which that is
    done less often, if they fill the rounds, or three.
    """
    tiles, halves = -(-n // 128), -(-n // 64)
    most = 8 if m <= 8 else 5
    if heads or 0.5 * num_sms < tiles <= 0.8 * num_sms:
        fills = m > 8 and tiles > 0.5 * num_sms
        split = min(most, 2 * num_sms // tiles, k // 700)
        return RingConfig(block_n=128, stages=6, split=1 if fills else max(1, split))
    if halves <= num_sms:
        split = max(1, min(most, -(-14 * num_sms // (10 * halves)), k // 256))
        short = itemsize == 1 and k <= (4096 if split <= 3 else 2048)
        alone = short and (m > 8 or halves < 0.8 * num_sms)
        return RingConfig(block_n=64, stages=5, split=1 if alone else split, tiles=2)
    whole = num_sms < tiles <= 2 * num_sms or (m > 8 and tiles <= num_sms)
    if itemsize == 1 and whole and _filled(tiles, num_sms) > 0.8:
        return RingConfig(block_n=128, stages=6)
    three = _filled(halves, 3 * num_sms) >= _filled(halves, 2 * num_sms) and m <= 8
    if tiles > num_sms and (itemsize == 1 or three):
        return RingConfig(block_n=64, stages=4 if m <= 8 else 3, tiles=2)
    return RingConfig(block_n=64, stages=5, tiles=2)


def _filled(tiles: int, places: int) -> float:
    """How much of all rounds of so many programs at a time has work."""
    return tiles / (places * -(-tiles // places))


@functools.cache
def library_is_faster(m: int, n: int, k: int, itemsize: int, num_sms: int, *, hopper: bool) -> bool:
    """Whether a product with nothing fused is better left to the library; arguments as above.

    So it is for shapes that nobody measured, if their weights have 16 bits and come through no
    ring: the rule was behind cuBLAS on most that were. With 8 bits the library is no faster than
    with 16.
    """
    row = _measured_row(m, n, k, itemsize, num_sms)
    if row is None:
        return itemsize > 1 and not (hopper and _has_ring(k, itemsize))
    return bool(row["library"])


@functools.cache
def rows_config(m: int, n: int, k: int, num_sms: int) -> RingConfig | None:
    """The choice for many rows x [m, k] and W [n, k] in FP8 on Hopper; None: better the library's.

    Of a shape measured on such a GPU, the nearest number of rows from m upwards; else by rule, up
    to 128 rows, since more take as long as 256, or up to 64 where there is much of W.
    """
    row = _nearest("rows", m, (n, k), num_sms)
    if row is not None:
        return row["config"] and RingConfig(**row["config"])
    if m > 128 or (m > 64 and n > 64 * 2 * num_sms):
        return None
    return rows_rule(m, n, k, 1, num_sms)


def rows_rule(m: int, n: int, k: int, itemsize: int, num_sms: int) -> RingConfig:
    """The choice for 17 to 128 rows of a shape that nobody measured.

    Tiles of 64 rows of W, which programs share until 60 % of all multiprocessors have one, or with
    2,048 columns and more for each as many as there are places; if those are far from filled, of
    two on a multiprocessor. In 16 bits 768 are enough up to 32 rows, and with more rows 1,024 the
    least of all: their parts take longer to add. Where there are more tiles than that, two or three
    programs on each, whichever fills the rounds better; by twos the tiles may have 128 rows. Each
    program keeps as much in flight as fits.
    """
    tiles, block_m = -(-n // 64), 1 << (m - 1).bit_length()
    on_each, split, block_n = 1, 1, 64
    if tiles <= num_sms:
        long = k // (768 if itemsize == 2 and m <= 32 else 2048)
        split = min(num_sms // tiles, max(-(-6 * num_sms // (10 * tiles)), long))
        split = max(1, min(split, k // (1024 if itemsize == 2 and m > 32 else 384)))
        twice = 2 * num_sms // tiles
        if tiles * split < 0.7 * num_sms and split < twice <= long:
            on_each, split = 2, twice
    elif tiles <= 2 * num_sms:
        on_each = 2
    elif _filled(tiles, 3 * num_sms) > _filled(-(-n // 128), 2 * num_sms):
        on_each = 3
    else:
        on_each, block_n = 2, 128
    places = _places(block_m + block_n, on_each)
    if block_n == 128:
        return RingConfig(block_n=128, stages=places, warps=8)
    if places < 6:
        return RingConfig(block_n=64, stages=places, split=split)
    return RingConfig(block_n=64, stages=places // 2, split=split, tiles=2)


def _places(rows: int, programs: int) -> int:
    """Of 128 bytes of so many rows in a ring, so many programs being on a multiprocessor."""
    return min(10, (227 * 1024 // programs - 1152) // (128 * rows))


def _measured_row(m: int, n: int, k: int, itemsize: int, num_sms: int) -> dict[str, Any] | None:
    return _nearest("skinny_gemm", m, (n, k, itemsize), num_sms)


def _nearest(part: str, m: int, shape: tuple[int, ...], num_sms: int) -> dict[str, Any] | None:
    table = measured()
    if table["num_sms"] != num_sms:  # ways for one GPU may not even fit in another's memory
        return None
    names = ("n", "k", "itemsize")[: len(shape)]
    rows = [
        row for row in table[part] if tuple(row[name] for name in names) == shape and row["m"] >= m
    ]
    return min(rows, key=lambda row: int(row["m"]), default=None)


def skinny_rule(m: int, n: int, k: int, itemsize: int, num_sms: int) -> SkinnyConfig:
    """The choice for a shape that nobody measured.

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


@functools.cache
def measured() -> dict[str, Any]:
    """The table of measured shapes and the GPU's multiprocessors, from benchmarks/gpu_kernels.py.

    library: whether cuBLAS was faster than the best way, which then serves fused products only.
    """
    text = (resources.files("quire.kernels.triton") / "tuned.json").read_text()
    table: dict[str, Any] = json.loads(text)
    return table


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How decode attention is cut. tile: keys at a time; min_units: tiles worth a program.

    stages: of the loop's pipeline, with stages - 1 tiles of keys and values in shared memory.
    """

    tile: int
    stages: int
    per_sm: int = 3
    warps: int = 4
    min_units: int = 1


@dataclass(frozen=True, slots=True)
class HopperDecodeConfig:
    """How Hopper's decode attention is cut. slots: tiles of keys in shared memory, and of
    their values, for each of per_sm programs of a multiprocessor. tile: 64 or 128 keys."""

    per_sm: int
    slots: int
    tile: int = 64
    min_units: int = 1


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """How prefill attention is cut. rows: queries times heads of a group; tile: keys at a time."""

    rows: int
    tile: int
    stages: int
    warps: int = 8

    def tokens(self, group: int) -> int:
        """Queries of a tile, of `group` heads each."""
        return self.rows // group


@dataclass(frozen=True, slots=True)
class HopperConfig:
    """How prefill attention is cut on Hopper: for two warpgroups, each with a product's 64 rows.

    tile: keys at a time; slots: tiles of keys in shared memory, and of their values. split: both
    have the same queries, and every other tile of keys, so that few queries make more programs.
    turns: else they take turns in issuing products.
    """

    tile: int
    slots: int
    split: bool
    turns: bool = True

    def tokens(self, group: int) -> int:
        """Queries of a tile, of `group` heads each."""
        return (1 if self.split else 2) * (64 // group)


def decode_config(k_cache: Tensor, num_tokens: int) -> DecodeConfig:
    """By rule: tiles of 16 KiB of keys and values; the best on the whole when measured.

    One request of some 2,000 keys is quickest with larger ones and one program a multiprocessor,
    which leave fewer parts to merge; of 512 or 8,192 keys that costs 10 to 19 % at most.
    """
    row_bytes = padded_head_dim(k_cache) * k_cache.dtype.itemsize
    tile = max(16, min(64, 2**13 // row_bytes))
    if num_tokens == 1:
        return DecodeConfig(tile=max(16, min(64, 2**14 // row_bytes)), stages=3, per_sm=1)
    return DecodeConfig(tile=tile, stages=3 if tile * row_bytes >= 2**13 else 4)


def hopper_decode_config(k_cache: Tensor, group: int, num_tokens: int) -> HopperDecodeConfig:
    """By rule, the best on the whole when measured: 96 KiB on their way to a multiprocessor.

    With few requests one program there has all of it, in tiles of 32 KiB, so that few parts are to
    be merged; three of them, or two if heads take more registers, hide each other's softmax.
    """
    row_bytes = 2 * int(k_cache.shape[3]) * k_cache.dtype.itemsize  # of a key and its value
    few = num_tokens <= (16 if k_cache.dtype.itemsize == 2 else 1)
    if few or row_bytes == 512:
        return HopperDecodeConfig(per_sm=1, slots=3, tile=min(128, 2**15 // row_bytes))
    return HopperDecodeConfig(per_sm=3 if group <= 8 else 2, slots=2, tile=2**14 // row_bytes)


def opens_early(k_cache: Tensor, num_tokens: int) -> bool:
    """Whether the kernel behind attention should be there while that runs.

    With few requests the product behind it can fill its ring meanwhile, and has one if weights have
    as many bits as keys. One that only waits costs 4 % of a step's time.
    """
    return num_tokens * k_cache.dtype.itemsize <= 8


def prefill_config(k_cache: Tensor, group: int) -> PrefillConfig:
    """By rule: 64 rows for four warps, the best on the whole; a query's heads must fit."""
    tile = 2**14 // (padded_head_dim(k_cache) * max(2, k_cache.dtype.itemsize))
    rows = max(64, 1 << (group - 1).bit_length())
    return PrefillConfig(rows=rows, tile=max(16, min(64, tile)), stages=2, warps=rows // 16)


def short_config(k_cache: Tensor, group: int) -> PrefillConfig:
    """By rule, for prompts of up to 128 keys, such that more programs have room: in FP8 no second
    tile on its way, else tiles of half the keys."""
    usual = prefill_config(k_cache, group)
    if k_cache.dtype.itemsize == 1:
        return replace(usual, stages=1)
    return replace(usual, tile=min(usual.tile, 32))


def hopper_config(k_cache: Tensor, *, split: bool) -> HopperConfig:
    """By rule, for 64 or 128 dimensions."""
    if split:
        return HopperConfig(tile=64, slots=4, split=True)
    return HopperConfig(tile=128, slots=256 // k_cache.shape[3], split=False)


def hopper_rule(k_cache: Tensor, num_tokens: int, group: int, num_sms: int) -> HopperConfig:
    """Of queries of so many tokens: the keys are shared out where half of the multiprocessors or
    fewer would have work else, since that makes twice as many pieces."""
    halves = hopper_config(k_cache, split=False)
    pieces = num_tokens // halves.tokens(group) * k_cache.shape[2]
    return hopper_config(k_cache, split=2 * pieces <= num_sms)


def padded_head_dim(k_cache: Tensor) -> int:
    """The dimensions that attention computes with: a power of two, the least that tl.dot takes.

    Those of FP8 are multiplied by halves.
    """
    least = 32 if k_cache.dtype.itemsize == 1 else 16
    return max(least, 1 << (int(k_cache.shape[3]) - 1).bit_length())
