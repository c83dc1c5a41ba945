"""The curves beside vLLM: throughput and time between tokens, by requests at a time.

    python benchmarks/serving_plot.py                      # writes docs/images/beside-vllm.png

Reads what gpu_serving.py saved and vLLM's figures; measures nothing. A panel is a workload with a
form of weights: tokens/s to the right, median milliseconds between tokens upwards, a point for each
number of requests at a time. Further right and lower is better.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from record import require, tracked

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "beside-vllm.png"
PANELS = {
    ("voice-8b", "bf16"): "8B, bf16",
    ("voice-8b", "fp8"): "8B, FP8",
    ("voice-8b-shared", "bf16"): "8B, bf16, 1,750 of 1,950 tokens shared",
}
SOURCES = {"vLLM 0.26.0": "vllm_serving", "Quire": "gpu_serving_server"}
STYLES = {"vLLM 0.26.0": {"color": "0.55"}, "Quire": {"color": "tab:blue"}}

Row = dict[str, Any]


def curve(levels: list[Row], workload: str, label: str) -> list[tuple[float, float, float]]:
    """(requests at a time, tokens/s, median ms between tokens) of each level that has all three."""
    names = ("level", "tok_s", "itl_p50")
    rows = [row for row in levels if (row["workload"], row["label"]) == (workload, label)]
    return sorted(tuple(row[n] for n in names) for row in rows if all(n in row for n in names))


def plot(results: dict[str, list[Row]], target: Path) -> None:
    """One panel a workload. results: the levels of each engine."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(13, 3.8))
    for panel, (key, title) in zip(panels, PANELS.items(), strict=True):
        for engine, levels in results.items():
            _draw(panel, engine, curve(levels, *key))
        panel.margins(0.1)
        panel.set(title=title, xlabel="tokens/s", xlim=(0, None), ylim=(0, None))
    panels[0].set_ylabel("ms between tokens, median")
    panels[0].legend(frameon=False)
    figure.suptitle("One H200; the number at a point is how many requests run at a time")
    figure.tight_layout()
    figure.savefig(target, dpi=110)


def _draw(panel: Any, engine: str, points: list[tuple[float, float, float]]) -> None:
    """One engine's curve; every point says its number of requests."""
    at_a_time, rates, times = zip(*points, strict=True)
    panel.plot(rates, times, "o-", label=engine, markersize=4, **STYLES[engine])
    below = engine == "Quire"
    for number, rate, time in zip(at_a_time, rates, times, strict=True):
        panel.annotate(
            f"{number:g}",
            (rate, time),
            (4, -10) if below else (-4, 5),
            textcoords="offset points",
            ha="left" if below else "right",
            fontsize=7,
            color=STYLES[engine]["color"],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, default=PICTURE)
    args = parser.parse_args()
    require("matplotlib")
    plot(
        {engine: tracked(name)["levels"] for engine, name in SOURCES.items()},
        args.target,
    )


if __name__ == "__main__":
    main()
