"""Times what rules choose for products of models that the tables leave out, beside other ways."""

from __future__ import annotations

import argparse
import functools
from typing import Any

import gpu_rows
from gpu_products import (
    Way,
    case_of,
    compiled_as,
    num_sms,
    product_calls,
    run_once,
    ways_of,
)
from gpu_timing import (
    HELD_OUT,
    MODELS,
    SHAPES,
    UNSEEN,
    Budget,
    brief,
    precompile,
    time_by_turns,
    time_ways,
)

from quire.kernels.triton import fp8, tuning
from quire.kernels.triton.skinny_gemm import MAX_ROWS
from quire.kernels.triton.tuning import way_from

AGAIN = 3  # ways that are timed again, beside the choice and the library's
Case = tuple[int, str, str, int, int, int]  # rows, model, product, N, K, bytes of a number of W


def unseen(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Every product of the models alone, at several numbers of rows."""
    models = [name for name in args.models if name not in MODELS] or [*UNSEEN, *HELD_OUT]
    cases = [
        (m, model, product, n, k, itemsize)
        for m in args.rows
        for itemsize in args.itemsizes
        if m <= MAX_ROWS or has_rows(m, itemsize)
        for model in models
        for product, (n, k) in SHAPES[model].products().items()
    ]
    compile_ways(cases, args.workers, budget)
    for case in () if args.compile else cases:
        if budget.left < 0:
            print("out of time")
            break
        m, model, product, n, k, itemsize = case
        row = {"model": model, "product": product, "m": m, "n": n, "k": k, "itemsize": itemsize}
        row |= time_case(case)
        results.append(row)
        us, best = of_choice(row, num_sms())
        ways = [f"{way['us']:.2f} {brief(way['config'])}" for way in row["ways"][:2]]
        print(
            f"unseen {model} {product:8} {8 * itemsize:2} bits m={m:2} [{n}, {k}] {us:7.2f} us "
            f"{us / best - 1:+.1%}  library {row['library_us']:.2f}  {', '.join(ways)}",
            flush=True,
        )


def compile_ways(cases: list[Case], workers: int, budget: Budget) -> None:
    """In other processes, each kernel once."""
    few: dict[Any, tuple[Any, ...]] = {}
    many: dict[Any, tuple[Any, ...]] = {}
    for m, _, _, n, k, itemsize in cases:
        for way in ways_for(m, n, k, itemsize):
            if has_rows(m, itemsize):
                many[1 << (m - 1).bit_length(), way] = m, way
            else:
                key = compiled_as(m, n, k, way, num_sms()), itemsize
                few[key] = m, n, k, itemsize, way
    precompile(run_once, list(few.values()), workers, budget)
    precompile(gpu_rows.run_once, list(many.values()), workers, budget)


def has_rows(m: int, itemsize: int) -> bool:
    """Whether kernels in front round x, see `fp8.most_rows`."""
    return itemsize == 1 and m > fp8.FEW


def ways_for(m: int, n: int, k: int, itemsize: int) -> list[Way]:
    """All that are timed."""
    if has_rows(m, itemsize):
        return [*gpu_rows.ways_of(m, n, k, num_sms())]
    return ways_of(m, n, k, itemsize, num_sms())


def choice(m: int, product: str, n: int, k: int, itemsize: int, num_sms: int) -> Way | None:
    """What the engine takes; None: the library's, which fuses nothing and so serves heads alone."""
    if has_rows(m, itemsize):
        return tuning.rows_config(m, n, k, num_sms)
    if product == "head" and tuning.library_is_faster(m, n, k, itemsize, num_sms, hopper=True):
        return None
    return tuning.product_config(m, n, k, itemsize, num_sms, hopper=True)


def of_choice(row: dict[str, Any], num_sms: int) -> tuple[float, float]:
    """Microseconds of the choice, and of the best that the engine could have chosen."""
    m, itemsize, ways = row["m"], row["itemsize"], row["ways"]
    taken = choice(m, row["product"], row["n"], row["k"], itemsize, num_sms)
    us = {way_from(way["config"]): way["us"] for way in ways} | {None: row["library_us"]}
    by_library = row["product"] == "head" or has_rows(m, itemsize)
    return us[taken], min(ways[0]["us"], row["library_us"] if by_library else ways[0]["us"])


def time_case(case: Case) -> dict[str, Any]:
    """The library's microseconds and the ways: first the choice and the best, timed by turns."""
    m, model, product, n, k, itemsize = case
    given = case_of(m, n, k, itemsize)
    make = functools.partial(product_calls, given)
    label = f"{m} {model} {product} {itemsize}"
    rows = time_ways(ways_for(m, n, k, itemsize), make, given.expected, label, least_us=200)
    near = [way_from(row["config"]) for row in rows[:AGAIN]]
    taken = choice(m, product, n, k, itemsize, num_sms())
    calls: dict[Any, Any] = {way: make(way) for way in [*near, taken] if way}
    again = time_by_turns(calls | {None: given.library})
    for row in rows:
        row["us"] = again.get(way_from(row["config"]), row["us"])
    rows.sort(key=lambda row: (way_from(row["config"]) not in again, row["us"]))
    return {"library_us": again[None], "ways": rows}
