"""One policy of device, data type and need for PyTorch, for plans and for both kinds of starts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from quire.config import EngineConfig
from quire.engine.startup import device_policy, footprint, torch_start
from quire.engine.startup.device_policy import (
    FP8,
    choose_dtype,
    choose_kv_dtype,
    device_type,
    torch_reason,
)
from quire.engine.startup.memory_plan import DeviceMemory, plan_memory
from quire.engine.startup.start_engine import start_engine
from quire.engine.startup.torch_start import _FP8_WEIGHTS, torch_device
from quire.errors import CheckpointError, ConfigError
from quire.hub import resolve_model
from quire.kernels.cpu import native
from quire.models.checkpoint_formats.awq import AwqLinear
from quire.models.checkpoint_formats.module_rules import ModuleRules
from quire.models.config.model_config import ModelConfig

MODEL_CONFIG = ModelConfig.from_folder(resolve_model("quire-tiny"))


def config_of(**options: Any) -> EngineConfig:
    return EngineConfig.from_options(**options)


@pytest.fixture
def gpu_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that NVIDIA's driver would make, with a GPU, and a PyTorch that could use it."""
    file = tmp_path / "nvidiactl"
    file.touch()
    monkeypatch.setattr(device_policy, "_GPU_FILES", (file,))
    monkeypatch.setattr(device_policy, "is_cpu_build", lambda _: False)
    monkeypatch.setattr(device_policy, "driver_capability", lambda: (9, 0))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return file


def test_auto_is_a_gpu_that_pytorch_can_use(
    gpu_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device_type(config_of()) == device_type(config_of(device="cuda")) == "cuda"
    assert device_type(config_of(device="cpu")) == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device_type(config_of()) == "cpu"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(device_policy, "is_cpu_build", lambda _: True)
    assert device_type(config_of()) == "cpu"
    monkeypatch.setattr(device_policy, "is_cpu_build", lambda _: False)
    gpu_file.unlink()
    assert device_type(config_of()) == "cpu"


@pytest.mark.usefixtures("gpu_file")
def test_a_driver_without_a_gpu_is_none_for_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that took its files for a GPU refused what `LLM` ran on the CPU."""
    monkeypatch.setattr(device_policy, "driver_capability", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_type(config_of()) == torch_device(config_of()).type == "cpu"
    assert torch_reason(config_of()) != "the model runs on a GPU"
    assert not caplog.text
    assert device_type(config_of(device="cuda")) == "cuda"


@pytest.mark.parametrize("is_available", [False, True])
def test_pytorch_may_overrule_auto_and_says_so(
    gpu_file: Path,
    is_available: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
    if is_available:
        gpu_file.unlink()
    assert torch_device(config_of()).type == ("cuda" if is_available else "cpu")
    assert "PyTorch sees" in caplog.text
    assert torch_device(config_of(device="cpu")).type == "cpu"
    if not is_available:
        with pytest.raises(ConfigError, match="PyTorch finds no GPU"):
            torch_device(config_of(device="cuda"))


@pytest.mark.parametrize("checkpoint", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_quantized_checkpoints_run_in_bfloat16(
    checkpoint: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "flags : amx_tile avx512_bf16")
    stored = ModuleRules(name="awq", linear=AwqLinear("", 128))
    model_config = replace(MODEL_CONFIG, dtype=checkpoint, checkpoint_format=stored)
    assert choose_dtype(config_of(device=device), model_config) == "bfloat16"
    assert choose_dtype(config_of(device=device, dtype="float32"), model_config) == "float32"


@pytest.mark.parametrize(
    ("checkpoint", "emulates", "options", "dtype"),
    [
        ("bfloat16", True, {}, "float32"),
        ("bfloat16", False, {}, "bfloat16"),
        ("float16", False, {}, "float32"),  # which every CPU emulates
        ("float32", True, {}, "float32"),
        ("bfloat16", True, {"dtype": "bfloat16"}, "bfloat16"),
        ("bfloat16", True, {"device": "cuda"}, "bfloat16"),
    ],
)
def test_the_data_type_of_a_small_model(
    checkpoint: str,
    emulates: bool,
    options: dict[str, Any],
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "flags : fma" if emulates else "flags : amx_tile avx512_bf16"
    monkeypatch.setattr(Path, "read_text", lambda _: text)
    config = config_of(**({"device": "cpu"} | options))
    model_config = replace(MODEL_CONFIG, dtype=checkpoint)
    assert choose_dtype(config, model_config) == dtype


def test_a_data_type_without_kernels_is_refused() -> None:
    with pytest.raises(CheckpointError, match="dtype is 'float64'; set dtype to one of"):
        choose_dtype(config_of(device="cpu"), replace(MODEL_CONFIG, dtype="float64"))


def test_a_plan_and_both_starts_agree(tmp_path: Path) -> None:
    config = config_of(device="cpu", num_blocks=8, prepared_weights=str(tmp_path))
    gib = 2**30
    plan = plan_memory(config, DeviceMemory("cpu", 16 * gib, 16 * gib))
    _, info = start_engine(config)
    _, resolved = torch_start.resolve_for_torch(config)
    assert plan.weights.keys() == {info.dtype} == {resolved.dtype}


@pytest.mark.parametrize(("capability", "name"), [((8, 6), "bfloat16"), ((8, 9), FP8), (None, FP8)])
def test_an_fp8_kv_cache_of_the_checkpoint_is_decided_once(
    capability: tuple[int, int] | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan and the start of a GPU that does not convert FP8 take the model's data type."""
    model_config = replace(MODEL_CONFIG, kv_cache_dtype="fp8", dtype="bfloat16")
    config = config_of(device="cuda", dtype="bfloat16")
    assert choose_kv_dtype(config, model_config, capability) == name
    monkeypatch.setattr(footprint, "driver_capability", lambda: capability)
    monkeypatch.setattr(
        torch_start.torch.cuda, "get_device_capability", lambda _: capability or (9, 0)
    )
    resolved = SimpleNamespace(config=config, model_config=model_config, kv_dtype=FP8)
    monkeypatch.setattr(torch_start, "replace", lambda _, kv_dtype: kv_dtype)
    started = torch_start._with_known_kv_dtype(resolved, torch.device("cuda"))  # type: ignore[arg-type]
    assert started == name
    planned = footprint.block_bytes_of(config, model_config)
    plain = footprint.block_bytes_of(config, replace(model_config, kv_cache_dtype=None))
    assert planned == (plain // 2 if name == FP8 else plain)


def test_an_fp8_kv_cache_that_the_settings_ask_for_is_refused_by_an_old_gpu() -> None:
    config = config_of(device="cuda", dtype="bfloat16", kv_cache_dtype="fp8")
    with pytest.raises(ConfigError, match=r"^kv_cache_dtype is 'fp8', .* this one has 8\.6"):
        choose_kv_dtype(config, MODEL_CONFIG, (8, 6))


@pytest.mark.skipif(native.library() is None, reason="the kernels were not built")
def test_a_start_says_why_it_needs_pytorch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for options, reason in (
        ({}, "there are no prepared weights"),
        ({"quantization": "fp8"}, "quantization is fp8"),
        ({"quantization": "fp8_w8a16"}, "quantization is fp8_w8a16: the compiled kernels have no"),
        ({"quantization": "int8", "quantization_overrides": "lm_head=fp8"}, "quantization is int8"),
        ({"dtype": "float16"}, "dtype is float16"),
    ):
        caplog.clear()
        start_engine(
            config_of(
                model="quire-tiny-draft", device="cpu", num_blocks=8,
                prepared_weights=str(tmp_path), **options,
            )
        )  # fmt: skip
        assert f"this start needs PyTorch: {reason}" in caplog.text
        warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        is_slow = "fp8" in str(options)
        assert warnings.count(_FP8_WEIGHTS) == is_slow, options
    assert torch_reason(config_of(device="cuda")) == "the model runs on a GPU"
    assert torch_reason(config_of(device="cpu")) is None


@pytest.mark.parametrize(
    ("machine", "message"), [("x86_64", "install again with a C++ compiler"), ("aarch64", "yet")]
)
def test_a_start_without_kernels_says_what_helps(
    machine: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert message in torch_start._no_kernels()
