"""The best rates of a device, their measurement on a CPU, and the work of attention. No torch.

Two rates bound every operation (Williams et al., 2009): bytes a second, by reading and copying more
than the caches hold, and FLOP a second, by one large matrix product. torch_roofline.py measures
them with PyTorch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from quire.array_types import Array
from quire.kernels.cpu import native
from quire.kernels.cpu.array_ops import linear
from quire.kernels.formats.native_format import BLOCK, NativeFormat
from quire.kernels.operands import PackedWeight

Call = Callable[[], object]
T = TypeVar("T")

LEAST_SECONDS = 0.2  # of repeating what is timed
LEAST_RUNS, MOST_RUNS = 3, 50
_SIDE = 1024  # of the matrices of the FLOP probe
_READ_ROWS, _READ_COLUMNS = 1 << 14, 1 << 12  # of the float32 weight of the read probe: 256 MiB
_ONE = {"float32": np.float32(1), "bfloat16": np.uint16(0x3F80)}


@dataclass(frozen=True, slots=True)
class Roofline:
    """Measured rates of a device for one data type.

    fp8_flops_per_second: of products of FP8 by FP8; None where they are not made so.
    """

    bytes_per_second: float
    flops_per_second: float
    fp8_flops_per_second: float | None = None

    def floor(self, num_bytes: float, flops: float, *, in_fp8: bool = False) -> float:
        """The least seconds for such work. in_fp8: by weights in FP8."""
        return max(num_bytes / self.bytes_per_second, self._arithmetic(flops, in_fp8))

    def is_memory_bound(self, num_bytes: float, flops: float, *, in_fp8: bool = False) -> bool:
        """Whether the bytes take longer than the arithmetic."""
        return num_bytes / self.bytes_per_second >= self._arithmetic(flops, in_fp8)

    def _arithmetic(self, flops: float, in_fp8: bool) -> float:
        rate = self.fp8_flops_per_second if in_fp8 else None
        return flops / (rate or self.flops_per_second)


def num_keys(num_queries: int, seq_len: int, window: int | None) -> int:
    """Keys that the last queries of a sequence see, each counted once."""
    return seq_len if window is None else min(seq_len, window + num_queries - 1)


def num_pairs(num_queries: int, seq_len: int, window: int | None) -> int:
    """Pairs of a query and a key that it sees."""
    seen = np.arange(seq_len - num_queries + 1, seq_len + 1)
    return int((seen if window is None else np.minimum(seen, window)).sum())


def measure_host_roofline(dtype: str) -> Roofline:
    """Rates of this CPU by the compiled kernels, with as many threads as they take.

    Reading is a matrix product of one row, arithmetic one of many rows in dtype.
    """
    row, weight = (
        _ones((1, _READ_COLUMNS), "float32"),
        _packed(_READ_ROWS, _READ_COLUMNS, "float32"),
    )
    num_bytes = weight.packed.nbytes
    reading = num_bytes / median_seconds(lambda: linear(row, weight, None))
    count = native.num_threads()
    sources = np.array_split(weight.packed, count)
    targets = np.array_split(np.ones_like(weight.packed), count)
    with ThreadPoolExecutor(count) as pool:
        copy = median_seconds(lambda: list(pool.map(np.copyto, targets, sources)))
    rows, square = _ones((_SIDE, _SIDE), dtype), _packed(_SIDE, _SIDE, dtype)
    flops = 2 * _SIDE**3 / median_seconds(lambda: linear(rows, square, None))
    return Roofline(max(reading, 2 * num_bytes / copy), flops)


def _ones(shape: tuple[int, ...], dtype: str) -> Array:
    return np.full(shape, _ONE[dtype])


def _packed(n: int, k: int, dtype: str) -> PackedWeight:
    """A weight of ones, packed: see `Format` in quire_cpu.h."""
    if dtype == "float32":
        return PackedWeight(_ones((n // BLOCK, k, BLOCK), dtype), n, k, 0, NativeFormat.FLOAT32)
    return PackedWeight(
        _ones((n // BLOCK, k // 2, BLOCK, 2), dtype), n, k, 0, NativeFormat.BFLOAT16
    )


def median_seconds(call: Call) -> float:
    """Seconds that a call takes, behind one that is not counted: the median of several."""
    call()

    def run() -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    return statistics.median(repeat(run))


def repeat(run: Callable[[], T]) -> list[T]:
    """Results of several runs, for LEAST_SECONDS."""
    found: list[T] = []
    begin = time.monotonic()
    while len(found) < LEAST_RUNS or (
        len(found) < MOST_RUNS and time.monotonic() - begin < LEAST_SECONDS
    ):
        found.append(run())
    return found
