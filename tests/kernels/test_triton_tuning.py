"""Which way of a product is taken: as measured on such a GPU, else by rule or by the library."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import statistics
from pathlib import Path

import gpu_unseen
import pytest
import torch

from quire.kernels import reference
from quire.kernels.triton import tuning
from quire.kernels.triton.tuning import (
    RingConfig,
    library_is_faster,
    product_config,
    ring_rule,
    rows_config,
    rows_rule,
    skinny_rule,
)

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
H200, QKV_8B, GATE_UP_8B = 132, (6144, 4096, 2), (28672, 4096, 2)


def test_the_table_is_that_of_the_result_file() -> None:
    result = json.loads((RESULTS / "gpu_products.json").read_text())
    rows = [row for row in result["tune"] if row["itemsize"] == 2 or row["m"] <= 16]
    best = {tuple(row[key] for key in ("m", "n", "k", "itemsize")): row for row in rows}
    table = tuning.measured()
    assert table["num_sms"] == result["num_sms"]
    assert (
        len(best) == len(table["skinny_gemm"]) == 80
    )  # 10 products by 5 numbers of rows, and in FP8 by 3
    for row in table["skinny_gemm"]:
        measured = best[row["m"], row["n"], row["k"], row["itemsize"]]
        assert row["config"] == measured["config"]
        assert row["library"] == (measured["library_us"] < measured["alone_us"])


def test_the_table_of_many_rows_is_that_of_its_result_file() -> None:
    result = json.loads((RESULTS / "gpu_rows.json").read_text())
    table = {(row["m"], row["n"], row["k"]): row["config"] for row in tuning.measured()["rows"]}
    assert result["num_sms"] == tuning.measured()["num_sms"]
    for row in result["rows"]:
        for found in row["products"].values():
            best = found["ways"][0]
            way = best["config"] if best["us"] < found["library_us"] else None
            assert table.pop((row["m"], found["n"], found["k"])) == way
    assert not table


def test_the_rule_of_many_rows_is_near_the_best_way_of_the_tables_shapes() -> None:
    for row in json.loads((RESULTS / "gpu_rows.json").read_text())["rows"]:
        for found in row["products"].values():
            if row["m"] > 128 or (row["m"] > 64 and found["n"] > 128 * H200):
                continue  # the library's
            rule = rows_rule(row["m"], found["n"], found["k"], 1, H200)
            config = dataclasses.asdict(rule)
            us = next(way["us"] for way in found["ways"] if way["config"] == config)
            best = min(found["library_us"], found["ways"][0]["us"])
            assert us < 1.05 * best, (row["model"], row["m"], found["n"])  # of a whole layer


def test_rules_give_each_multiprocessor_what_it_holds() -> None:
    assert ring_rule(1, 3072, 3072, 2, H200) == RingConfig(64, 5, split=4, tiles=2)
    assert ring_rule(16, 2560, 9728, 2, H200) == RingConfig(64, 5, split=5, tiles=2)
    assert ring_rule(1, 5120, 4096, 1, H200) == RingConfig(64, 5, tiles=2)
    assert ring_rule(1, 5120, 4096, 1, H200, heads=True) == RingConfig(128, 6, split=5)
    assert ring_rule(1, 8192, 3584, 1, H200) == RingConfig(64, 5, split=2, tiles=2)
    assert ring_rule(8, 9216, 3072, 2, H200) == RingConfig(128, 6, split=3)
    assert ring_rule(16, 28672, 5120, 1, H200) == RingConfig(128, 6)
    assert ring_rule(1, 37888, 3584, 1, H200) == RingConfig(64, 4, tiles=2)
    assert ring_rule(16, 37888, 3584, 1, H200) == RingConfig(64, 3, tiles=2)
    assert ring_rule(1, 1536, 1536, 2, H200) == RingConfig(64, 5, split=6, tiles=2)
    assert ring_rule(1, 1536, 1536, 1, H200) == RingConfig(64, 5, tiles=2)
    assert rows_rule(64, 2048, 1536, 1, H200) == RingConfig(64, 5, split=3, tiles=2)
    assert rows_rule(64, 2048, 1536, 2, H200) == RingConfig(64, 5, tiles=2)
    assert rows_rule(64, 4096, 4096, 1, H200) == RingConfig(64, 5, split=2, tiles=2)
    assert rows_rule(64, 5120, 14336, 1, H200) == RingConfig(64, 3, split=3, tiles=2)
    assert rows_rule(32, 5120, 4096, 2, H200) == RingConfig(64, 4, split=3, tiles=2)
    assert rows_rule(64, 5120, 4096, 1, H200) == RingConfig(64, 5, tiles=2)
    assert rows_rule(64, 19456, 2560, 1, H200) == RingConfig(64, 4)
    assert rows_rule(64, 28672, 5120, 1, H200) == RingConfig(128, 4, warps=8)
    assert rows_rule(128, 6144, 4096, 1, H200) == RingConfig(64, 4, tiles=2)
    assert rows_config(128, 128000, 4096, H200) is rows_config(129, 4096, 4000, H200) is None


def test_the_rules_are_near_the_best_way_of_shapes_that_the_table_leaves_out() -> None:
    rows = json.loads((RESULTS / "gpu_unseen.json").read_text())["unseen"]
    known = {(row["n"], row["k"]) for row in tuning.measured()["skinny_gemm"]}
    assert not known & {(row["n"], row["k"]) for row in rows}
    above = [us / best - 1 for us, best in (gpu_unseen.of_choice(row, H200) for row in rows)]
    assert len(above) == 330
    assert max(above) < 0.11
    assert statistics.mean(above) < 0.02


def test_the_nearest_number_of_rows_upwards_is_taken() -> None:
    choose = functools.partial(product_config, num_sms=H200, hopper=True)
    assert choose(2, *GATE_UP_8B) == choose(8, *GATE_UP_8B)
    assert choose(33, *GATE_UP_8B) == choose(64, *GATE_UP_8B)
    assert choose(16, *GATE_UP_8B) != choose(17, *GATE_UP_8B)


def test_the_library_serves_what_it_is_faster_at_and_what_nobody_measured() -> None:
    rows = tuning.measured()["skinny_gemm"]
    assert {row["library"] for row in rows} == {True, False}
    for row in rows:
        shape = (row["m"], row["n"], row["k"], row["itemsize"])
        assert library_is_faster(*shape, H200, hopper=True) == row["library"]
    assert library_is_faster(16, 6144, 4104, 2, H200, hopper=False)
    assert not library_is_faster(16, 6144, 4104, 2, H200, hopper=True)  # there are rings
    assert library_is_faster(16, 6144, 4100, 2, H200, hopper=True)  # but not for odd sizes
    assert not library_is_faster(16, 6144, 4100, 1, H200, hopper=True)  # of 8 bits


def test_ways_of_one_gpu_do_not_serve_another() -> None:
    assert product_config(16, *QKV_8B, 108, hopper=False) == skinny_rule(16, *QKV_8B, 108)
    fp8 = (*QKV_8B[:2], 1)
    assert product_config(16, *fp8, 114, hopper=True) == ring_rule(16, *fp8, 114)
    assert library_is_faster(16, *QKV_8B, 108, hopper=False)


def test_a_ring_serves_what_the_copy_engine_can_step_through() -> None:
    measured = ((4, 4096, 2, True), (5, 4096, 2, False))  # half of it fits a ring, or does not
    plain = ((1, 5120, 2, True), (64, 5120, 2, True), (1, 5116, 2, False), (1, 5120, 4, False))
    codes = ((1, 5120, 1, True), (16, 5120, 1, True), (17, 5120, 1, False), (1, 5112, 1, False))
    for m, k, itemsize, ring in measured + plain + codes:
        way = product_config(m, 6144, k, itemsize, H200, hopper=True)
        assert isinstance(way, RingConfig) == ring
        assert not isinstance(product_config(m, 6144, k, itemsize, H200, hopper=False), RingConfig)


@pytest.mark.parametrize(("head_dim", "padded"), [(8, 16), (16, 16), (80, 128), (128, 128)])
def test_attention_computes_with_as_many_dimensions_as_products_take(
    head_dim: int, padded: int
) -> None:
    assert tuning.padded_head_dim(torch.empty(1, 16, 2, head_dim, device="meta")) == padded


def test_the_way_of_prefill_attention_was_measured() -> None:
    result = json.loads((RESULTS / "gpu_kernels.json").read_text())
    for head_dim, model, group in ((128, "8b", 4), (64, "1b", 4)):
        cache = torch.empty(1, 16, 8, head_dim, dtype=torch.bfloat16, device="meta")
        prefill = tuning.prefill_config(cache, group)
        for row in (row for row in result["prefill"] if row["model"] == model):
            assert dataclasses.asdict(prefill) in [way["config"] for way in row["ways"]]


def test_keys_of_prompts_are_shared_out_where_that_was_faster() -> None:
    rows = json.loads((RESULTS / "gpu_prefill.json").read_text())["prefill"]
    assert len(rows) == 40
    for row in (row for row in rows if max(row["us"].values()) > 12.0):  # else both are alike
        dtype = reference.FP8 if row["kept"] == "fp8" else torch.bfloat16
        head_dim = 128 if row["model"] == "8b" else 64
        cache = torch.empty(1, 16, 8, head_dim, dtype=dtype, device="meta")
        way = tuning.hopper_rule(cache, row["tokens"], 4, H200)
        assert way.split == (row["us"]["keys"] < 0.95 * row["us"]["queries"]), row["batch"]


def test_the_way_of_decode_attention_was_measured() -> None:
    """Whatever keys and values are kept in."""
    rows = json.loads((RESULTS / "gpu_decode.json").read_text())["decode"]
    assert {(row["model"], row["kept"]) for row in rows} == set(
        itertools.product(("8b", "1b"), ("bf16", "fp8"))
    )
    for row in rows:
        dtype = reference.FP8 if row["kept"] == "fp8" else torch.bfloat16
        head_dim = 128 if row["model"] == "8b" else 64
        cache = torch.empty(1, 16, 8, head_dim, dtype=dtype, device="meta")
        way = tuning.decode_config(cache, int(row["batch"].split()[0]))
        assert dataclasses.asdict(way) in [each["config"] for each in row["ways"]]
