"""The table of shapes with the times of all ways: makes it, and judges what is chosen by it.

python benchmarks/gpu_neighbours.py            # leave one model out: by how much choices are behind
python benchmarks/gpu_neighbours.py --table    # makes the table, from the results of gpu_unseen.py
python benchmarks/gpu_neighbours.py --fit      # finds the scales (minutes)
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import record
from gpu_shapes import HELD_OUT, TIMED
from gpu_unseen import candidates, has_rows, of_choice

from quire.kernels.triton.gemm import gemm_cost_model, gemm_tuning
from quire.kernels.triton.launch.gemm_config import Way, way_from

TABLE = Path(gemm_cost_model.__file__).parent / "timed.json"
TOLD = ("model", "product", "m", "n", "k", "itemsize")
NUM_SMS = 132  # of the GPU that the results are of
Rows = list[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--fit", action="store_true")
    args = parser.parse_args()
    rows = [row for row in recorded() if row["model"] in TIMED]
    if args.table:
        write_table(rows)
    if args.fit:
        gemm_cost_model.COSTS = costs(rows)
        gemm_cost_model.SCALES = fitted(rows)
    print(f"costs {gemm_cost_model.COSTS}, scales {gemm_cost_model.SCALES}")
    for name, found in judged().items():
        for m, itemsize in sorted({(row["m"], row["itemsize"]) for row, _ in found}):
            above = [x for row, x in found if (row["m"], row["itemsize"]) == (m, itemsize)]
            mean = sum(above) / len(above)
            print(f"{name} {8 * itemsize:2} bits m={m:3} mean {mean:.2%}, at most {max(above):.1%}")
        for row, x in sorted(found, key=lambda each: -each[1])[:8]:
            print(f"{x:.1%}", *(row[key] for key in TOLD))


def recorded() -> Rows:
    """Products with the times of all ways, of all runs; the last if one is in several."""
    found = {}
    for file in sorted(record.RESULTS.glob("gpu_unseen*.json")):
        result = json.loads(file.read_text())
        for run in (result, *result.get("later_runs", ())):
            for row in run["unseen"]:
                found[tuple(row[key] for key in ("model", "product", "m", "itemsize"))] = row
    return list(found.values())


def write_table(rows: Rows) -> None:
    """Keep the times of all ways of each shape, the last if there are several."""
    ways: dict[str, int] = {}
    kept: dict[tuple[int, ...], dict[str, Any]] = {}
    for row in rows:
        if gemm_cost_model.rows_timed(row["m"], row["itemsize"]) != row["m"]:
            continue
        shape = {key: row[key] for key in ("m", "itemsize", "n", "k")}
        worth = worth_trying(row)
        found = {}
        for way in row["ways"]:
            if way_from(way["config"]) in worth:
                index = ways.setdefault(json.dumps(way["config"]), len(ways))
                found[index] = float(f"{way['us']:.4g}")
        given: dict[str, Any] = {"ways": sorted(found), "us": [found[i] for i in sorted(found)]}
        if has_rows(row["m"], row["itemsize"]):
            given["library_us"] = float(f"{row['library_us']:.4g}")
        kept[tuple(shape.values())] = shape | given
    lines = ",\n".join(json.dumps(row) for _, row in sorted(kept.items()))
    kinds = ",\n".join(ways)
    TABLE.write_text(f'{{"num_sms": {NUM_SMS}, "ways": [\n{kinds}\n], "shapes": [\n{lines}\n]}}\n')
    gemm_cost_model.timed.cache_clear()


def worth_trying(row: dict[str, Any]) -> set[Way]:
    """The ways that a choice is among."""
    return {*candidates(row["m"], row["n"], row["k"], row["itemsize"], NUM_SMS)}


def judged(num_sms: int = NUM_SMS) -> dict[str, list[tuple[dict[str, Any], float]]]:
    """By how much what is chosen takes longer than the best, of products that nobody tuned.

    left: of the models of the table, leaving out one at a time; later: of others, but for shapes
    that the table has of another model; heads: of their products that make heads, with what it
    takes to turn these, where doing so inside saves that.
    """
    tuned = {(row["n"], row["k"]) for row in gemm_tuning.measured()["skinny_gemm"]}
    rows = [row for row in recorded() if (row["n"], row["k"]) not in tuned]
    known = {(row["n"], row["k"]) for row in gemm_cost_model.timed()["shapes"]}
    later: Rows = [r for r in rows if r["model"] in HELD_OUT and (r["n"], r["k"]) not in known]
    alone = [{key: row[key] for key in row if key != "heads"} for row in later]
    heads = [row for row in later if "heads" in row and (row["itemsize"] == 1 or row["m"] <= 4)]
    return {"left": left_out([row for row in rows if row["model"] in TIMED])} | {
        name: [(row, us / best - 1) for row in group for us, best in [of_choice(row, num_sms)]]
        for name, group in (("later", alone), ("heads", heads))
    }


def left_out(rows: Rows) -> list[tuple[dict[str, Any], float]]:
    """By how much what is chosen takes longer than the best, a model's own shapes left out."""
    shapes: dict[str, set[tuple[int, int]]] = {}
    for row in rows:
        shapes.setdefault(row["model"], set()).add((row["n"], row["k"]))
    above = []
    for row in rows:
        us = {way_from(way["config"]): way["us"] for way in row["ways"]}
        worth = [way for way in us if way in worth_trying(row)]
        if not worth:
            continue
        m, n, k, itemsize = (row[key] for key in ("m", "n", "k", "itemsize"))
        best, few = min(us.values()), gemm_cost_model.rows_timed(m, itemsize)
        if row["product"] == "head" or has_rows(m, itemsize):
            best = min(best, row["library_us"])
        if has_rows(m, itemsize) and gemm_tuning.library_rule(m, n, k, NUM_SMS):
            above.append((row, row["library_us"] / best - 1))
            continue
        expected = gemm_cost_model.expected_us(
            few, n, k, itemsize, NUM_SMS, worth, shapes[row["model"]]
        )
        above.append((row, us[min(worth, key=lambda way: expected[way])] / best - 1))
    return above


def costs(rows: Rows) -> tuple[float, ...]:
    """Of the formula's terms: least squares of relative errors, above all of ways near the best."""
    known, weights = [], []
    for row in rows:
        shape = (row[key] for key in ("m", "n", "k", "itemsize"))
        m, n, k, itemsize = shape
        best = min(way["us"] for way in row["ways"])
        for us, way in ((way["us"], way_from(way["config"])) for way in row["ways"]):
            weight = math.exp((1 - us / best) / 0.6)
            terms = gemm_cost_model.terms(m, n, k, itemsize, NUM_SMS, way)
            known.append([weight * term / us for term in terms])
            weights.append(weight)
    found = np.linalg.lstsq(np.array(known), np.array(weights), rcond=None)[0]
    return tuple(float(f"{cost:.3g}") for cost in found)


def fitted(rows: Rows) -> tuple[float, ...]:
    """Scales, each halved or doubled as long as that brings choices nearer to the best."""
    scales, best, better = gemm_cost_model.SCALES, score(rows), True
    while better:
        better = False
        for part, factor in ((part, factor) for part in range(len(scales)) for factor in (0.5, 2)):
            tried = tuple(s * factor if i == part else s for i, s in enumerate(scales))
            gemm_cost_model.SCALES = tried  # type: ignore[assignment]
            found = score(rows)
            if found < best:
                scales, best, better = tried, found, True
                print(f"{best:.4f} {scales}", flush=True)
    return scales


def score(rows: Rows) -> float:
    """The mean of what choices are behind, and the root of the mean of squares."""
    above = [x for _, x in left_out(rows)]
    return sum(above) / len(above) + math.sqrt(sum(x * x for x in above) / len(above))


if __name__ == "__main__":
    main()
