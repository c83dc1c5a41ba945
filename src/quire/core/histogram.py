"""Histograms that are cheap enough to observe every token, and their bucket bounds. No torch.

A bucket counts values up to its bound, the last one all larger values; buckets are not cumulative
here. Bounds are those that dashboards for vLLM expect, with finer ones at the fast end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import msgspec

# in seconds
TTFT_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
ITL_BOUNDS = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4,
    0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BOUNDS = (
    0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
# 1 to 500,000 tokens of a request
TOKEN_BOUNDS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
STEP_TOKEN_BOUNDS = tuple(float(1 << power) for power in range(15))  # tokens of a step
STEP_SECONDS_BOUNDS = ITL_BOUNDS
COUNT_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)


class HistogramData(msgspec.Struct, frozen=True, array_like=True):
    """A histogram's content as a message; no counts: an empty histogram."""

    counts: list[int] = []
    sum: float = 0.0


class Histogram:
    """Counts per bucket and the sum of all values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """The number of values that were observed."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Count values, which is quicker than one by one: many are equal."""
        bounds, counts = self.bounds, self.counts
        for value, count in Counter(values).items():
            counts[bisect_left(bounds, value)] += count
        self.sum += sum(values)

    def add(self, data: HistogramData) -> None:
        """Add the content of another histogram with the same bounds."""
        if data.counts:
            assert len(data.counts) == len(self.counts), "histograms of different bounds"
            self.counts = [a + b for a, b in zip(self.counts, data.counts, strict=True)]
            self.sum += data.sum

    def data(self) -> HistogramData:
        """A copy of the content as a message."""
        return HistogramData(self.counts.copy(), self.sum)
