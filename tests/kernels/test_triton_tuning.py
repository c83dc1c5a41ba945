"""Which way of a product is taken: as measured on such a GPU, else by rule or by the library."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import gpu_neighbours
import pytest
import torch
from gpu_shapes import HELD_OUT, TIMED, UNSEEN
from gpu_unseen import choice_in_layers

from quire.kernels import reference
from quire.kernels.triton.gemm import gemm_cost_model, gemm_tuning
from quire.kernels.triton.gemm.gemm_cost_model import expected_us
from quire.kernels.triton.gemm.gemm_tuning import (
    library_is_faster,
    product_config,
    rows_config,
    skinny_rule,
)
from quire.kernels.triton.launch import attention_config
from quire.kernels.triton.launch.gemm_config import (
    RingConfig,
    SkinnyConfig,
    rows_ways_for,
    way_from,
    ways_for,
)
from quire.kernels.triton.launch.workspace import NUM_PARTIALS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
H200, QKV_8B, GATE_UP_8B = 132, (6144, 4096, 2), (28672, 4096, 2)


def in_layers() -> dict[tuple[int, ...], dict[str, Any] | None]:
    """(rows, n, k, bytes) → the way that was the best in layers with attention."""
    result = json.loads((RESULTS / "gpu_layer_ways.json").read_text())
    assert result["num_sms"] == gemm_tuning.measured()["num_sms"]
    return {
        (row["m"], way["n"], way["k"], row["itemsize"]): way["config"]
        for row in result["layer_ways"]
        for way in row["products"].values()
    }


def test_the_table_is_that_of_the_result_files() -> None:
    """In layers; of heads, and whether the library is faster, by themselves."""
    result, best = json.loads((RESULTS / "gpu_products.json").read_text()), in_layers()
    alone = {tuple(row[key] for key in ("m", "n", "k", "itemsize")): row for row in result["tune"]}
    table = gemm_tuning.measured()
    assert len(table["skinny_gemm"]) == 96  # 8 products by 6 numbers of rows, in FP8 by 4, 2 heads
    for row in table["skinny_gemm"]:
        shape = row["m"], row["n"], row["k"], row["itemsize"]
        measured = alone[(8 if row["m"] == 4 else row["m"], *shape[1:])]
        assert row["config"] == (best[shape] if shape in best else measured["config"])
        assert row["library"] == (measured["library_us"] < measured["alone_us"])


def test_the_table_of_many_rows_is_that_of_its_result_files() -> None:
    result, best = json.loads((RESULTS / "gpu_rows.json").read_text()), in_layers()
    table = {
        (row["m"], row["n"], row["k"]): row["config"] for row in gemm_tuning.measured()["rows"]
    }
    assert result["num_sms"] == gemm_tuning.measured()["num_sms"]
    for row in result["rows"]:
        for found in row["products"].values():
            shape, first = (row["m"], found["n"], found["k"]), found["ways"][0]
            way = first["config"] if first["us"] < found["library_us"] else None
            assert table.pop(shape) == best.get((*shape, 1), way)
    assert not table


def test_what_is_expected_of_many_rows_is_near_the_best_way_of_shapes_tuned() -> None:
    """Which are left out of those timed."""
    above = []
    for row in json.loads((RESULTS / "gpu_rows.json").read_text())["rows"]:
        for found in row["products"].values():
            m, n, k = row["m"], found["n"], found["k"]
            if m > 128 or (m > 64 and n > 192 * H200):
                continue  # the library's
            us = {RingConfig(**way["config"]): way["us"] for way in found["ways"]}
            ways = [way for way in rows_ways_for(m, n, k, H200) if way in us]
            expected = expected_us(m, n, k, 1, H200, ways, without=[(n, k)])
            best = min(found["library_us"], *us.values())
            above.append(us[min(ways, key=lambda way: expected[way])] / best - 1)
    assert max(above) < 0.1
    assert statistics.mean(above) < 0.03


@pytest.mark.parametrize("itemsize", [1, 2])
@pytest.mark.parametrize("m", [1, 3, 8, 16, 17, 64, 100])
@pytest.mark.parametrize("shape", [(64, 128), (100, 272), (1000, 5008), (151936, 896), (70, 70000)])
def test_what_is_chosen_for_odd_shapes_can_be_launched(
    shape: tuple[int, int], m: int, itemsize: int
) -> None:
    n, k = shape
    many = itemsize == 1 and m > 16
    way: Any = rows_config(m, n, k, H200) if many else None
    if not many and m <= 64:
        way = product_config(m, n, k, itemsize, H200, hopper=True)
    if way is None:
        return
    assert isinstance(way, RingConfig | SkinnyConfig)
    block_m = max(8, 1 << (m - 1).bit_length())
    assert way.split * -(-n // way.block_n) * way.block_n * block_m <= NUM_PARTIALS or way.split < 2
    if isinstance(way, RingConfig):
        assert way.stages >= 2
        rows_of_x = 0 if itemsize == 1 and m <= 16 else block_m
        assert 128 * way.stages * way.tiles * (way.block_n + rows_of_x) <= 226 * 1024
        assert way.split == 1 or way.split * way.tiles * 128 <= k * itemsize
    assert m > 4 or isinstance(way, RingConfig)


def test_a_shape_timed_takes_its_best_way_and_one_left_out_what_its_neighbours_take() -> None:
    row = {"m": 16, "n": 5120, "k": 3072, "itemsize": 2}
    assert any(row.items() <= each.items() for each in gemm_cost_model.timed()["shapes"])
    ways = ways_for(*row.values(), H200)
    own = expected_us(*row.values(), H200, ways)
    others = expected_us(*row.values(), H200, ways, without=[(5120, 3072)])
    assert own != others
    best = min(ways, key=lambda way: others[way])
    assert own[best] < 1.1 * min(own.values())
    again = expected_us(*row.values(), H200, reversed(ways))
    assert again == own


def test_choices_are_near_the_best_way_of_shapes_that_nobody_tuned() -> None:
    groups = gpu_neighbours.judged()
    above = {name: [x for _, x in found] for name, found in groups.items()}
    assert {row["model"] for row, _ in groups["later"]} == set(HELD_OUT)
    assert len(above["left"]) > 1000
    assert statistics.mean(above["left"]) < 0.015
    assert statistics.mean(above["later"]) < 0.02
    assert sum(x > 0.1 for x in above["later"]) < 0.05 * len(above["later"])
    assert max(above["heads"]) < 0.12


@pytest.mark.parametrize("weights", ["fp8", "bf16"])
@pytest.mark.parametrize(("name", "models"), [("unseen", UNSEEN), ("left_out", HELD_OUT)])
def test_layers_of_models_unseen_take_little_more_than_if_they_were_tuned(
    name: str, models: dict[str, Any], weights: str
) -> None:
    """By what was chosen for them when they were timed, and still is."""
    result = json.loads((RESULTS / f"gpu_layer_ways_{name}_{weights}.json").read_text())
    rows = result["layer_ways"]
    assert {row["model"] for row in rows} <= set(models)
    above = [row["was_us"] / row["us"] - 1 for row in rows]
    assert statistics.mean(above) < 0.025
    assert max(above) < 0.1
    for row in rows:
        for product, way in row["products"].items():
            choice = choice_in_layers(row | way | {"product": product}, H200)
            assert (choice and dataclasses.asdict(choice)) == way["was"]


def test_times_are_those_of_the_result_files() -> None:
    """Of the models that are meant for it, and of no other."""
    rows = gpu_neighbours.recorded()
    shapes = {(row["n"], row["k"]) for row in rows if row["model"] in TIMED}
    assert {(row["n"], row["k"]) for row in gemm_cost_model.timed()["shapes"]} == shapes
    kept = {tuple(row[key] for key in ("m", "itemsize", "n", "k")): row for row in rows}
    ways = [way_from(config) for config in gemm_cost_model.timed()["ways"]]
    for row in gemm_cost_model.timed()["shapes"][::50]:
        found = kept[tuple(row[key] for key in ("m", "itemsize", "n", "k"))]
        us = {way_from(way["config"]): way["us"] for way in found["ways"]}
        if found["model"] in TIMED:
            for index, each in zip(row["ways"], row["us"], strict=True):
                assert each == pytest.approx(us[ways[index]], rel=1e-3)


def test_the_nearest_number_of_rows_upwards_is_taken() -> None:
    choose = functools.partial(product_config, num_sms=H200, hopper=True)
    assert choose(2, *GATE_UP_8B) == choose(4, *GATE_UP_8B)
    assert choose(33, *GATE_UP_8B) == choose(64, *GATE_UP_8B)
    assert choose(4, *GATE_UP_8B) != choose(1, *GATE_UP_8B)


def test_the_library_serves_what_it_is_faster_at_and_what_nobody_measured() -> None:
    rows = gemm_tuning.measured()["skinny_gemm"]
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
    assert isinstance(product_config(16, *fp8, 114, hopper=True), RingConfig)
    assert library_is_faster(16, *QKV_8B, 108, hopper=False)


def test_a_ring_serves_what_the_copy_engine_can_step_through() -> None:
    measured = ((8, 4096, 2, True), (9, 4096, 2, False))
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
    assert (
        attention_config.padded_head_dim(torch.empty(1, 16, 2, head_dim, device="meta")) == padded
    )


def test_the_way_of_prefill_attention_was_measured() -> None:
    result = json.loads((RESULTS / "gpu_kernels.json").read_text())
    for head_dim, model, group in ((128, "8b", 4), (64, "1b", 4)):
        cache = torch.empty(1, 16, 8, head_dim, dtype=torch.bfloat16, device="meta")
        prefill = attention_config.prefill_config(cache, group)
        for row in (row for row in result["prefill"] if row["model"] == model):
            assert dataclasses.asdict(prefill) in [way["config"] for way in row["ways"]]


def test_keys_of_prompts_are_shared_out_where_that_was_faster() -> None:
    rows = json.loads((RESULTS / "gpu_prefill.json").read_text())["prefill"]
    assert len(rows) == 56
    for row in (row for row in rows if not row["has_few_keys"]):
        dtype = reference.FP8 if row["kept"] == "fp8" else torch.bfloat16
        head_dim = 128 if row["model"] == "8b" else 64
        cache = torch.empty(1, 16, 8, head_dim, dtype=dtype, device="meta")
        way = attention_config.choose_hopper_config(cache, row["tokens"], 4, H200)
        assert way.split == (row["us"]["keys"] < 0.95 * row["us"]["queries"]), row["batch"]


def test_short_prompts_have_the_kernel_that_was_faster() -> None:
    rows = json.loads((RESULTS / "gpu_prefill.json").read_text())["prefill"]
    for us in (row["us"] for row in rows if row["has_few_keys"]):
        assert us["few keys"] < 1.05 * min(us["queries"], us["keys"])


@pytest.mark.parametrize("tokens", [4, 32, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, reference.FP8])
def test_decode_attention_has_room_for_its_programs_and_in_16_bits_for_no_other(
    dtype: torch.dtype, tokens: int
) -> None:
    """By the 65,536 registers of a multiprocessor."""
    cache = torch.empty(1, 16, 8, 128, dtype=dtype, device="meta")
    for group in (4, 16):
        cut = attention_config.hopper_decode_config(cache, group, tokens)
        registers = 8 * 32 * attention_config.decode_registers(cut, cache, group, tokens)
        assert cut.per_sm * registers <= 2**16
        assert dtype == reference.FP8 or (cut.per_sm + 1) * registers > 2**16


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
        way = attention_config.decode_config(cache, int(row["batch"].split()[0]))
        assert dataclasses.asdict(way) in [each["config"] for each in row["ways"]]
