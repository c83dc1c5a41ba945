"""How products cut their work: as tuned for known shapes, for others as is expected quickest."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

from quire.kernels.triton.gemm.gemm_cost_model import expected_us, library_us, rows_timed
from quire.kernels.triton.launch.gemm_config import (
    RingConfig,
    SkinnyConfig,
    Way,
    rows_ways_for,
    way_from,
    ways_for,
)

_TURNING = 2.8  # microseconds of a layer that turning heads inside of a product saves
_SMALL = 24 * 2**20  # bytes of W up to which it does so with 5 to 16 rows of 16 bits, too


@functools.cache
def product_config(m: int, n: int, k: int, itemsize: int, num_sms: int, *, hopper: bool) -> Way:
    """The choice for x [m, k] and W [n, k] with `itemsize` bytes an element.

    Of a shape tuned on such a GPU, the nearest number of rows from m upwards; of others on a
    Hopper, what is expected to be quickest.
    """
    row = _measured_row(m, n, k, itemsize, num_sms)
    if row and (hopper or "tiles" not in row["config"]):
        return way_from(row["config"])
    if hopper and _has_ring(k, itemsize) and (m <= 16 or itemsize == 2):
        return _quickest(_expected(m, n, k, itemsize, num_sms))
    return skinny_rule(m, n, k, itemsize, num_sms)


def _quickest(us: dict[Way, float]) -> Way:
    return min(us, key=lambda way: us[way])


def _expected(m: int, n: int, k: int, itemsize: int, num_sms: int) -> dict[Way, float]:
    """Microseconds that ways are expected to take."""
    us = _expected_as_timed(rows_timed(m, itemsize), n, k, itemsize, num_sms)
    if m > 4:
        return us
    return {way: each for way, each in us.items() if isinstance(way, RingConfig)}


@functools.cache
def _expected_as_timed(m: int, n: int, k: int, itemsize: int, num_sms: int) -> dict[Way, float]:
    ways: list[Way] = [*ways_for(m, n, k, itemsize, num_sms)]
    if itemsize == 1 and m > 16:
        ways = [*rows_ways_for(m, n, k, num_sms)]
    return expected_us(m, n, k, itemsize, num_sms, ways)


def _has_ring(k: int, itemsize: int) -> bool:
    """Whether the copy engine can step through a weight, of a type that tensor cores multiply."""
    return itemsize <= 2 and k * itemsize % 16 == 0


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
) -> Way | None:
    """The choice for a product that makes heads, if its tiles hold whole ones, all of one kind.

    Where the best tiles do not, others, if what they are expected to cost more is less than what
    turning inside saves, which is nothing with large weights of 16 bits and more than 4 rows. But
    not of a shape tuned with such heads.
    """
    way = product_config(m, n, k, itemsize, num_sms, hopper=hopper)
    if holds_whole(way, n, kv_heads, head_dim):
        return way
    row = _measured_row(m, n, k, itemsize, num_sms) or {}
    tuned = row.get("head_dim") == head_dim
    if tuned or not (hopper and _has_ring(k, itemsize) and (m <= 16 or itemsize == 2)):
        return None
    us = _expected(m, n, k, itemsize, num_sms)
    whole = {each: us[each] for each in us if holds_whole(each, n, kv_heads, head_dim)}
    few = itemsize == 1 or m <= 4 or (m <= 16 and n * k * itemsize <= _SMALL)
    saved = _TURNING if few else 0.0
    if not whole or min(whole.values()) > min(us.values()) + saved:
        return None
    return _quickest(whole)


def holds_whole(way: Way, n: int, kv_heads: int, head_dim: int) -> bool:
    """Whether tiles hold whole heads of one kind, and their kernel turns such."""
    if head_dim & (head_dim - 1) or head_dim < 16 or n % way.block_n:
        return False
    if isinstance(way, RingConfig) and head_dim not in (64, 128):  # a thread has whole pairs
        return False
    return way.block_n % head_dim == 0 and kv_heads * head_dim % way.block_n == 0


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

    Of a shape tuned on such a GPU, the nearest number of rows from m upwards; of others what is
    expected to be quickest, up to 128 rows, since more take as long as 256.
    """
    row = _nearest("rows", m, (n, k), num_sms)
    if row is not None:
        return row["config"] and RingConfig(**row["config"])
    if m > 128:
        return None
    few = rows_timed(max(m, 17), 1)
    us = _expected_as_timed(few, n, k, 1, num_sms)
    way, by_library = _quickest(us), library_us(few, n, k)
    if library_rule(m, n, k, num_sms) if by_library is None else by_library < us[way]:
        return None
    assert isinstance(way, RingConfig)
    return way


def library_rule(m: int, n: int, k: int, num_sms: int) -> bool:
    """Whether to leave a shape in FP8 to the library that it was not timed with, see `rows_config`.

    So it is if not all of W's tiles have a place at once, three on a multiprocessor, and if long
    tiles are somewhat more than multiprocessors.
    """
    tiles = n / (64 * num_sms)
    return m > 64 and (tiles > 3 or (1 < tiles < 1.5 and k >= 3072))


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

    library: whether cuBLAS was faster than the best way by itself, which then serves fused products
    only. head_dim: of the heads that a product makes, with which it was tuned.
    """
    text = (resources.files("quire.kernels.triton.gemm") / "tuned.json").read_text()
    table: dict[str, Any] = json.loads(text)
    return table
