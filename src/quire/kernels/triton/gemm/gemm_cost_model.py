"""How long ways of a product take for a shape that nobody tuned: by a formula, and as shapes alike.

The formula knows what bounds a way: a launch, the bytes of W, those that the busiest multiprocessor
reads, how often a ring is filled, the parts that programs add up. It is some 10 % off, and alike
where ways give multiprocessors work alike: by how much is the mean of what was timed, weighted by a
Gaussian of the distance (Nadaraya and Watson's kernel regression). Constants are those that
benchmarks/gpu_neighbours.py finds. What was timed is a product behind itself; in layers, ways whose
programs may crowd on some multiprocessors take longer.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Collection, Iterable
from dataclasses import replace
from importlib import resources
from typing import Any

from quire.kernels.triton.launch.gemm_config import RingConfig, Way, room_for, tile_rows, way_from

Place = tuple[float, float, float, float]
Shape = tuple[int, int]  # n, k
COSTS = (1.83, 0.202, 2.95, 0.469, 1.3)  # microseconds for each of `terms`
SCALES = (160.0, 10.0, 64.0, 64.0)  # what a distance of 1 in each part of a place weighs
# What nothing alike was timed of is presumed to take 10 % longer; counts as much as this.
PRESUMED, WEIGHT = 0.1, 1e-3
CROWDED = 0.05  # longer in layers, if half of the places are empty or more


def expected_us(
    m: int,
    n: int,
    k: int,
    itemsize: int,
    num_sms: int,
    ways: Iterable[Way],
    without: Collection[Shape] = (),
) -> dict[Way, float]:
    """Microseconds of each way for x [m, k] and W [n, k], m being a number of rows that was timed.

    without: shapes not to look at.
    """
    known = _known(m, itemsize)
    found = {}
    for way in ways:
        programs, read, split, filled = place(n, k, itemsize, num_sms, way)
        total, weights = WEIGHT * PRESUMED, WEIGHT
        for there, shape, ratio in known.get(_kind(way), ()):
            far = (
                SCALES[0] * (programs - there[0]) ** 2
                + SCALES[1] * (read - there[1]) ** 2
                + SCALES[2] * (split - there[2]) ** 2
                + SCALES[3] * (filled - there[3]) ** 2
            )
            if far < 40 and shape not in without:
                weight = math.exp(-far / 2)
                total, weights = total + weight * ratio, weights + weight
        alone = _by_formula(m, n, k, itemsize, num_sms, way) * math.exp(total / weights)
        found[way] = alone * (1 + CROWDED * _crowding(m, n, itemsize, num_sms, way))
    return found


@functools.cache
def library_us(m: int, n: int, k: int) -> float | None:
    """Microseconds of the library for x [m, k] and W [n, k] in FP8, if these were timed."""
    shape = {"m": m, "itemsize": 1, "n": n, "k": k}
    rows = [row for row in timed()["shapes"] if shape.items() <= row.items()]
    return float(rows[0]["library_us"]) if rows else None


def terms(m: int, n: int, k: int, itemsize: int, num_sms: int, way: Way) -> tuple[float, ...]:
    """What the formula knows: one, megabytes of W, those of the busiest multiprocessor, how often a
    program fills its ring, parts of 32 KiB that are added up."""
    programs = _programs(n, num_sms, way)
    busiest = math.ceil(programs) if programs < 4 else programs
    step, steps = _steps(k, itemsize, way)
    read, split = steps * step, max(1, way.split)
    parts = split * way.block_n * tile_rows(m) / 2**13 if split > 1 else 0.0
    mega = itemsize / 1e6 * n * k
    return 1.0, mega, busiest * read * way.block_n / 1e6, read / (step * way.stages), parts


def _by_formula(m: int, n: int, k: int, itemsize: int, num_sms: int, way: Way) -> float:
    known = terms(m, n, k, itemsize, num_sms, way)
    return sum(cost * term for cost, term in zip(COSTS, known, strict=True))


def place(n: int, k: int, itemsize: int, num_sms: int, way: Way) -> Place:
    """Where a way stands: programs on a multiprocessor, bytes of a row for the busiest and how many
    share a tile, all three as logarithms, and how much of the last round of programs has work."""
    programs = _programs(n, num_sms, way)
    step, steps = _steps(k, itemsize, way)
    filled = programs / math.ceil(programs)
    return math.log(programs), math.log(steps * step), math.log(max(1, way.split)), filled


def _crowding(m: int, n: int, itemsize: int, num_sms: int, way: Way) -> float:
    """Empty places for each program on a multiprocessor, one at most; none if some programs wait.

    Where the kernel in front ends on one multiprocessor before others, programs then take all
    places there, and none is left for the others. With more rows in the ring that was not seen.
    """
    programs, places = _programs(n, num_sms, way), min(3, room_for(m, itemsize, way))
    if programs > places or (m > 16 and isinstance(way, RingConfig)):
        return 0.0
    return min(1.0, places / programs - 1)


def _programs(n: int, num_sms: int, way: Way) -> float:
    """On each multiprocessor, on average."""
    return -(-n // way.block_n) * max(1, way.split) / num_sms


def _steps(k: int, itemsize: int, way: Way) -> tuple[int, int]:
    """Bytes of a row that a step reads, and the steps of the program that has most of them."""
    step = 128 * way.tiles if isinstance(way, RingConfig) else way.block_k * itemsize
    return step, math.ceil(math.ceil(k * itemsize / step) / max(1, way.split))


def _kind(way: Way) -> Way:
    """What two ways have in common that differ in how many programs share a tile."""
    return replace(way, split=0)


@functools.cache
def rows_timed(m: int, itemsize: int) -> int:
    """The nearest number of rows from m upwards that ways were timed for, or one for up to four."""
    known = {row["m"] for row in timed()["shapes"] if row["itemsize"] == itemsize}
    return 1 if m <= 4 else int(min(each for each in known if each >= m))


@functools.cache
def _known(m: int, itemsize: int) -> dict[Way, list[tuple[Place, Shape, float]]]:
    """Of each kind of way: places, the shapes that they are of, logarithms of time by formula's."""
    table = timed()
    ways, num_sms = [way_from(config) for config in table["ways"]], table["num_sms"]
    known: dict[Way, list[tuple[Place, Shape, float]]] = {}
    for row in table["shapes"]:
        if (row["m"], row["itemsize"]) != (m, itemsize):
            continue
        n, k = row["n"], row["k"]
        for way, us in zip((ways[index] for index in row["ways"]), row["us"], strict=True):
            ratio = math.log(us / _by_formula(m, n, k, itemsize, num_sms, way))
            found = known.setdefault(_kind(way), [])
            found.append((place(n, k, itemsize, num_sms, way), (n, k), ratio))
    return known


@functools.cache
def timed() -> dict[str, Any]:
    """The table of shapes with the times of their ways, from benchmarks/gpu_neighbours.py."""
    text = (resources.files("quire.kernels.triton.gemm") / "timed.json").read_text()
    table: dict[str, Any] = json.loads(text)
    return table
