"""The result of compare_builds.py: figures of two builds by measurement, and their ratios."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import record

RATES = ("tok_s", "req_s")  # how figures end that are better when greater
SIDES = ("old", "new")
UNDISTURBED = 0.9  # the quantile of rates (of times 1 less this) that other programs hardly touch


class Ratios:
    """Figures of both builds, in the order in which they were measured."""

    def __init__(self, name: str, folder: Path, device: str) -> None:
        self._name, self._folder, self._device = name, folder, device
        self._values: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
        self.errors: list[str] = []

    def add(self, row: str, figure: str, build: int, value: float) -> None:
        """Keep a value of build 0 (old) or 1 (new)."""
        self._values.setdefault((row, figure), ([], []))[build].append(round(value, 4))

    def least(self, row: str, figure: str) -> float:
        """The lower of both builds' newest values. Raises KeyError before both have one."""
        return min(values[-1] for values in self._values[row, figure])

    def rows(self) -> list[dict[str, Any]]:
        """For each figure: the median ratio new/old, the least, the greatest, and the values.

        "undisturbed": the ratio of the values that one measurement in ten of each build exceeds (of
        times: stays below).
        """
        found = []
        for (row, figure), (old, new) in self._values.items():
            ratios = [round(b / a, 4) for a, b in zip(old, new, strict=False) if a]
            if ratios:
                quantile = UNDISTURBED if figure.endswith(RATES) else 1 - UNDISTURBED
                best = float(np.quantile(new, quantile) / np.quantile(old, quantile))
                ratio = {"ratio": round(statistics.median(ratios), 4)}
                ratio |= {"undisturbed": round(best, 4)} if len(ratios) >= 10 else {}
                range_of = {"least": min(ratios), "most": max(ratios), "n": len(ratios)}
                values = {"old": old, "new": new}
                found.append({"row": row, "figure": figure} | ratio | range_of | values)
        return found

    def save(self) -> None:
        """Write the result file as far as it is known."""
        found = {"device": self._device, "rows": self.rows(), "errors": self.errors}
        record.save(self._name, found, self._folder)

    def show(self) -> None:
        """Print a line for each figure, medians of both builds, and the errors."""
        print(
            f"{'row':32} {'figure':22} {'old':>10} {'new':>10} {'new/old':>8}  least   most  n best"
        )
        for row in self.rows():
            old, new = (statistics.median(row[side]) for side in SIDES)
            print(
                f"{row['row']:32} {row['figure']:22} {old:10.3f} {new:10.3f} {row['ratio']:8.3f}  "
                f"{row['least']:.3f}  {row['most']:.3f} {row['n']:2}  {row.get('undisturbed', '')}"
            )
        for error in self.errors:
            print(error)
