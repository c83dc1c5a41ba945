"""FP8 checkpoints: rounding of activations, other config files, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from harmed_checkpoints import cast, configure, drop, refusals, spoil
from harness import load_folder
from quantized_checkpoints import DOWN, METHODS, write_quantized
from torch import Tensor

from quire.compress.model_parts import ModelParts
from quire.config import ModelSettings
from quire.config_file import ConfigFile
from quire.errors import CheckpointError
from quire.models.checkpoint_formats.checkpoint_scheme import choose_formats
from quire.models.checkpoint_formats.modelopt import read_modelopt
from quire.models.config.model_config import ModelConfig


def test_gate_and_up_are_in_fp8_on_a_gpu_whatever_down_is(tmp_path: Path) -> None:
    """`method_for` sees both formats, so that no activation is rounded for one that is not."""
    write_quantized("float_channel", tmp_path)
    config = ModelConfig.from_folder(tmp_path)
    scheme = choose_formats(ModelSettings(), config.checkpoint_format, config.spec, "cuda")
    assert scheme is not None
    found = {
        name: scheme.format_for(name, linear.role, linear.n, linear.k)
        for name, linear in config.spec.named_linears
    }
    numbers = {name for name, each in found.items() if each is None}
    assert numbers == {DOWN, "lm_head"}


def not_a_number(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    """The last code of a weight."""
    tensors["model.layers.0.mlp.up_proj.weight"].view(torch.uint8)[-1, -1] = 0xFF


FP8_METHODS = [
    name for name in METHODS if name.startswith(("fp8", "float", "modelopt")) and "fp4" not in name
]


@pytest.mark.parametrize("setting", ["none", "fp8"])
@pytest.mark.parametrize("name", FP8_METHODS)
def test_codes_in_fp8_that_are_not_a_number_are_refused(
    name: str, setting: str, tmp_path: Path
) -> None:
    """Whatever becomes of them: requests would fail, without a word of which weight it is."""
    write_quantized(name, tmp_path, not_a_number)
    with pytest.raises(CheckpointError, match="up_proj: its weight has a number that is not fin"):
        load_folder(tmp_path, prepared_weights="none", quantization=setting)


@pytest.mark.parametrize("name", ["float_tokens", "fp8_block"])
def test_a_quality_report_rounds_activations_as_fp8_checkpoints_expect(
    name: str, tmp_path: Path
) -> None:
    write_quantized(name, tmp_path)
    parts = ModelParts(tmp_path, torch.device("cpu"))
    module, linear = "model.layers.0.mlp.down_proj", parts.spec.layers[0].mlp.down
    rounding = parts.activation_rounding(module, linear)
    assert rounding is not None
    assert rounding(torch.full((1, linear.k), 1.01))[0, 0] == 1.0


def test_modelopts_own_config_file_is_read(tmp_path: Path) -> None:
    def move(_: dict[str, Tensor], config: dict[str, Any]) -> None:
        own = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head", DOWN]}}
        del config["quantization_config"]
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(own))

    write_quantized("modelopt", tmp_path, move)
    found = ModelConfig.from_folder(tmp_path).checkpoint_format
    assert found is not None
    assert found.stored_linear(DOWN) is None
    assert found.stored_linear(DOWN.replace("1", "0")) is not None
    load_folder(tmp_path, prepared_weights="none")


def scale_inputs(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    """ModelOpt's SmoothQuant and AWQ, where no norm takes the scales up."""
    tensors["model.layers.0.mlp.down_proj.pre_quant_scale"] = torch.ones(256)


def test_groups_of_modelopts_weights_are_those_of_either_file() -> None:
    groups = {"group_0": {"weights": {"group_size": 32}}}
    for own in ({"group_size": 32}, {"config_groups": groups}):
        values = {"quant_algo": "W4A16_NVFP4", **own}
        found = read_modelopt(ConfigFile(Path("config.json"), values)).stored_linear(DOWN)
        assert found is not None
        assert found.tensors(128, 256)["weight_scale"].shapes == ((128, 8),)


def test_codes_without_a_config_are_refused(tmp_path: Path) -> None:
    write_quantized("fp8", tmp_path, lambda _, config: config.pop("quantization_config"))
    with pytest.raises(CheckpointError, match=r"config.json has no quantization_config: take"):
        load_folder(tmp_path, prepared_weights="none")


test_what_does_not_fit_fp8_is_refused_by_name = refusals(
    (
        "modelopt",
        configure(quant_algo="W4A8_AWQ"),
        r"quant_algo is 'W4A8_AWQ'; take a checkpoint in",
    ),
    (
        "modelopt",
        scale_inputs,
        r"down_proj.pre_quant_scale; .* multiplied by pre_quant_scale, which",
    ),
    ("fp8", cast("weight", torch.bfloat16), r"up_proj.weight .*BF16, not the F8_E4M3"),
    ("fp8", cast("weight", torch.float8_e4m3fnuz), r"weight .*F8_E4M3FNUZ, not the F8_E4M3"),
    ("fp8", configure(weight_block_size=[128]), r"weight_block_size is \[128\]; it must be two"),
    ("fp8", configure(fmt="e5m2"), r"fmt is 'e5m2'; take a checkpoint in e4m3"),
    ("fp8", configure(weight_scale_semantics="x"), r"weight_scale_semantics is 'x', which is"),
    ("fp8_reciprocal_block", spoil("weight_scale_inv", 0.0), r"its .*_inv divides by zero"),
    (
        "fp8_block_exponents",
        spoil("weight_scale_inv"),
        r"up_proj: its weight_scale_inv has a number that is not finite",
    ),
    ("fp8", drop("weight_scale"), r"missing: model.layers.0.mlp.up_proj.weight_scale"),
)
