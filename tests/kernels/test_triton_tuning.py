"""Which config a GEMM and attention get: from the tuned table, else by rule."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gemm_similar
import pytest
import torch
from gpu_shapes import HELD_OUT, TIMED
from hypothesis import given
from hypothesis import strategies as st

from quire.kernels import reference
from quire.kernels.triton.gemm import gemm_tuning
from quire.kernels.triton.gemm.block_config import block_config
from quire.kernels.triton.gemm.byte_rows_config import byte_rows_config
from quire.kernels.triton.gemm.gemm_tuning import (
    default_skinny_config,
    fp8_gemm_config,
    library_is_faster,
    similar,
    skinny_gemm_config,
)
from quire.kernels.triton.gemm.int4_rows_config import int4_rows_config
from quire.kernels.triton.gemm.split_k_config import split_k_config
from quire.kernels.triton.gemm.tile_config import TileConfig
from quire.kernels.triton.launch import attention_config
from quire.kernels.triton.launch.gemm_config import (
    RingConfig,
    SkinnyConfig,
    fp8_gemm_configs,
    gemm_configs,
)
from quire.kernels.triton.launch.workspace import NUM_PARTIALS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
H200, QKV_8B, GATE_UP_8B = 132, (6144, 4096, 2), (28672, 4096, 2)


def test_the_library_serves_what_it_was_faster_at() -> None:
    """Compared with the result file."""
    result = json.loads((RESULTS / "gpu_linear.json").read_text())
    assert result["num_sms"] == gemm_tuning.table().num_sms
    for row in result["tune"]:
        shape = row["m"], row["n"], row["k"], row["itemsize"]
        faster = row["library_us"] < row["alone_us"]
        assert library_is_faster(*shape, H200, hopper=True) == faster


def test_many_rows_have_a_config_that_was_timed_or_the_library() -> None:
    result = json.loads((RESULTS / "gpu_rows.json").read_text())
    for row in result["rows"]:
        for found in row["linears"].values():
            config = fp8_gemm_config(row["m"], found["n"], found["k"], H200)
            assert config in [None, *fp8_gemm_configs(row["m"], found["n"], found["k"], H200)]


def test_fp8_gemms_of_few_tiles_are_as_fast_as_measured_ones_can_be() -> None:
    """By what was measured for shapes most of which were not tuned; 0.1 us is the noise there."""
    rows = json.loads((RESULTS / "gpu_fp8_rows.json").read_text())["rows"]
    losses = []
    for n, k, m, library, rule, best in rows:
        taken = rule if fp8_gemm_config(m, n, k, H200) is not None else library
        assert (rule is None) == (fp8_gemm_config(m, n, k, H200) is None)
        losses.append((taken - 0.1) / min(library, best) - 1)
    assert len({(n, k) for n, k, *_ in rows}) >= 50
    assert statistics.mean(losses) < 0.01
    assert max(losses) < 0.15


@given(
    m=st.integers(1, 300),
    n=st.integers(1, 2000).map(lambda n: 16 * n),
    k=st.integers(1, 2000).map(lambda k: 16 * k),
    num_sms=st.sampled_from([60, 78, 114, 132]),
)
def test_programs_that_wait_for_each_other_run_at_once(
    m: int, n: int, k: int, num_sms: int
) -> None:
    """Else they would wait forever."""
    config = split_k_config(m, n, k, num_sms)
    if config is not None:
        assert config.split * math.ceil(n / 64) <= num_sms
        assert config.split * 384 <= k
    rules: list[Callable[..., TileConfig | None]]
    rules = [int4_rows_config, byte_rows_config, block_config]
    for found in (rule(m, n, k, num_sms) for rule in rules):
        if found is not None and found.shares(m, num_sms) > 1:
            assert found.shares(m, num_sms) * math.ceil(m / found.block_m) <= num_sms


def test_similar_shapes_have_near_the_best_configs_of_many_rows() -> None:
    """For shapes that were tuned inside layers, by their time there."""
    above = []
    for row in json.loads((RESULTS / "gpu_rows.json").read_text())["rows"]:
        for found in row["linears"].values():
            m, n, k = row["m"], found["n"], found["k"]
            if m > 128 or (m > 64 and n > 192 * H200):
                continue  # the library's
            us = {RingConfig(**each["config"]): each["us"] for each in found["configs"]}
            config = similar(m, n, k, 1, H200, without=[(n, k)]).config
            assert isinstance(config, RingConfig)
            if config in us:  # all were timed that were worth trying then
                above.append(us[config] / min(found["library_us"], *us.values()) - 1)
    assert len(above) > 10
    assert max(above) < 0.2
    assert statistics.mean(above) < 0.05


@pytest.mark.parametrize("itemsize", [1, 2])
@pytest.mark.parametrize("m", [1, 3, 8, 16, 17, 64, 100])
@pytest.mark.parametrize("shape", [(64, 128), (100, 272), (1000, 5008), (151936, 896), (70, 70000)])
def test_what_is_chosen_for_odd_shapes_can_be_launched(
    shape: tuple[int, int], m: int, itemsize: int
) -> None:
    n, k = shape
    many = itemsize == 1 and m > 16
    config: Any = fp8_gemm_config(m, n, k, H200) if many else None
    if not many and m <= 64:
        config = skinny_gemm_config(m, n, k, itemsize, H200, hopper=True)
    if config is None:
        return
    assert isinstance(config, RingConfig | SkinnyConfig)
    block_m = max(8, 1 << (m - 1).bit_length())
    assert (
        config.split * -(-n // config.block_n) * config.block_n * block_m <= NUM_PARTIALS
        or config.split < 2
    )
    if isinstance(config, RingConfig):
        assert config.stages >= 2
        rows_of_x = 0 if itemsize == 1 and m <= 16 else block_m
        assert 128 * config.stages * config.tiles * (config.block_n + rows_of_x) <= 226 * 1024
        assert config.split == 1 or config.split * config.tiles * 128 <= k * itemsize
    assert m > 4 or isinstance(config, RingConfig)


def test_tuned_shapes_have_configs_worth_trying() -> None:
    """All but those tuned inside layers, for which more configs were tried."""
    table, in_layers = gemm_tuning.table(), gemm_similar.tuned_in_layers()
    for (itemsize, many), shapes in table.shapes.items():
        for n, k in shapes.keys() - set(in_layers):
            for m, tuned in shapes[n, k].items():
                worth: list[Any] = gemm_configs(m, n, k, itemsize, table.num_sms)
                if many:
                    worth = [None, *fp8_gemm_configs(m, n, k, table.num_sms)]
                assert tuned.config in worth
                assert tuned.rope_config in [None, *worth]


def test_a_tuned_shape_takes_its_own_config_and_one_left_out_a_similar_shapes() -> None:
    shape = (16, 5120, 3072, 2, H200)
    own = gemm_tuning.table().shapes[2, False][5120, 3072][16]
    assert skinny_gemm_config(*shape, hopper=True) == own.config
    assert similar(*shape).config == own.config
    other = similar(*shape, without=[(5120, 3072)]).config
    assert other in gemm_configs(*shape)


def test_a_similar_shapes_config_is_near_the_best_of_shapes_that_nobody_tuned() -> None:
    left, later = (gemm_similar.losses(list(models)) for models in (TIMED, HELD_OUT))
    assert {each.model for each in later} == set(HELD_OUT)
    assert len(left) > 3000
    assert gemm_similar.summary(left)["mean"] < 0.0125
    assert gemm_similar.summary(later)["mean"] < 0.0125
    for found in (left, later):
        assert sum(each.loss > 0.1 for each in found) < 0.03 * len(found)
        assert gemm_similar.summary(found)["max"] < 0.45


def test_timings_are_of_configs_worth_trying() -> None:
    for (itemsize, n, k), found in gemm_similar.timings().items():
        for timing in found:
            many = itemsize == 1 and timing.m > 16
            worth: list[Any] = gemm_configs(timing.m, n, k, itemsize, H200)
            worth = [*fp8_gemm_configs(timing.m, n, k, H200)] if many else worth
            assert timing.losses.keys() | timing.not_timed <= set(worth)
            assert min(timing.losses.values()) == 0


def test_the_nearest_number_of_rows_upwards_is_taken() -> None:
    choose = functools.partial(skinny_gemm_config, num_sms=H200, hopper=True)
    assert choose(2, *GATE_UP_8B) == choose(4, *GATE_UP_8B)
    assert choose(33, *GATE_UP_8B) == choose(64, *GATE_UP_8B)
    assert choose(4, *GATE_UP_8B) != choose(1, *GATE_UP_8B)


def test_the_library_serves_what_no_hopper_kernel_can_read() -> None:
    assert library_is_faster(16, 6144, 4104, 2, H200, hopper=False)
    assert not library_is_faster(16, 6144, 4104, 2, H200, hopper=True)  # there are rings
    assert library_is_faster(16, 6144, 4100, 2, H200, hopper=True)  # but not for odd sizes
    assert not library_is_faster(16, 6144, 4100, 1, H200, hopper=True)  # of 8 bits


def test_configs_of_one_gpu_do_not_serve_another() -> None:
    assert skinny_gemm_config(16, *QKV_8B, 108, hopper=False) == default_skinny_config(
        16, *QKV_8B, 108
    )
    fp8 = (*QKV_8B[:2], 1)
    assert isinstance(skinny_gemm_config(16, *fp8, 114, hopper=True), RingConfig)
    assert library_is_faster(16, *QKV_8B, 108, hopper=False)


def test_a_ring_serves_what_the_copy_engine_can_step_through() -> None:
    measured = ((8, 4096, 2, True), (9, 4096, 2, False))
    plain = ((1, 5120, 2, True), (64, 5120, 2, True), (1, 5116, 2, False), (1, 5120, 4, False))
    codes = ((1, 5120, 1, True), (16, 5120, 1, True), (17, 5120, 1, False), (1, 5112, 1, False))
    for m, k, itemsize, ring in measured + plain + codes:
        config = skinny_gemm_config(m, 6144, k, itemsize, H200, hopper=True)
        assert isinstance(config, RingConfig) == ring
        assert not isinstance(
            skinny_gemm_config(m, 6144, k, itemsize, H200, hopper=False), RingConfig
        )


@pytest.mark.parametrize(("head_dim", "padded"), [(8, 16), (16, 16), (80, 128), (128, 128)])
def test_attention_pads_heads_to_the_dimensions_of_a_dot(head_dim: int, padded: int) -> None:
    assert (
        attention_config.padded_head_dim(torch.empty(1, 16, 2, head_dim, device="meta")) == padded
    )


def test_the_prefill_attention_config_was_measured() -> None:
    result = json.loads((RESULTS / "gpu_kernels.json").read_text())
    for head_dim, model, group in ((128, "8b", 4), (64, "1b", 4)):
        cache = torch.empty(1, 16, 8, head_dim, dtype=torch.bfloat16, device="meta")
        prefill = attention_config.prefill_config(cache, group)
        for row in (row for row in result["prefill"] if row["model"] == model):
            assert dataclasses.asdict(prefill) in [timed["config"] for timed in row["configs"]]


def test_keys_of_prompts_are_shared_out_where_that_was_faster() -> None:
    rows = json.loads((RESULTS / "gpu_prefill.json").read_text())["prefill"]
    assert len(rows) == 56
    for row in (row for row in rows if not row["has_few_keys"]):
        dtype = reference.FP8 if row["kv_dtype"] == "fp8" else torch.bfloat16
        head_dim = 128 if row["model"] == "8b" else 64
        cache = torch.empty(1, 16, 8, head_dim, dtype=dtype, device="meta")
        config = attention_config.choose_hopper_config(cache, row["tokens"], 4, H200)
        assert config.split == (row["us"]["keys"] < 0.95 * row["us"]["queries"]), row["batch"]


def test_short_prompts_have_the_kernel_that_was_faster() -> None:
    rows = json.loads((RESULTS / "gpu_prefill.json").read_text())["prefill"]
    for us in (row["us"] for row in rows if row["has_few_keys"]):
        assert us["few keys"] < 1.05 * min(us["queries"], us["keys"])


@pytest.mark.parametrize("tokens", [4, 32, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, reference.FP8])
def test_decode_attention_programs_fill_the_registers(dtype: torch.dtype, tokens: int) -> None:
    """A multiprocessor has 65,536 registers."""
    cache = torch.empty(1, 16, 8, 128, dtype=dtype, device="meta")
    for group in (4, 16):
        cut = attention_config.hopper_decode_config(cache, group, tokens)
        registers = 8 * 32 * attention_config.decode_registers(cut, cache, group, tokens)
        assert cut.per_sm * registers <= 2**16
        assert dtype == reference.FP8 or (cut.per_sm + 1) * registers > 2**16


def test_the_decode_attention_config_was_measured() -> None:
    """For every type of the KV cache."""
    rows = json.loads((RESULTS / "gpu_decode.json").read_text())["decode"]
    assert {(row["model"], row["kv_dtype"]) for row in rows} == set(
        itertools.product(("8b", "1b"), ("bf16", "fp8"))
    )
    for row in rows:
        dtype = reference.FP8 if row["kv_dtype"] == "fp8" else torch.bfloat16
        head_dim = 128 if row["model"] == "8b" else 64
        cache = torch.empty(1, 16, 8, head_dim, dtype=dtype, device="meta")
        config = attention_config.decode_config(cache, int(row["batch"].split()[0]))
        assert dataclasses.asdict(config) in [each["config"] for each in row["configs"]]
