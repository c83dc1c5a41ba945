"""NVFP4 checkpoints on a GPU: their codes stay codes, and give the logits of their numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from codebook_checkpoints import E2M1
from gpu_marks import capability_here
from harness import PagedModel, load_folder
from quantized_checkpoints import write_quantized
from safetensors.torch import load_file, save_file

from quire.config import ModelSettings
from quire.kernels.dispatch import kernels_for
from quire.kernels.formats.fp4 import NVFP4
from quire.kernels.operands import Int4Words
from quire.layers.linear_layers import LinearBase
from quire.models.checkpoint_formats.checkpoint_scheme import choose_formats
from quire.models.checkpoint_formats.stored_fp4 import Nvfp4Linear
from quire.models.config.model_config import ModelConfig
from quire.models.loading import loader

pytestmark = [pytest.mark.gpu] * (capability_here() != (0, 0))  # else Triton interprets
DEVICE, DTYPE = ("cuda", torch.bfloat16) if pytestmark else ("cpu", torch.float16)
NAMES = pytest.mark.parametrize("name", ["nvfp4", "modelopt_nvfp4", "auto_round_nvfp4"])
MODULE = "model.layers.0.self_attn.o_proj"


@NAMES
def test_rows_are_the_stored_codes(name: str, tmp_path: Path) -> None:
    write_quantized(name, tmp_path)
    checkpoint = ModelConfig.from_folder(tmp_path).checkpoint_format
    stored = None if checkpoint is None else checkpoint.stored_linear(MODULE)
    assert isinstance(stored, Nvfp4Linear)
    tensors = load_file(tmp_path / "model.safetensors")
    own = {leaf: tensors[f"{MODULE}.{leaf}"] for leaf in stored.tensors(128, 128)}
    rows = stored.rows(own)
    assert rows.spec == NVFP4.spec == stored.spec(128)
    pairs = torch.stack([own[stored.codes] & 15, own[stored.codes] >> 4], dim=2).flatten(1).int()
    whole = own[stored.whole].reshape(())
    scale = own["weight_scale"].float() * (1.0 / whole if name != "modelopt_nvfp4" else whole)
    expected = torch.tensor(E2M1)[pairs] * scale.repeat_interleave(16, dim=1)
    assert torch.equal(NVFP4.dequantize(rows), expected)
    torch.testing.assert_close(stored.numbers(own, "float32"), expected)


@NAMES
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), None])
def test_codes_stay_codes_on_every_gpu(
    name: str, dtype: str, capability: tuple[int, int] | None, tmp_path: Path
) -> None:
    write_quantized(name, tmp_path)
    config = ModelConfig.from_folder(tmp_path)
    for device, expected in (("cuda", NVFP4), ("cpu", None)):
        scheme = choose_formats(
            ModelSettings(), config.checkpoint_format, config.spec, device,
            dtype=dtype, capability=capability,
        )  # fmt: skip
        assert scheme is not None
        assert scheme.format_for(MODULE, "layer", 128, 128) == expected


def add_kv_scales(folder: Path) -> None:
    """Let a checkpoint have scales of keys and values, as ModelOpt's usually have."""
    tensors = load_file(folder / "model.safetensors")
    layers = {name.partition(".self_attn")[0] for name in tensors if ".self_attn." in name}
    for layer in layers:
        tensors[f"{layer}.self_attn.k_proj.k_scale"] = torch.tensor(4.0)
        tensors[f"{layer}.self_attn.v_proj.v_scale"] = torch.tensor(8.0)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    scheme = {"num_bits": 8, "type": "float", "dynamic": False}
    config["quantization_config"]["kv_cache_scheme"] = scheme
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("name", "has_kv_scales"),
    [
        ("nvfp4", False),
        ("modelopt_nvfp4", False),
        ("auto_round_nvfp4", False),
        ("modelopt_nvfp4", True),
    ],
)
def test_logits_are_those_of_the_numbers(
    name: str, has_kv_scales: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one token at a time, and of all at once; parts of fused weights differ in their scales."""

    def for_a_gpu(settings: Any, checkpoint: Any, spec: Any, _: str, **options: Any) -> Any:
        return choose_formats(settings, checkpoint, spec, "cuda", **options)

    write_quantized(name, tmp_path)
    if has_kv_scales:
        add_kv_scales(tmp_path)
    numbers, config = load_folder(tmp_path, prepared_weights="none", quantization="dequantized")
    monkeypatch.setattr(loader, "choose_formats", for_a_gpu)
    settings = ModelSettings(model=str(tmp_path))
    model = loader.load_model(
        settings, config, tmp_path, torch.device(DEVICE), DTYPE, kernels_for("cuda")
    )
    found = [m.method.operand for m in model.modules() if isinstance(m, LinearBase)]
    assert {words.group for words in found if isinstance(words, Int4Words)} == {16}
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    expected = PagedModel(numbers, config).prefill(prompt)
    for chunk in (1, 8):
        scores = PagedModel(model, config, dtype=DTYPE, device=DEVICE).prefill(prompt, chunk)
        error = (scores - expected).norm() / expected.norm()
        assert error < 2e-2, (chunk, error)
