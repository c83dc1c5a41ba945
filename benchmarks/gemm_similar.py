"""Loss by GEMM configs of similar shapes, against the best ones, for shapes that nobody tuned.

    python benchmarks/gemm_similar.py          # leaves one model at a time out of the table
    python benchmarks/gemm_similar.py --fit    # finds constants of gemm_tuning.py (minutes)

results/gemm_timings.json has what all configs took on an H200 for the shapes of 86 models; a row is
bytes of an element, n, k, rows of x, microseconds of the best config and of the library, indices of
configs, by how many thousandths each is slower than the best, and indices of configs that were not
timed. Those that take more than 1.6 times as long are left out. What was tried is told in
docs/decisions/gemm-configs.md.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict
from typing import NamedTuple

import record
from gpu_shapes import HELD_OUT, SHAPES, TIMED

from quire.kernels.triton.gemm import gemm_tuning
from quire.kernels.triton.launch.gemm_config import GemmConfig, config_from

NUM_SMS = 132  # of the GPU that was measured
LEFT_OUT = 0.6  # loss of configs that are not listed, at least
Shape = tuple[int, int]


class Timing(NamedTuple):
    """Of a shape: loss of each config (0.1 is 10 % slower than the best), the library's."""

    m: int
    losses: dict[GemmConfig, float]
    library: float
    not_timed: set[GemmConfig]


class Loss(NamedTuple):
    """Loss of the config chosen for a model's GEMM, against the best."""

    model: str
    linear: str
    m: int
    n: int
    k: int
    itemsize: int
    loss: float


def timings() -> dict[tuple[int, int, int], list[Timing]]:
    """Timings by itemsize, n and k."""
    given = record.tracked("gemm_timings")
    configs = [config_from(fields) for fields in given["configs"]]
    found = defaultdict(list)
    for itemsize, n, k, m, best_us, library_us, indices, slower, *rest in given["rows"]:
        losses = {configs[i]: each / 1000 for i, each in zip(indices, slower, strict=True)}
        not_timed = {configs[i] for each in rest for i in each}
        found[itemsize, n, k].append(Timing(m, losses, library_us / best_us - 1, not_timed))
    return dict(found)


def losses(models: list[str], *, leave_out: bool = True) -> list[Loss]:
    """Losses of all GEMMs of these models, with a table without the model's own shapes."""
    known, found = timings(), []
    tuned = set(tuned_in_layers())
    for model in models:
        shapes = SHAPES[model].linear_shapes()
        without = set(shapes.values()) if leave_out else set()
        for linear, (n, k) in shapes.items():
            for itemsize in (1, 2) if (n, k) not in tuned else ():
                for timing in known.get((itemsize, n, k), ()):
                    loss = loss_of(timing, linear, n, k, itemsize, without)
                    if loss is not None:
                        found.append(Loss(model, linear, timing.m, n, k, itemsize, loss))
    return found


def tuned_in_layers() -> list[Shape]:
    """Shapes of the two Llama models."""
    return [shape for name in ("8b", "1b") for shape in SHAPES[name].linear_shapes().values()]


def loss_of(
    timing: Timing, linear: str, n: int, k: int, itemsize: int, without: set[Shape]
) -> float | None:
    """Of what is chosen; the best is the library where the engine could leave the GEMM to it.

    None if what is chosen was not timed.
    """
    by_rows = itemsize == 1 and timing.m > 16
    least = min(0.0, timing.library) if by_rows or linear == "head" else 0.0
    if by_rows and gemm_tuning.library_is_expected_faster(timing.m, n, k, NUM_SMS):
        return (1 + timing.library) / (1 + least) - 1
    best = gemm_tuning.similar(timing.m, n, k, itemsize, NUM_SMS, without)
    assert best.config is not None
    if best.config in timing.not_timed:
        return None
    return (1 + timing.losses.get(best.config, LEFT_OUT)) / (1 + least) - 1


def summary(found: list[Loss]) -> dict[str, float]:
    """Mean, 90th and 99th percentile and maximum."""
    ordered = sorted(each.loss for each in found)
    parts = {"p90": 0.9, "p99": 0.99, "max": 1.0}
    quantiles = {name: ordered[math.ceil(part * len(ordered)) - 1] for name, part in parts.items()}
    return {"n": len(ordered), "mean": sum(ordered) / len(ordered)} | quantiles


def fit(rounds: int) -> None:
    """Try constants near those that there are, and keep what makes losses smaller."""
    rng, models = random.Random(0), list(TIMED)
    weights, costs, least = gemm_tuning.WEIGHTS, gemm_tuning.COSTS, math.inf
    for _ in range(rounds):
        tried = [tuple(round(x * math.exp(rng.gauss(0, 0.2)), 2) for x in weights)]
        tried.append(tuple(round(x * math.exp(rng.gauss(0, 0.2)), 2) for x in costs))
        gemm_tuning.WEIGHTS, gemm_tuning.COSTS = tried if least < math.inf else (weights, costs)
        gemm_tuning._features.cache_clear()
        found = [each.loss for each in losses(models)]
        score = sum(found) / len(found) + math.sqrt(sum(x * x for x in found) / len(found))
        if score < least:
            weights, costs, least = gemm_tuning.WEIGHTS, gemm_tuning.COSTS, score
            print(f"{score:.4f} WEIGHTS = {weights} COSTS = {costs}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", type=int, default=0, metavar="ROUNDS")
    args = parser.parse_args()
    if args.fit:
        fit(args.fit)
        return
    for name, models in (("left out", TIMED), ("held out", HELD_OUT)):
        found = losses(list(models))
        print(name, {key: round(value, 4) for key, value in summary(found).items()})
        for m, itemsize in sorted({(each.m, each.itemsize) for each in found}):
            part = [each for each in found if (each.m, each.itemsize) == (m, itemsize)]
            print(f"  {8 * itemsize:2} bits, {m:3} rows: mean {summary(part)['mean']:.2%}")
        for each in sorted(found, key=lambda each: -each.loss)[:5]:
            print(f"  {each.loss:.1%}", *each[:-1])


if __name__ == "__main__":
    main()
