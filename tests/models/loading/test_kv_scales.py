"""Scales of an FP8 KV cache: read by any library's names, folded into weights without a trace."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from harness import PagedModel, load_folder
from quantized_checkpoints import write_quantized
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.config import EngineConfig
from quire.engine.startup.resolved_config import resolve
from quire.errors import CheckpointError, ConfigError
from quire.kernels.reference import FP8
from quire.models.checkpoint_formats.kv_cache_scheme import kv_scale_name
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.config.model_config import ModelConfig
from quire.models.loading.kv_scales import read_kv_scales

PROMPT = [5, 60, 70, 8, 90, 100, 300] * 6
SELF = "model.layers.{}.self_attn."


@pytest.mark.parametrize(
    ("name", "kinds"),
    {
        "k_scale": "k",
        "v_scale": "v",
        "attn.v_scale": "v",
        "k_proj.k_scale": "k",
        "qkv_proj.v_scale": "v",
        "v_proj.output_scale": "v",
        "kv_scale": "kv",
        "q_scale": "",
        "prob_scale": "",
        "q_proj.output_scale": "",
        "o_proj.output_scale": None,
        "k_proj.weight_scale": None,
    }.items(),
)
def test_names_of_all_libraries_are_known(name: str, kinds: str | None) -> None:
    found = kv_scale_name(SELF.format(3) + name)
    assert (None if found is None else found.kinds) == kinds
    assert found is None or found.layer == "model.layers.3"


def with_scales(folder: Path, to: Path, scales: dict[str, Tensor]) -> Path:
    """A copy of a checkpoint with scales in its attention layers."""
    tensors = load_file(folder / "model.safetensors")
    tensors |= {SELF.format(i) + name: t.clone() for i in range(2) for name, t in scales.items()}
    save_file(tensors, to / "model.safetensors")
    (to / "config.json").write_text((folder / "config.json").read_text())
    return to


SCALES = {
    "k_scale": torch.tensor(0.3),
    "v_scale": torch.tensor([0.01, 5.0]),
    "q_scale": torch.ones(1),
}


@pytest.mark.parametrize("name", ["llama_biased", "qwen3", "phi3", "gemma2"])
def test_folding_is_exact(
    checkpoint: Callable, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Scales are powers of two wherever they are multiplied, so no bit of the logits differs."""
    folder, _ = checkpoint(name)
    caplog.set_level(logging.INFO)
    plain, scaled = (
        PagedModel(*load_folder(path, prepared_weights="none")).prefill(PROMPT)
        for path in (folder, with_scales(folder, tmp_path, SCALES))
    )
    assert torch.equal(plain, scaled)
    assert "KV scales of 2 layers are folded into their weights; 2 of queries" in caplog.text


@pytest.mark.parametrize("name", ["fp8", "fp8_block", "mxfp4", "packed", "int8"])
def test_codes_keep_their_numbers(name: str, tmp_path: Path) -> None:
    write_quantized(name, tmp_path)
    plain = PagedModel(*load_folder(tmp_path, prepared_weights="none")).prefill(PROMPT)
    with_scales(tmp_path, tmp_path, SCALES)
    scaled = PagedModel(*load_folder(tmp_path, prepared_weights="none")).prefill(PROMPT)
    assert torch.equal(plain, scaled)


@pytest.mark.parametrize("name", ["llama_biased", "phi3"])
def test_large_keys_and_values_fit_by_their_scales(
    checkpoint: Callable, name: str, tmp_path: Path
) -> None:
    """Keys and values 4,096 times as large: FP8 clips them, but for their scales."""
    folder, theirs = checkpoint(name)
    exact = PagedModel(*load_folder(folder)).prefill(PROMPT)
    tensors, heads = load_file(folder / "model.safetensors"), theirs.config
    size = heads.num_key_value_heads * heads.hidden_size // heads.num_attention_heads
    for key, tensor in tensors.items():
        if "qkv_proj" in key:
            tensor[: -2 * size] /= 4096
            tensor[-2 * size :] *= 4096
        elif ".k_proj" in key or ".v_proj" in key:
            tensor *= 4096
        elif ".q_proj" in key or "o_proj.weight" in key:
            tensor /= 4096
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    found = []
    for scales in (
        {},
        {"k_proj.k_scale": torch.tensor(40.0), "v_proj.v_scale": torch.ones(2) * 40},
    ):
        with_scales(tmp_path, tmp_path, scales)
        loaded = load_folder(tmp_path, prepared_weights="none")
        ours = PagedModel(*loaded, dtype=FP8).prefill(PROMPT, chunk=7)
        found.append(F.cosine_similarity(ours, exact).min())
    assert found[0] < 0.9
    assert found[1] > 0.98


@pytest.mark.parametrize(
    ("scale", "rounded"),
    [(0.3, 0.5), (0.5, 0.5), (1.0, 1.0), (4096.0, 4096.0), (2.0**-12, 2.0**-12), (1e-9, 2.0**-12)],
)
def test_a_scale_is_rounded_up_to_a_power_of_two(
    checkpoint: Callable, tmp_path: Path, scale: float, rounded: float
) -> None:
    scales = {"k_scale": torch.tensor(scale), "v_scale": torch.tensor([scale / 2, scale])}
    folder = with_scales(checkpoint("llama")[0], tmp_path, scales)
    found = read_kv_scales(Checkpoint.open(folder), "")
    assert [*found.values()] == [{"k": rounded, "v": rounded}] * 2


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_scale_is_named(checkpoint: Callable, tmp_path: Path, scale: float) -> None:
    folder = with_scales(checkpoint("llama")[0], tmp_path, {"k_scale": torch.tensor(scale)})
    with pytest.raises(CheckpointError, match=r"0.self_attn.k_scale.*not above zero"):
        load_folder(folder, prepared_weights="none")


@pytest.mark.parametrize("quantization", ["none", "int4", "nf4"])
def test_tiny_scales_stay_in_range(checkpoint: Callable, tmp_path: Path, quantization: str) -> None:
    """Weights divided by them would be infinite, or their scales in float16."""
    scales = {"k_scale": torch.tensor(1e-38), "v_scale": torch.tensor(1e-38)}
    folder = with_scales(checkpoint("llama")[0], tmp_path, scales)
    plain, scaled = (
        PagedModel(*load_folder(path, prepared_weights="none", quantization=quantization))
        for path in (checkpoint("llama")[0], folder)
    )
    torch.testing.assert_close(plain.prefill(PROMPT), scaled.prefill(PROMPT), atol=2e-2, rtol=0.05)


@pytest.mark.parametrize("scale", [1e5, 1e30])
def test_scales_that_no_weight_holds_are_named(
    checkpoint: Callable, tmp_path: Path, scale: float
) -> None:
    folder = with_scales(checkpoint("llama")[0], tmp_path, {"v_scale": torch.tensor(scale)})
    with pytest.raises(CheckpointError, match=r"0.self_attn.v_scale.*a KV scale is 1e\+"):
        load_folder(folder, prepared_weights="none")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"kv_cache_scheme": {"type": "float", "num_bits": 8, "dynamic": False}}, "fp8"),
        ({"kv_cache_scheme": {"type": "int", "num_bits": 8}}, None),
        ({"kv_cache_scheme": None}, None),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_scheme": "FP8"}, "fp8"),
        ({"kv_cache_scheme": "NVFP4"}, None),  # ModelOpt's, where it is not FP8
    ],
)
def test_auto_takes_the_checkpoints_type(
    config: dict[str, object], expected: str | None, tmp_path: Path
) -> None:
    def change(_: object, values: dict[str, dict[str, object]]) -> None:
        values["quantization_config"] |= config

    write_quantized("fp8", tmp_path, change)
    assert ModelConfig.from_folder(tmp_path).kv_cache_dtype == expected
    kinds = {"auto": expected and "float8_e4m3fn", "bfloat16": None, "int8": "int8"}
    for setting, stored in kinds.items():
        options = {"dtype": "bfloat16", "kv_cache_dtype": setting}
        asked = EngineConfig.from_options(model=str(tmp_path), quality_gate="off", **options)
        assert resolve(asked, "cpu").kv_dtype == (stored or "bfloat16")


def test_modelopt_says_it_beside_the_config(checkpoint: Callable, tmp_path: Path) -> None:
    folder = with_scales(checkpoint("llama")[0], tmp_path, {})
    values = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(values))
    assert ModelConfig.from_folder(folder).kv_cache_dtype == "fp8"


def test_16_bits_that_are_not_the_models_are_refused(checkpoint: Callable) -> None:
    folder, _ = checkpoint("llama")
    options = {"dtype": "float32", "kv_cache_dtype": "bfloat16"}
    with pytest.raises(ConfigError, match="'bfloat16', but the model runs in float32"):
        resolve(EngineConfig.from_options(model=str(folder), **options), "cpu")
