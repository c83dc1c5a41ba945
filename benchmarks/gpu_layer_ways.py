"""Tunes the products of a model's layers where they run: between norms, heads and attention."""

from __future__ import annotations

import argparse
import functools
import statistics
from dataclasses import asdict
from typing import Any

import torch
from gpu_chains import chain_weights
from gpu_layers import Step, make_step, run_step
from gpu_products import forget_choices, num_sms, save_table
from gpu_shapes import SHAPES, Model
from gpu_timing import CACHE, REPLAYS, Budget, brief, capture, precompile, replay
from gpu_unseen import candidates, choice_in_layers, has_rows

from quire.kernels.triton.gemm import gemm_tuning
from quire.kernels.triton.gemm.gemm_cost_model import expected_us, rows_timed
from quire.kernels.triton.ops.skinny_gemm import MAX_ROWS

ORDER = ("gate_up", "down", "o", "qkv")  # the largest first
FEWEST, LAYERS = 6, 16  # of large and small models: what they read outgrows the cache
NEAR = 1.35  # times the best way's expected time: what takes longer by itself is not tried
WORTH = 0.997  # of the time so far is what another way has to come to
MOST_FP8_ROWS = 128  # more are the library's, or gpu_rows.py's
Row = dict[str, Any]


def layer_ways(budget: Budget, args: argparse.Namespace, results: list[Row]) -> None:
    """Of each product of a layer the best way, with the best known of the others, twice."""
    cases = [
        (name, size, m)
        for size in args.itemsizes
        for name in args.models
        for m in args.rows
        if m <= (MOST_FP8_ROWS if size == 1 else MAX_ROWS)
    ]
    jobs = [(*case, product) for case in cases for product in ORDER]
    precompile(run_ways_once, jobs, args.workers, budget)
    for name, itemsize in () if args.compile else dict.fromkeys(case[:2] for case in cases):
        model = SHAPES[name]
        weights = [chain_weights(model, itemsize) for _ in range(num_layers(model, itemsize))]
        for m in [case[2] for case in cases if case[:2] == (name, itemsize)]:
            if budget.left < 4:
                print("out of time")
                return
            gemm_tuning.measured.cache_clear()  # without what was tried for other cases
            forget_choices()
            row = tuned(name, itemsize, make_step(model, itemsize, m, weights))
            ways = ", ".join(f"{p} {brief(w['config'] or {})}" for p, w in row["products"].items())
            print(
                f"layer_ways {name} {8 * itemsize:2} bits m={m:3} {row['was_us']:7.2f} to "
                f"{row['us']:7.2f} us a layer; {ways}",
                flush=True,
            )
            results.append(row)
            args.save()  # a run that is cut loses no row


def num_layers(model: Model, itemsize: int) -> int:
    """Of a model, with which ways are timed."""
    products = [n * k for name, (n, k) in model.products().items() if name != "head"]
    enough = -(-4 * CACHE // (itemsize * sum(products)))
    return min(model.layers, LAYERS, max(FEWEST, enough))


def tuned(name: str, itemsize: int, step: Step) -> Row:
    """Microseconds of a layer with the choices so far and with the best ways, and these.

    gained_us: what the best way of a product takes less of a layer than the choice so far.
    """
    m, products = len(step.hidden), SHAPES[name].products()
    before = {product: row_of(name, itemsize, m, product) for product in ORDER}
    best = dict(before)
    for product in 2 * ORDER:
        others = [best | {product: row} for row in rows_to_try(best[product])]
        us = time_by_tables(step, [best, *others])
        quickest = min(range(len(us)), key=lambda i: us[i])
        if us[quickest] < WORTH * us[0]:
            best = others[quickest - 1]
    others = [best | {product: before[product]} for product in ORDER]
    us = time_by_tables(step, [before, best, *others])
    found = {
        product: {"n": products[product][0], "k": products[product][1], "gained_us": each - us[1],
                  "was": before[product]["config"], "config": best[product]["config"]}
        for product, each in zip(ORDER, us[2:], strict=True)
    }  # fmt: skip
    return {"model": name, "m": m, "itemsize": itemsize, "was_us": us[0], "us": us[1],
            "products": found}  # fmt: skip


def part_of(row: Row) -> str:
    """The part of the table that a row belongs to."""
    return "rows" if "itemsize" not in row else "skinny_gemm"


def row_of(name: str, itemsize: int, m: int, product: str) -> Row:
    """What the table has for so many rows, or takes for them."""
    n, k = SHAPES[name].products()[product]
    shape: Row = {"m": m, "n": n, "k": k}
    asked = {"model": name, "product": product, "itemsize": itemsize} | shape
    way: Any = choice_in_layers(asked, num_sms())
    if has_rows(m, itemsize):
        return shape | {"config": way and asdict(way)}
    library = gemm_tuning.library_is_faster(m, n, k, itemsize, num_sms(), hopper=True)
    heads = {"head_dim": SHAPES[name].head_dim} if product == "qkv" else {}
    return shape | {"itemsize": itemsize, "library": library} | heads | {"config": asdict(way)}


def rows_to_try(row: Row) -> list[Row]:
    """With other ways; in FP8 of many rows the library's is one of them."""
    m, n, k, itemsize = row["m"], row["n"], row["k"], row.get("itemsize", 1)
    ways = candidates(m, n, k, itemsize, num_sms())
    us = expected_us(rows_timed(m, itemsize), n, k, itemsize, num_sms(), ways)
    tried: list[dict[str, Any] | None] = [None] if has_rows(m, itemsize) else []
    tried += [asdict(way) for way in ways if us[way] < NEAR * min(us.values())]
    return [row | {"config": config} for config in tried if config != row["config"]]


def time_by_tables(step: Step, tables: list[dict[str, Row]]) -> list[float]:
    """Microseconds of a layer with the products' rows of each, by turns."""
    graphs = []
    for table in tables:
        for row in table.values():
            put(row)
        run_step(step, "joined")
        graphs.append(capture([functools.partial(run_step, step, "joined")], 1)[0])
    times = [[replay(graph) for graph in graphs] for _ in range(2 * REPLAYS)]
    return [statistics.median(each) / len(step.layers) for each in zip(*times, strict=True)]


def put(row: Row) -> None:
    """Into the table in this process."""
    rows = gemm_tuning.measured()[part_of(row)]
    keys = [key for key in ("m", "n", "k", "itemsize") if key in row]
    rows[:] = [each for each in rows if any(each[key] != row[key] for key in keys)] + [row]
    forget_choices()


def run_ways_once(name: str, itemsize: int, m: int, product: str) -> None:
    """For what they leave in the cache of compiled kernels."""
    layer = layer_of(name, itemsize)
    step = make_step(SHAPES[name], itemsize, m, [layer, layer])
    row = row_of(name, itemsize, m, product)
    for each in [row, *rows_to_try(row)]:
        put(each)
        run_step(step, "joined")
    torch.cuda.synchronize()


@functools.cache
def layer_of(name: str, itemsize: int) -> dict[str, Any]:
    """Once for each process."""
    return chain_weights(SHAPES[name], itemsize)


def write_layer_ways(result: dict[str, Any]) -> None:
    """Keep the best ways for `tuning`; what the table has of other shapes stays."""
    for found in result["layer_ways"]:
        for product, way in found["products"].items():
            row = row_of(found["model"], found["itemsize"], found["m"], product)
            put(row | {"config": way["config"]})
    table = gemm_tuning.measured()
    for part in ("skinny_gemm", "rows"):
        table[part].sort(key=lambda row: (-row.get("itemsize", 1), row["n"], row["k"], row["m"]))
    save_table(table)
