"""Which way of a product is taken: as measured on such a GPU, else by rule or by the library."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest
import torch

from quire.kernels import reference
from quire.kernels.triton import tuning
from quire.kernels.triton.tuning import library_is_faster, skinny_config, skinny_rule

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu_kernels.json"
H200, QKV_8B, GATE_UP_8B = 132, (6144, 4096, 2), (28672, 4096, 2)


def test_the_table_is_that_of_the_result_file() -> None:
    result, table = json.loads(RESULT.read_text()), tuning.measured()
    assert table["num_sms"] == result["num_sms"]
    assert len(table["skinny_gemm"]) == len(result["gemm"])
    for row, measured in zip(table["skinny_gemm"], result["gemm"], strict=True):
        best = measured["ways"][0]
        assert [row[key] for key in "mnk"] == [measured[key] for key in "mnk"]
        assert row["itemsize"] == measured.get("itemsize", 2)
        assert row["config"] == best["config"]
        assert row["library"] == (measured["library_us"] < best["us"])


def test_the_nearest_number_of_rows_upwards_is_taken() -> None:
    assert skinny_config(2, *GATE_UP_8B, H200) == skinny_config(4, *GATE_UP_8B, H200)
    assert skinny_config(33, *GATE_UP_8B, H200) == skinny_config(64, *GATE_UP_8B, H200)
    assert skinny_config(16, *GATE_UP_8B, H200) != skinny_config(17, *GATE_UP_8B, H200)


def test_the_library_serves_what_it_is_faster_at_and_what_nobody_measured() -> None:
    rows = tuning.measured()["skinny_gemm"]
    assert {row["library"] for row in rows} == {True, False}
    for row in rows:
        shape = (row["m"], row["n"], row["k"], row["itemsize"])
        assert library_is_faster(*shape, H200) == row["library"]
    assert library_is_faster(16, 6144, 4100, 2, H200)
    assert not library_is_faster(16, 6144, 4100, 1, H200)  # of 8 bits


def test_ways_of_one_gpu_do_not_serve_another() -> None:
    assert skinny_config(16, *QKV_8B, 108) == skinny_rule(16, *QKV_8B, 108)
    assert library_is_faster(16, *QKV_8B, 108)


@pytest.mark.parametrize(("head_dim", "padded"), [(8, 16), (16, 16), (80, 128), (128, 128)])
def test_attention_computes_with_as_many_dimensions_as_products_take(
    head_dim: int, padded: int
) -> None:
    assert tuning.padded_head_dim(torch.empty(1, 16, 2, head_dim, device="meta")) == padded


def test_the_way_of_prefill_attention_was_measured() -> None:
    result = json.loads(RESULT.read_text())
    for head_dim, model, group in ((128, "8b", 4), (64, "1b", 4)):
        cache = torch.empty(1, 16, 8, head_dim, dtype=torch.bfloat16, device="meta")
        prefill = tuning.prefill_config(cache, group)
        for row in (row for row in result["prefill"] if row["model"] == model):
            assert dataclasses.asdict(prefill) in [way["config"] for way in row["ways"]]


def test_the_way_of_decode_attention_was_measured() -> None:
    """Whatever keys and values are kept in."""
    rows = json.loads(RESULT.with_name("gpu_decode.json").read_text())["decode"]
    assert {(row["model"], row["kept"]) for row in rows} == set(
        itertools.product(("8b", "1b"), ("bf16", "fp8"))
    )
    for row in rows:
        dtype = reference.FP8 if row["kept"] == "fp8" else torch.bfloat16
        head_dim = 128 if row["model"] == "8b" else 64
        cache = torch.empty(1, 16, 8, head_dim, dtype=dtype, device="meta")
        way = tuning.decode_config(cache, int(row["batch"].split()[0]))
        assert dataclasses.asdict(way) in [each["config"] for each in row["ways"]]
