"""What is told before loading is what a model takes: weights and KV cache to the byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quire.config import EngineConfig
from quire.engine.startup.footprint import BASE_BYTES, footprint_of
from quire.engine.startup.start_engine import start_engine
from quire.errors import CheckpointError, ConfigError
from quire.hub import resolve_model
from quire.models.config.model_config import ModelConfig
from quire.models.loading.loader import load_model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize("quantization", ["none", "fp8", "dequantized"])
def test_weights(dtype: str, load_format: str, quantization: str) -> None:
    model = "quire-tiny-draft"
    config = EngineConfig.from_options(
        model=model, dtype=dtype, load_format=load_format, quantization=quantization
    )
    folder = resolve_model(model)
    model_config = ModelConfig.from_folder(folder)
    loaded = load_model(config.model, model_config, folder, torch.device("cpu"), DTYPES[dtype])
    named = [*loaded.named_parameters(), *loaded.named_buffers()]
    weights = sum(_bytes(t, DTYPES[dtype]) for name, t in named if "rotary" not in name)
    assert footprint_of(config).weights == pytest.approx(weights, rel=0.01)


def _bytes(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    return tensor.numel() * (
        tensor.itemsize if tensor.dtype == torch.float8_e4m3fn else dtype.itemsize
    )


@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": 50},
        {"num_blocks": 50, "block_size": 32, "dtype": "bfloat16"},
        {"num_blocks": 50, "kv_cache_dtype": "fp8"},
        {"kv_cache_memory_bytes": 5_000_000, "kv_cache_dtype": "fp8_e4m3"},
        {"num_blocks": 50, "kv_cache_dtype": "int8"},
        {"kv_cache_memory_bytes": 5_000_000},
        {"kv_cache_memory_bytes": 5_000_000, "max_num_seqs": 2, "max_model_len": 100},
        {"load_format": "null"},
    ],
)
def test_kv_cache(options: dict[str, Any]) -> None:
    config = EngineConfig.from_options(model="quire-tiny-draft", **options)
    _, info = start_engine(config)
    assert footprint_of(config).kv_cache == info.kv_cache_bytes


def test_a_kv_cache_with_a_size_is_not_cut_to_what_its_requests_use() -> None:
    few = {"model": "quire-tiny", "max_num_seqs": 1, "max_model_len": 100}
    found = footprint_of(EngineConfig.from_options(kv_cache_memory_bytes=1 << 32, **few))
    assert (1 << 32) - (1 << 20) < found.kv_cache <= 1 << 32
    assert footprint_of(EngineConfig.from_options(**few)).kv_cache < 1 << 20


def test_a_kv_cache_without_a_size_gets_its_share_of_the_memory() -> None:
    config = EngineConfig.from_options(model="quire-tiny")
    found = footprint_of(config, 100 << 20)
    assert 24 << 20 < found.kv_cache <= 25 << 20
    assert found.total == found.weights + found.kv_cache + BASE_BYTES
    assert footprint_of(config).kv_cache > found.kv_cache  # of this machine's


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        footprint_of(EngineConfig.from_options(model="./nowhere"))


def test_weights_that_the_machine_cannot_hold_are_refused_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig.from_options(model="quire-tiny-draft", prepared_weights="none")
    module, free = "quire.engine.startup.footprint", 1000
    monkeypatch.setattr(f"{module}.available_bytes", lambda: free)
    start_engine(config)
    assert "but 1,000 are free, so the system may kill this process; free memory, " in caplog.text
    monkeypatch.setattr(f"{module}.most_bytes", lambda: 2 * free)
    text = (
        r"the weights take [\d,]+ bytes, but this machine has 2,000; take a smaller model, or set q"
    )
    with pytest.raises(ConfigError, match=text):
        start_engine(config)
