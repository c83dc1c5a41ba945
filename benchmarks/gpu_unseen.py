"""Times all ways of models' products: of those that choices follow from, and of those left out."""

from __future__ import annotations

import argparse
import functools
from typing import Any

import gpu_rows
from gpu_heads import HEAD_DIM, run_heads_once, time_heads
from gpu_products import Way, case_of, compiled_as, num_sms, product_calls, run_once
from gpu_shapes import HELD_OUT, MODELS, SHAPES, TIMED
from gpu_timing import Budget, brief, precompile, time_by_turns, time_ways

from quire.kernels.triton.gemm import gemm_tuning
from quire.kernels.triton.launch.gemm_config import rows_ways_for, way_from, ways_for
from quire.kernels.triton.ops import fp8_linear
from quire.kernels.triton.ops.skinny_gemm import MAX_ROWS

AGAIN = 3  # ways that are timed again, beside the choice and the library's
Case = tuple[int, str, str, int, int, int]  # rows, model, product, N, K, bytes of a number of W


def unseen(budget: Budget, args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Every product of the models alone, at several numbers of rows."""
    models = args.models if args.models != list(MODELS) else [*TIMED, *HELD_OUT]
    cases = [
        (m, model, product, n, k, itemsize)
        for m in args.rows
        for itemsize in args.itemsizes
        if m <= MAX_ROWS or has_rows(m, itemsize)
        for model in models
        for product, (n, k) in SHAPES[model].products().items()
        if product in args.products
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
        heads = [f"{way['us']:.2f} {brief(way)}" for way in row.get("heads", ())[:2]]
        print(
            f"unseen {model} {product:8} {8 * itemsize:2} bits m={m:2} [{n}, {k}] {us:7.2f} us "
            f"{us / best - 1:+.1%}  library {row['library_us']:.2f}  {', '.join(ways + heads)}",
            flush=True,
        )


def compile_ways(cases: list[Case], workers: int, budget: Budget) -> None:
    """In other processes, each kernel once."""
    few: dict[Any, tuple[Any, ...]] = {}
    many: dict[Any, tuple[Any, ...]] = {}
    heads: dict[Any, tuple[Any, ...]] = {}
    for m, model, product, n, k, itemsize in cases:
        for way in candidates(m, n, k, itemsize, num_sms()):
            if has_rows(m, itemsize):
                many[1 << (m - 1).bit_length(), way] = m, way
                continue
            key = compiled_as(m, n, k, way, num_sms()), itemsize
            few[key] = m, small(n), k, itemsize, way
            if turns(m, model, product, itemsize):
                heads[n, itemsize] = m, n, itemsize, None
                if way.block_n % HEAD_DIM == 0:
                    heads[key] = m, n, itemsize, way
    precompile(run_once, list(few.values()), workers, budget)
    precompile(gpu_rows.run_once, list(many.values()), workers, budget)
    precompile(run_heads_once, list(heads.values()), workers, budget)


def small(n: int) -> int:
    """Fewer rows of W that make the same kernel."""
    return n if n < 2**14 else 2**13 + n % 2**13


def has_rows(m: int, itemsize: int) -> bool:
    """Whether kernels in front round x, see `fp8.most_rows`."""
    return itemsize == 1 and m > fp8_linear.FEW


def turns(m: int, model: str, product: str, itemsize: int) -> bool:
    """Whether a layer could turn heads inside of this product, by some of its ways."""
    return product == "qkv" and SHAPES[model].head_dim == HEAD_DIM and not has_rows(m, itemsize)


def candidates(m: int, n: int, k: int, itemsize: int, num_sms: int) -> list[Way]:
    """All ways that are timed, and that a choice is among."""
    if has_rows(m, itemsize):
        return [*rows_ways_for(m, n, k, num_sms)]
    return ways_for(m, n, k, itemsize, num_sms)


def choice(row: dict[str, Any], num_sms: int) -> Way | None:
    """What the engine takes; None: the library's, which fuses nothing and so serves heads alone."""
    shape = m, n, k, itemsize = row["m"], row["n"], row["k"], row["itemsize"]
    if has_rows(m, itemsize):
        return gemm_tuning.rows_config(m, n, k, num_sms)
    if row["product"] == "head" and gemm_tuning.library_is_faster(*shape, num_sms, hopper=True):
        return None
    return gemm_tuning.product_config(*shape, num_sms, hopper=True)


def choice_of_heads(row: dict[str, Any], num_sms: int) -> tuple[bool, Way]:
    """Whether the engine turns heads inside of the product, and the way."""
    shape = row["m"], row["n"], row["k"], row["itemsize"]
    model = SHAPES[row["model"]]
    way = gemm_tuning.rope_gemm_config(*shape, num_sms, model.kv_heads, model.head_dim, hopper=True)
    if way is not None:
        return True, way
    return False, gemm_tuning.product_config(*shape, num_sms, hopper=True)


def choice_in_layers(row: dict[str, Any], num_sms: int) -> Way | None:
    """What the engine takes in a layer; None: the library's."""
    if row["product"] == "qkv" and not has_rows(row["m"], row["itemsize"]):
        return choice_of_heads(row, num_sms)[1]
    return choice(row, num_sms)


def of_choice(row: dict[str, Any], num_sms: int) -> tuple[float, float]:
    """Microseconds of the choice, and of the best that the engine could have chosen."""
    if "heads" in row:
        both = {(way["inside"], way_from(way["config"])): way["us"] for way in row["heads"]}
        return both[choice_of_heads(row, num_sms)], min(both.values())
    us = {way_from(way["config"]): way["us"] for way in row["ways"]} | {None: row["library_us"]}
    by_library = row["product"] == "head" or has_rows(row["m"], row["itemsize"])
    return us[choice(row, num_sms)], min(us[way] for way in us if way or by_library)


def time_case(case: Case) -> dict[str, Any]:
    """The library's microseconds and the ways: first the choice and the best, timed by turns."""
    m, model, product, n, k, itemsize = case
    given = case_of(m, n, k, itemsize)
    make = functools.partial(product_calls, given)
    label = f"{m} {model} {product} {itemsize}"
    asked = {"model": model, "product": product, "m": m, "n": n, "k": k, "itemsize": itemsize}
    taken = choice(asked, num_sms())
    ways = list(
        dict.fromkeys([*candidates(m, n, k, itemsize, num_sms()), *([taken] if taken else [])])
    )
    rows = time_ways(ways, make, given.expected, label, least_us=200)
    near = [way_from(row["config"]) for row in rows[:AGAIN]]
    calls: dict[Any, Any] = {way: make(way) for way in [*near, taken] if way}
    again = time_by_turns(calls | {None: given.library})
    for row in rows:
        row["us"] = again.get(way_from(row["config"]), row["us"])
    rows.sort(key=lambda row: (way_from(row["config"]) not in again, row["us"]))
    found = {"library_us": again[None], "ways": rows}
    if turns(m, model, product, itemsize):
        found["heads"] = time_heads(given, m, itemsize, rows, choice_of_heads(asked, num_sms()))
    return found
