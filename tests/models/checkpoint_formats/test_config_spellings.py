"""Checkpoints as other tools and versions spell them: they load as those of the usual spelling."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from harmed_checkpoints import case_id, check_refused, configure, refusals
from harness import PagedModel, load_folder
from quantized_checkpoints import DOWN, METHODS, Change, write_quantized
from torch import Tensor

from quire import hub
from quire.config import EngineConfig
from quire.config_file import ConfigFile
from quire.engine.startup.resolved_config import resolve
from quire.errors import CheckpointError
from quire.model_folder import QUANTIZATION_FILES
from quire.models.checkpoint_formats.kv_cache_scheme import read_kv_cache_dtype
from quire.models.checkpoint_formats.quantization_config import (
    quantization_section,
    read_checkpoint_format,
)

PROMPT = torch.randint(3, 500, (12,), generator=torch.Generator().manual_seed(1)).tolist()


def rename(renamed: dict[str, str], **added: Any) -> Change:
    """Keys of quantization_config under other names, or none (""); and what is added."""

    def change(_: dict[str, Tensor], config: dict[str, Any]) -> None:
        own = config["quantization_config"]
        found = {renamed.get(key, key): value for key, value in own.items()}
        config["quantization_config"] = {k: v for k, v in found.items() if k} | added

    return change


def beside_each_codes(leaf: str, value: Tensor) -> Change:
    """One more tensor in each quantized module."""

    def change(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.endswith("_scale")]:
            tensors[f"{name.rpartition('.')[0]}.{leaf}"] = value.clone()

    return change


def store_as(dtype: str) -> Change:
    """bitsandbytes' codes as they are saved for training in shards: the same bytes."""

    def change(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        config["quantization_config"] |= {"bnb_4bit_quant_storage": dtype}
        for name in [name for name in tensors if name.endswith(".weight.absmax")]:
            codes = name.removesuffix(".absmax")
            tensors[codes] = tensors[codes].flatten().view(getattr(torch, dtype))[:, None]

    return change


def add_group(**group: Any) -> Change:
    """One more group of compressed-tensors' config."""

    def change(_: dict[str, Tensor], config: dict[str, Any]) -> None:
        section = copy.deepcopy(config["quantization_config"])
        section["config_groups"]["group_1"] = group
        config["quantization_config"] = section

    return change


def nest(_: dict[str, Tensor], config: dict[str, Any]) -> None:
    """As transformers saved a model that it had loaded with compressed-tensors."""
    inner = config["quantization_config"]
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "quantization_config": inner, "sparsity_config": {},
    }  # fmt: skip


def as_compression_config(_: dict[str, Tensor], config: dict[str, Any]) -> None:
    config["compression_config"] = config.pop("quantization_config")


def without_order(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    """llm-compressor's `actorder` where nothing was ordered: all groups are -1."""
    for name in [name for name in tensors if name.endswith("weight_packed")]:
        order = torch.full((8 * tensors[name].shape[1],), -1, dtype=torch.int32)
        tensors[name.replace("packed", "g_idx")] = order


def text_of_block(_: dict[str, Tensor], config: dict[str, Any]) -> None:
    section = copy.deepcopy(config["quantization_config"])
    section["config_groups"]["group_0"]["weights"]["block_structure"] = "48x64"
    config["quantization_config"] = section


def as_fbgemm(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    config["quantization_config"] = {
        "quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
        "modules_to_not_convert": ["lm_head", DOWN],
    }  # fmt: skip
    beside_each_codes("input_scale_ub", torch.tensor([1200.0]))(tensors, config)


def as_mixed(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """ModelOpt's config where modules differ, and have names."""
    modules = [name.removesuffix(".weight_scale") for name in tensors if name.endswith("_scale")]
    config["quantization_config"] = {
        "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {module: {"quant_algo": "FP8"} for module in modules},
    }  # fmt: skip


def logits(folder: Path) -> Tensor:
    return PagedModel(*load_folder(folder, prepared_weights="none")).prefill(PROMPT)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("nf4_nested", rename({"quant_method": ""})),  # transformers before 4.35
        ("nf4", store_as("bfloat16")),
        ("nf4_nested", store_as("float32")),
        ("packed", rename({}, quant_method="compressed_tensors")),
        ("packed", nest),
        ("packed", as_compression_config),
        ("packed", without_order),
        ("packed", beside_each_codes("input_scale", torch.ones(1))),
        ("packed", rename({}, sparsity_config={"format": "dense"})),
        ("packed", rename({}, quantization_status="frozen")),  # older llm-compressor's
        ("packed", add_group(targets=["LlamaAttention"], input_activations={"num_bits": 8})),
        ("int8", beside_each_codes("input_zero_point", torch.zeros(1, dtype=torch.int8))),
        ("float_tokens", beside_each_codes("output_scale", torch.ones(1))),
        ("float_block", text_of_block),
        ("float_tokens", as_fbgemm),
        ("gptq_v2", rename({"checkpoint_format": "format"})),
        ("awq", rename({"version": "format"}, checkpoint_format="gemm")),  # GPTQModel's
        ("awq", rename({"modules_to_not_convert": ""}, dynamic={f"-:{DOWN}": {}})),
        ("awq", rename({"bits": "w_bit", "group_size": "q_group_size"})),
        ("modelopt", rename({"ignore": ""}, exclude_modules=["lm_head", "layers.1.mlp.down_proj"])),
        ("modelopt", as_mixed),
        ("float_channel", rename({}, ignore=["lm_head", f"re:{DOWN}"])),
        ("float_channel", rename({}, ignore=[DOWN])),  # AutoRound's, which names no head
        ("packed", rename({}, ignore=[DOWN])),
    ],
    ids=case_id,
)
def test_each_spelling_is_read_as_the_usual_one(name: str, change: Change, tmp_path: Path) -> None:
    for folder, own in (("usual", None), ("other", change)):
        write_quantized(name, tmp_path / folder, own)
    assert torch.equal(logits(tmp_path / "usual"), logits(tmp_path / "other"))


@pytest.mark.parametrize(
    ("file", "name"),
    [("quantize_config.json", "gptq"), ("quant_config.json", "awq")],
)
def test_files_beside_config_json_are_read(file: str, name: str, tmp_path: Path) -> None:
    """AutoGPTQ and AutoAWQ wrote into config.json only later, and named no method."""

    def move(_: dict[str, Tensor], config: dict[str, Any]) -> None:
        own = config.pop("quantization_config")
        own = {key: value for key, value in own.items() if key != "quant_method"}
        (tmp_path / "other" / file).write_text(json.dumps(own))

    (tmp_path / "other").mkdir()
    write_quantized(name, tmp_path / "usual")
    write_quantized(name, tmp_path / "other", move)
    assert torch.equal(logits(tmp_path / "usual"), logits(tmp_path / "other"))

    def harm(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        move(tensors, config)
        own = json.loads((tmp_path / "other" / file).read_text()) | {"group_size": 48}
        (tmp_path / "other" / file).write_text(json.dumps(own))

    check_refused(name, harm, rf"its shape is .* of {file} \(.*group_size=48", tmp_path / "other")


ODD: tuple[Any, ...] = (
    None, True, 0, -1, 10**30, 1.5, float("nan"), "", "(", "9x9x9", "a" * 5000, [], [1], [["a"]],
    {}, {"a": 1}, {"a": {}}, {"a": ["b"]},
)  # fmt: skip
MORE: dict[str, dict[str, Any]] = {  # settings that the checkpoints of other tests lack
    "awq": {"dynamic": {"+:a": {"group_size": 1}}, "lm_head": True},
    "gptq": {"modules_in_block_to_quantize": [["a"]], "format": "gptq", "is_marlin_format": False},
    "packed": {
        "sparsity_config": {"format": "dense"},
        "transform_config": {"config_groups": {"a": {"apply": [{"location": "weight_input"}]}}},
        "kv_cache_scheme": {"type": "float", "num_bits": 8},
    },
    "nf4": {"bnb_4bit_quant_storage": "uint8"},
    "modelopt_nvfp4": {"config_groups": {"group_0": {"weights": {"group_size": 16}}}},
    "modelopt": {
        "quantized_layers": {"a": {"quant_algo": "FP8"}},
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["*a"],
    },
    "fp8": {"ignored_layers": ["a"], "fmt": "e4m3"},
}


def variations(values: Any) -> Iterator[Any]:
    """A config with each of its values replaced by each odd one."""
    yield from ODD
    keys = list(values) if isinstance(values, dict) else []
    for key in keys or (range(len(values)) if isinstance(values, list) else ()):
        for other in variations(values[key]):
            changed = copy.copy(values)
            changed[key] = other
            yield changed


@pytest.mark.parametrize("name", METHODS)
def test_odd_values_of_settings_are_read_or_refused_by_file(name: str) -> None:
    """No value ends in another error than one that names the file."""
    for values in variations(dict(METHODS[name].config) | MORE.get(name, {})):
        config = ConfigFile(Path("/model/config.json"), {"quantization_config": values})
        with suppress(CheckpointError):
            found = read_checkpoint_format(config)
            read_kv_cache_dtype(quantization_section(config))
            for module in ("lm_head", DOWN, "model.layers.0.mlp.up_proj"):  # some ignore DOWN
                stored = found and found.stored_linear(module)
                if stored and not stored.problem(128, 256):
                    assert stored.tensors(128, 256)
                    stored.spec(256)


def test_a_checkpoint_of_fbgemm_is_served_by_its_name_in_vllm(tmp_path: Path) -> None:
    write_quantized("float_tokens", tmp_path, as_fbgemm)
    given = EngineConfig.from_options(model=str(tmp_path), quantization="fbgemm_fp8")
    assert resolve(given, "cpu").config.model.scheme == "none"


def test_files_beside_config_json_are_downloaded() -> None:
    assert set(QUANTIZATION_FILES) <= set(hub._SMALL)


test_other_layouts_are_refused_by_the_setting = refusals(
    ("awq", rename({"version": "format"}, format="gemv"), r"format is 'gemv'; take .*'gemm'"),
    ("awq", configure(dynamic={".*": {"bits": 8}}), r"dynamic..\*.bits is 8, but AWQ is read"),
    ("gptq", configure(is_marlin_format=True), r"is_marlin_format is true; take"),
    (
        "packed",
        configure(sparsity_config={"format": "sparse-24-bitmask"}),
        r"sparsity_config.format is 'sparse-24-bitmask'; save",
    ),
    ("modelopt", configure(quant_algo="FP8_PER_CHANNEL_PER_TOKEN"), r"its shape is \[\], not"),
)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (("quantization",), "quantization is that of MLX"),
        (("quantization", "quantization_config"), "quant_method is missing, as in .* of MLX"),
    ],
)
def test_checkpoints_of_mlx_are_refused_as_such(keys: tuple[str, ...], text: str) -> None:
    """Its codes are not those of any other format, and its config names no method."""
    values = {key: {"group_size": 64, "bits": 4} for key in keys}
    config = ConfigFile(Path("/model/config.json"), values)
    with pytest.raises(CheckpointError, match=rf"{text}.*, which .* not read; take a checkpoint"):
        read_checkpoint_format(config)


def keys_of(value: Any) -> set[str]:
    """All keys of JSON, of inner objects too."""
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(keys_of(inner) for inner in value.values()))


@pytest.mark.parametrize("name", METHODS)
def test_messages_name_settings_as_config_files_do(name: str) -> None:
    known = set().union(*(keys_of(method.config) for method in METHODS.values()))
    config = ConfigFile(Path("config.json"), {"quantization_config": dict(METHODS[name].config)})
    checkpoint = read_checkpoint_format(config)
    assert checkpoint is not None
    stored = checkpoint.stored_linear("model.layers.0.mlp.up_proj")
    assert stored is not None
    named = set(re.findall(r"(\w+)=", stored.settings))
    assert named <= known, stored.settings
