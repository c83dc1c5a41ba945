"""What is told before anything is allocated: against an engine that was started, and by hand."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.cli import main
from quire.cli.dry_run import _plan
from quire.config import EngineConfig
from quire.dtypes import HOPPER_BLOCK_SIZES, HOPPER_HEAD_DIMS
from quire.engine.core.step_sizes import StepSizes
from quire.engine.processes.fleet_model import ModelSpec, _measured
from quire.engine.startup import device_checks, footprint, memory_plan
from quire.engine.startup.footprint import BASE_BYTES
from quire.engine.startup.memory_plan import DeviceMemory, MemoryPlan, plan_memory
from quire.engine.startup.start_engine import start_engine
from quire.engine.startup.step_memory import (
    DEQUANTIZED_BYTES,
    DEQUANTIZED_QUERIES,
    GRAPH_BYTES,
    activation_bytes,
)
from quire.errors import ConfigError, UserError
from quire.kernels.batch_layout import SHARED_MEMBERS
from quire.kernels.operands import AttentionParams
from quire.kernels.step_buffer import StepSections
from quire.kernels.triton.launch.workspace import NUM_COUNTERS
from quire.models.config.model_config import ModelConfig

SHAPE = Path(__file__).parents[3] / "benchmarks" / "shapes" / "llama-3.1-8b"
GIB = 2**30
_NO_FILES = ("--load-format", "dummy", "--skip-tokenizer-init")  # a shape is a config alone
CPU = DeviceMemory("cpu", 16 * GIB, 16 * GIB)


def plan_8b(gib: float, *, taken: int = 0, **options: Any) -> MemoryPlan:
    config = EngineConfig.from_options(model=SHAPE, load_format="dummy", **options)
    total = int(gib * GIB)
    return plan_memory(config, DeviceMemory("cuda", total, total - taken, 0))


@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": 50},
        {"num_blocks": 50, "block_size": 32, "dtype": "bfloat16"},
        {"kv_cache_memory_bytes": 5_000_000, "max_num_seqs": 3},
        {"max_num_seqs": 2, "max_model_len": 100},
    ],
)
def test_an_engine_is_as_planned(options: dict[str, Any]) -> None:
    config = EngineConfig.from_options(model="quire-tiny-draft", device="cpu", **options)
    plan = plan_memory(config, CPU)
    _, info = start_engine(config)
    assert plan.problem is None
    assert (plan.num_blocks, plan.kv_cache) == (info.num_blocks, info.kv_cache_bytes)
    assert plan.max_model_len == info.limits.max_model_len
    assert plan.weights.keys() == {info.dtype}


@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "int8"])
def test_a_kv_cache_in_8_bits_has_memory_to_dequantize_keys(kv_cache_dtype: str) -> None:
    usual, in_8_bits = plan_8b(100), plan_8b(100, kv_cache_dtype=kv_cache_dtype)
    assert in_8_bits.workspace - usual.workspace == DEQUANTIZED_BYTES
    scratch = pytest.importorskip("quire.kernels.triton.attention.kv_dequantization")
    assert 2 * scratch.NUM_DEQUANTIZED == DEQUANTIZED_BYTES
    assert in_8_bits.num_slots / usual.num_slots > 1.9


def test_numbers_that_a_gemm_makes_of_grouped_codes_have_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    int4 = pytest.importorskip("quire.kernels.triton.ops.int4_linear")
    byte = pytest.importorskip("quire.kernels.triton.ops.byte_linear")
    fp8 = pytest.importorskip("quire.kernels.triton.ops.fp8_linear")
    assert (footprint.PIECE_BYTES, footprint.BYTE_PIECE_BYTES) == (int4._PIECE, byte._PIECE)
    assert fp8._PIECE == footprint.FP8_PIECE
    monkeypatch.setattr(footprint, "driver_capability", lambda: (9, 0))
    gate_up, head = 2 * 14_336 * 4096 * 2, 128_256 * 4096 * 2
    for quantization, usual, invariant in (
        ("int4", gate_up, gate_up), ("nf4", gate_up, gate_up), ("w8a16", 2**25, head),
        ("fp8_w8a16", 2**25, head),
        ("int8", 0, 0), ("fp8", 0, 0), ("none", 0, 0),
    ):  # fmt: skip
        for batch_invariant, most in ((False, usual), (True, invariant)):
            options = {"batch_invariant": batch_invariant, "device": "cuda"}
            found, plain = (
                plan_8b(100, quantization=quantization, **options),
                plan_8b(100, **options),
            )
            assert found.workspace - plain.workspace == most, (quantization, most)
            assert found.graphs - plain.graphs == most  # they have memory of their own
    monkeypatch.setattr(footprint, "PIECE_BYTES", 2**20)
    pieces, whole = (
        plan_8b(100, quantization="int4", batch_invariant=on, device="cuda").workspace
        for on in (False, True)
    )
    assert whole - pieces == gate_up - 2**20


def test_fp8_that_is_not_multiplied_has_memory_for_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, dtype, numbers in (
        ((9, 0), "bfloat16", 0), ((9, 0), "float16", 2**23), ((8, 0), "bfloat16", 2**23),
    ):  # fmt: skip
        monkeypatch.setattr(footprint, "driver_capability", lambda found=capability: found)
        options = {"device": "cuda", "dtype": dtype}
        found, plain = plan_8b(100, quantization="fp8", **options), plan_8b(100, **options)
        assert found.workspace - plain.workspace == 6 * numbers
        assert found.graphs - plain.graphs == 6 * numbers


@pytest.mark.parametrize("quantization", ["fp8", "int8"])
def test_a_float32_model_has_memory_for_a_whole_weight_of_bytes(
    quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twins that compute it make float32 of all codes."""
    monkeypatch.setattr(footprint, "driver_capability", lambda: (9, 0))
    for is_invariant, most in ((False, 128_256 * 4096 * 4), (True, 0)):
        options = {"device": "cuda", "dtype": "float32", "batch_invariant": is_invariant}
        found, plain = plan_8b(100, quantization=quantization, **options), plan_8b(100, **options)
        assert found.workspace - plain.workspace == most
        assert found.graphs - plain.graphs == most


@pytest.mark.parametrize(
    ("capability", "options", "dequantizes"),
    [
        ((9, 0), {}, True),
        (None, {}, True),
        ((8, 9), {}, False),
        ((10, 0), {}, False),
        ((9, 0), {"dtype": "float16"}, False),
        ((9, 0), {"block_size": 128}, True),
        ((9, 0), {"block_size": 4}, False),
        ((9, 0), {"block_size": 256}, False),
        ((9, 0), {"batch_invariant": True}, False),
        ((9, 0), {"max_num_batched_tokens": 192, "max_num_seqs": 64}, False),
        ((9, 0), {"max_num_batched_tokens": 256, "max_num_seqs": 64}, True),
        ((9, 0), {"kv_cache_dtype": "fp8", "max_num_batched_tokens": 256}, False),
    ],
)
def test_only_steps_that_dequantize_keys_have_memory_for_it(
    capability: tuple[int, int] | None,
    options: dict[str, Any],
    dequantizes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_plan, "driver_capability", lambda: capability)
    given = {"kv_cache_dtype": "int8", "device": "cuda"} | options
    in_8_bits, usual = plan_8b(100, **given), plan_8b(100, **given | {"kv_cache_dtype": "auto"})
    assert in_8_bits.workspace - usual.workspace == DEQUANTIZED_BYTES * dequantizes


def test_a_format_that_the_gpu_has_not_is_refused_as_by_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(footprint, "driver_capability", lambda: (9, 0))
    assert plan_8b(100, device="cuda", quantization="w8a16").problem is None
    monkeypatch.setattr(footprint, "driver_capability", lambda: (8, 0))
    with pytest.raises(ConfigError, match="w8a16 needs a Hopper GPU"):
        plan_8b(100, device="cuda", quantization="w8a16")


def test_blocks_and_heads_are_those_that_the_kernels_take(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    paged = pytest.importorskip("quire.kernels.triton.ops.paged_attention")
    monkeypatch.setattr(paged, "has_hopper_gpu", lambda _: True)
    for size, dim in itertools.product((4, 8, 16, 48, 64, 128, 256), (32, 64, 96, 128)):
        cache = torch.empty(2, size, 2, dim, dtype=torch.int8, device="meta")
        query = torch.empty(300, 8, dim, dtype=torch.bfloat16, device="meta")
        served = size in HOPPER_BLOCK_SIZES and dim in HOPPER_HEAD_DIMS
        assert paged.hopper_serves(query, cache, AttentionParams(0.1)) == served, (size, dim)


@pytest.mark.parametrize("name", DEQUANTIZED_QUERIES)
def test_keys_are_dequantized_from_as_many_queries_as_planned(name: str) -> None:
    torch = pytest.importorskip("torch")
    configs = pytest.importorskip("quire.kernels.triton.launch.attention_config")
    cache = torch.empty(1, 16, 2, 128, dtype=getattr(torch, name), device="meta")
    assert configs.least_queries(cache, 4) == DEQUANTIZED_QUERIES[name] // 4


def test_all_that_may_be_used_of_a_gpu_is_used() -> None:
    plan = plan_8b(141, taken=2 * GIB)
    left = plan.budget - 2 * GIB - plan.fixed - plan.kv_cache
    assert 0 <= left < plan.block_bytes == 2 * 32 * 16 * 8 * 128 * 2
    assert plan.budget == int(141 * GIB * 0.9)
    assert plan.weights == {"bfloat16": pytest.approx(16.06e9, rel=0.001)}
    assert plan.max_model_len == 131_072


def test_quantized_weights_leave_memory_for_the_cache() -> None:
    plain, small = plan_8b(24), plan_8b(24, quantization="fp8")
    assert small.weights["fp8"] == pytest.approx(plain.weights["bfloat16"] * 0.467, rel=0.01)
    assert small.weights["bfloat16"] == 128_256 * 4096 * 2  # the embedding
    saved = sum(plain.weights.values()) - sum(small.weights.values())
    assert abs(small.kv_cache - plain.kv_cache - saved) < plain.block_bytes


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "bytes are missing before there is a KV cache; raise gpu_memory_utilization, lower"),
        ({"gib": 17.5}, "but one block takes 2,097,152; raise gpu_memory_utilization, lower"),
        ({"gib": 24, "kv_cache_memory_bytes": 9}, "9 bytes, but .*; raise kv_cache_memory_bytes"),
        (
            {"gib": 24, "kv_cache_memory_bytes": 10**15},
            "are left; lower num_blocks or kv_cache_mem",
        ),
        ({"gib": 24, "num_blocks": 9000}, "are left; lower num_blocks or kv_cache_memory_bytes"),
        ({"gib": 24, "max_model_len": 131_072}, "max_model_len is 131072, .* or raise gpu_memory_"),
    ],
)
def test_what_does_not_fit_names_the_setting(options: dict[str, Any], problem: str) -> None:
    sizes = {"gib": 16.0, "gpu_memory_utilization": 0.95} | options
    if sizes["gib"] == 17.5:  # all but a megabyte goes to what is not the cache
        fixed = plan_8b(141).fixed
        sizes["gib"], sizes["gpu_memory_utilization"] = (fixed + 2**20) / GIB, 1.0
    plan = plan_8b(**sizes)
    assert re.search(problem, str(plan.problem))
    assert plan.max_model_len is None
    assert plan.at_once() == {}


def test_a_length_that_the_model_does_not_know_is_refused_as_at_a_start() -> None:
    with pytest.raises(ConfigError, match="positions up to 131072; lower it"):
        plan_8b(141, max_model_len=131_073)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_invariant": True, "quantization": "fp8"},
        {"max_model_len": 5000},
        {"num_blocks": 2, "max_model_len": 100},
        {"kv_cache_memory_bytes": 100},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 300},
        {"override_generation_config": '{"temprature": 1}'},
        {"override_generation_config": '{"temperature": "x"}'},
        {"generation_config": "/nowhere"},
    ],
)
def test_a_plan_refuses_what_a_start_does_in_its_words(options: dict[str, Any]) -> None:
    config = EngineConfig.from_options(model="quire-tiny-draft", device="cpu", **options)
    with pytest.raises(UserError) as message:
        start_engine(config)
    try:
        problem = plan_memory(config, CPU).problem
    except UserError as error:
        problem = str(error)
    assert problem == str(message.value)


def test_a_plan_may_be_for_a_machine_with_more_cores() -> None:
    config = EngineConfig.from_options(model="quire-tiny-draft", device="cpu", threads=100_000)
    assert plan_memory(config, CPU).problem is None
    with pytest.raises(ConfigError, match="threads must be at most"):
        start_engine(config)


def test_without_a_model_there_is_nothing_to_plan() -> None:
    with pytest.raises(ConfigError, match="load_format is 'null'"):
        plan_memory(EngineConfig.from_options(load_format="null"), CPU)


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"tokenizer": "/nowhere", "max_model_len": 1 << 30}, "/nowhere"),
        ({"tokenizer": "/nowhere", "device": "cuda"}, "/nowhere"),
        ({"max_model_len": 1 << 30, "device": "cuda"}, "positions up to"),
        ({"max_model_len": 1 << 30, "threads": 100_000, "device": "cpu"}, "positions up to"),
        (
            {
                "threads": 100_000, "device": "cpu", "enable_chunked_prefill": False,
                "max_num_batched_tokens": 300,
            },
            "threads must be",
        ),
    ],
)  # fmt: skip
def test_of_two_mistakes_a_dry_run_names_the_one_that_a_start_does(
    options: dict[str, Any], first: str
) -> None:
    config = EngineConfig.from_options(model="quire-tiny-draft", **options)
    with pytest.raises(UserError, match=first) as planned:
        _plan(ModelSpec(name="a", config=config), None)
    with pytest.raises(UserError) as started:
        start_engine(_measured(config, None)[0])
    assert str(planned.value) == str(started.value)


def test_a_cpus_plan_has_a_row_for_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "--dry-run", "--device", "cpu", "--num-blocks", "9"]
    assert main([*words, "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert plan["context"] == BASE_BYTES
    assert main(words) == 0
    assert re.search(f"process +{BASE_BYTES:,} ", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("limit", "status", "problem"),
    [
        (2 * GIB, 0, None),
        (GIB // 2, 1, "the models of the start take [0-9,]+ bytes, but --model-memory-bytes is"),
        (BASE_BYTES, 1, "model a takes [0-9,]+ bytes .*, but --model-memory-bytes is 268,435,456"),
    ],
)
def test_a_dry_run_shares_the_memory_as_a_server_does(
    limit: int, status: int, problem: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    own, memory = ["--device", "cpu"], ["--model-memory-bytes", str(limit)]
    words = [
        "serve",
        "--dry-run",
        *own,
        *memory,
        "--model",
        "a=quire-tiny",
        "--model",
        "b=quire-tiny",
    ]
    assert main([*words, "--json"]) == status
    planned = json.loads(capsys.readouterr().out)
    config = EngineConfig.from_options(model="quire-tiny", device="cpu")
    _, served, _ = _measured(config, limit)
    assert [plan["kv_cache"] for plan in planned] == [served.kv_cache] * 2
    assert [bool(plan["problem"]) for plan in planned] == [problem is not None] * 2
    assert main(words) == status
    assert problem is None or re.search(f"it does not fit: {problem}", capsys.readouterr().out)


def test_steps_whose_offsets_would_overflow_are_refused() -> None:
    """int32 offsets in the largest tensors of a step: gates and ups, and logits."""
    most = 2**31 // (2 * 14_336)
    assert plan_8b(9999, max_num_batched_tokens=most).problem is None
    with pytest.raises(ConfigError, match=f"max_num_batched_tokens .* at most {most:,} .*; lower"):
        plan_8b(9999, max_num_batched_tokens=most + 1)
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens .*; lower it$"):
        plan_8b(9999, max_num_batched_tokens=131_072, enable_chunked_prefill=False)
    with pytest.raises(ConfigError, match=f"at most {most:,} .*; lower max_model_len, as prompts"):
        plan_8b(9999, enable_chunked_prefill=False)
    assert plan_8b(9999, enable_chunked_prefill=False, max_model_len=70_000).problem is None
    most = 2**31 // 128_256
    with pytest.raises(ConfigError, match=f"max_num_seqs .* at most {most:,} .*; lower"):
        plan_8b(9999, max_num_seqs=most + 1, max_num_batched_tokens=50_000)


def test_more_requests_than_attention_counts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_checks.MOST_ROWS == NUM_COUNTERS
    monkeypatch.setattr(device_checks, "MOST_ROWS", 8 * 300)  # 8 key heads
    assert plan_8b(9999, max_num_seqs=300).problem is None
    with pytest.raises(ConfigError, match=r"max_num_seqs .* at most 300 .*; lower"):
        plan_8b(9999, max_num_seqs=301)


def test_shared_prefixes_take_their_part_and_their_graphs() -> None:
    alone, shared = (plan_8b(141, enable_prefix_caching=on) for on in (False, True))
    num_graphs = sum(count >= 4 for count in StepSizes(256, 8192, pads_mixed=True).decodes)
    num_rows = StepSections(0, 256).num_shared_tiles * SHARED_MEMBERS
    least = num_rows * 32 * (128 + 2) * 4 + num_graphs * GRAPH_BYTES
    assert least <= shared.graphs - alone.graphs <= 1.1 * least


def test_how_many_requests_fit() -> None:
    plan = replace(plan_8b(141), num_blocks=1000, max_model_len=8192, max_num_seqs=6)
    assert plan.at_once() == {8192: 1, 2048: 6}


def test_activations_grow_with_the_widest_part() -> None:
    model_config = ModelConfig.from_folder(SHAPE)
    assert activation_bytes(model_config, 2, 2) == 2 * activation_bytes(model_config, 1, 2)
    assert activation_bytes(model_config, 1, 2) > (2 * 4096 + 3 * 14_336) * 2


def test_dry_run_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", str(SHAPE), *_NO_FILES, "--dry-run", "--gpu-memory-gib", "80"]
    assert main(words) == 0
    text = capsys.readouterr().out
    for row in ("weights, bfloat16", "activations", "logits", "graphs", "KV cache", "kept free"):
        assert row in text
    assert "131,072 tokens a request (max_model_len)" in text


@pytest.mark.parametrize("columns", ["20", "40", "60", "80", "200"])
def test_no_digit_is_cut_however_small_the_terminal(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--dry-run", "--gpu-memory-gib", "80"]
    assert main(["serve", *options, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)[0]
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["serve", *options]) == 0
    text = capsys.readouterr().out
    assert "…" not in text
    for size in (plan["total"] - plan["budget"], plan["kv_cache"], *plan["weights"].values()):
        assert f" {size:,}  " in text


def test_dry_run_in_json_of_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", str(SHAPE), *_NO_FILES, "--dry-run", "--json"]
    assert main([*words, "--gpu-memory-gib", "8"]) == 1
    (plan,) = json.loads(capsys.readouterr().out)
    assert plan["max_model_len"] is None
    assert "raise gpu_memory_utilization" in plan["problem"]
    assert main([*words[:-1], "--gpu-memory-gib", "8"]) == 1
    assert "raise --gpu-memory-utilization" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--json"], "--json is for --dry-run"),
        (["--dry-run", "--device", "cpu", "--threads", "100000"], "--threads must be at most"),
        (["--dry-run", "--tokenizer", "/nowhere"], "/nowhere"),
        (["--dry-run", "--generation-config", "/nowhere"], "/nowhere"),
        (["--gpu-memory-gib", "80"], "--gpu-memory-gib is for --dry-run"),
        (["--gpu-memory-gib", "0"], "--gpu-memory-gib is for --dry-run"),
        (["--dry-run", "--gpu-memory-gib", "-1"], "--gpu-memory-gib must be > 0, not -1.0"),
        (["--dry-run", "--device", "cpu", "--gpu-memory-gib", "8"], "--gpu-memory-gib is for GPUs"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words]) == 2
    assert message in capsys.readouterr().err
