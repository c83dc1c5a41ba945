"""compressed-tensors checkpoints that are wrong: refused by name."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from harmed_checkpoints import (
    check_refused,
    configure,
    drop,
    only_one_scale,
    refusals,
    spoil,
)
from harness import PagedModel, load_folder
from quantized_checkpoints import METHODS, Change, padded_words, words, write_quantized
from torch import Tensor

from quire.models.checkpoint_formats.stored_packed import PackedLinear


def group_of(**weights: Any) -> Change:
    """Other settings of the weights of a compressed-tensors group."""

    def change(_: dict[str, Tensor], config: dict[str, Any]) -> None:
        section = copy.deepcopy(config["quantization_config"])  # which other tests use, too
        section["config_groups"]["group_0"]["weights"] |= weights
        config["quantization_config"] = section

    return change


def large_code(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = 8


def other_shape(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    for name in [name for name in tensors if name.endswith("weight_shape")]:
        tensors[name] = tensors[name] + 1


def more_inputs(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    for name in [name for name in tensors if name.endswith("weight_shape")]:
        tensors[name] = tensors[name] + torch.tensor([0, 96])


def dense_zeros(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    for name in [name for name in tensors if name.endswith("weight_zero_point")]:
        n, groups = tensors[name.replace("_zero_point", "_scale")].shape
        tensors[name] = torch.zeros(n * 3 // 32, groups, dtype=torch.int32)


def few_zeros(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    """Bytes in the shape of words."""
    for name in [name for name in tensors if name.endswith("weight_zero_point")]:
        tensors[name] = tensors[name].to(torch.int8)


def large_zero(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    tensors["model.layers.0.mlp.up_proj.weight_zero_point"][0, 0] = 4


def uncompressed(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """A model that was saved while its rounding was only simulated."""
    config["quantization_config"] |= {"quantization_status": "frozen"}
    for name in [name for name in tensors if name.endswith(".weight_packed")]:
        n, k = tensors.pop(name.replace("packed", "shape")).tolist()
        del tensors[name]
        tensors[name.removesuffix("_packed")] = torch.zeros(n, k)


def transformed(*locations: str) -> Change:
    """A rotation, and where it is applied: "input" for activations."""
    applied = [{"location": location, "targets": ["Linear"]} for location in locations]
    groups = {"R1": {"type": "hadamard", "apply": applied}}
    return configure(transform_config={"config_groups": groups})


def test_transforms_of_weights_alone_are_in_the_weights(tmp_path: Path) -> None:
    write_quantized("packed", tmp_path, transformed("weight_output", "weight_input"))
    load_folder(tmp_path, prepared_weights="none")


def quantize_embedding(name: str, *, is_tied: bool, targets: list[str]) -> Change:
    """The embedding's numbers as codes of the named method, and targets that name it."""

    def change(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        stored, _ = METHODS[name].pack(tensors.pop("model.embed_tokens.weight"))
        tensors |= {
            f"model.embed_tokens.{leaf}": each.contiguous() for leaf, each in stored.items()
        }
        section = copy.deepcopy(config["quantization_config"])
        section["config_groups"]["group_0"]["targets"] = targets
        config |= {"quantization_config": section, "tie_word_embeddings": is_tied}
        if is_tied:
            del tensors["lm_head.weight"]

    return change


def keep_head(change: Change) -> Change:
    """A tied embedding in codes beside the 16-bit head that it was, as llm-compressor saves it."""

    def changed(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        head = tensors["lm_head.weight"]
        change(tensors, config)
        tensors["lm_head.weight"] = head

    return changed


@pytest.mark.parametrize("name", ["packed", "int8"])
def test_a_head_beside_a_tied_embedding_in_codes_is_refused(name: str, tmp_path: Path) -> None:
    change = quantize_embedding(name, is_tied=True, targets=["Linear", "Embedding"])
    fix = r"lm_head.weight differs from .*; set its tie_word_embeddings to false"
    check_refused(name, keep_head(change), fix, tmp_path)


@pytest.mark.parametrize("is_tied", [False, True], ids=["own head", "tied"])
@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("packed", ["Linear", "Embedding"]),
        ("packed_zeros", ["Linear", "model.embed_tokens"]),
        ("int8", ["Linear", "re:.*embed_tokens$"]),
        ("float_channel", ["Linear", "Embedding"]),
    ],
)
def test_a_quantized_embedding_is_read(
    name: str, targets: list[str], is_tied: bool, tmp_path: Path
) -> None:
    change = quantize_embedding(name, is_tied=is_tied, targets=targets)
    oracle = write_quantized(name, tmp_path, change)
    table = oracle.model.embed_tokens.weight
    table.data = METHODS[name].pack(table.detach())[1]
    if is_tied:
        oracle.lm_head.weight = table
    prompt = list(range(3, 40, 3))
    with torch.inference_mode():
        theirs = oracle(torch.tensor([prompt])).logits[0]
    found, config = load_folder(tmp_path, prepared_weights="none", quantization="dequantized")
    torch.testing.assert_close(PagedModel(found, config).prefill(prompt), theirs)


test_what_does_not_fit_compressed_tensors_is_refused_by_name = refusals(
    (
        "packed",
        transformed("input", "weight_input"),
        r"transform_config.config_groups.R1 transforms activations, which is not computed",
    ),
    (
        "packed",
        configure(transform_config={"config_groups": {"R1": {"apply": 5}}}),
        r"transform_config.config_groups.R1 transforms activations",
    ),
    ("packed", group_of(actorder="group"), r"missing: .*up_proj.weight_g_idx"),
    ("packed", drop("weight_scale"), r"missing: model.layers.0.mlp.up_proj.weight_scale"),
    ("packed", configure(config_groups={}), r"codes of .*0.mlp.down_proj, unlike config_groups"),
    ("packed", uncompressed, r"16-bit numbers of .*down_proj and their scales: save .* compressed"),
    ("packed", configure(format="nvfp4-pack-quantized"), r"num_bits is 4 \(int, group, symmetric"),
    ("mxfp4", group_of(group_size=64), r"group_size is 64 \(group\), but MXFP4 has a scale"),
    ("mxfp4", group_of(strategy="channel"), r"\(channel\), but MXFP4 has a scale for each 32"),
    ("int8", configure(format="nvfp4-pack-quantized"), r"num_bits is 8 \(int, channel, symm"),
    ("int8_bytes_zeros", drop("weight_zero_point"), r"missing: .*up_proj.weight_zero_point"),
    ("nvfp4", drop("weight_global_scale"), r"missing: .*up_proj.weight_global_scale"),
    ("nvfp4", spoil("weight_global_scale", 0.0), r"weight_global_scale is 0 or too small; downl"),
    ("nvfp4", spoil("weight_global_scale", 1e-38), r"weight_global_scale is 0 or too small"),
    ("nvfp4", group_of(group_size=32), r"weight_scale .*not the \[\d+, \d\] .*group_size=32"),
    ("mxfp8", group_of(group_size=0), r"num_bits is 8 \(float, group, symmetric, .*not read"),
    ("mxfp8", spoil("weight_scale", 255), r"up_proj: a scale is too large, or not a number; d"),
    ("int4_bytes", large_code, r"up_proj: its weight has codes of more than 4 bits; take the"),
    ("int4_bytes", group_of(group_size=64), r"weight_scale .*its shape is .*, not the .* quan"),
    ("packed_3_padded", dense_zeros, "and weight_packed are packed in different ways; download"),
    ("packed_3_padded", drop("weight_shape"), r"missing: .*up_proj.weight_shape"),
    ("packed_zeros", few_zeros, "and weight_packed are packed in different ways; download"),
    ("packed_3_zeros_in_bytes", large_zero, "its weight_zero_point has codes of more than 3 bits"),
    ("packed", other_shape, r"proj: its weight_shape is \[\d+, \d+\], but weight_packed is"),
    ("packed_3_padded", more_inputs, r"proj: its weight_shape is \[\d+, \d+\], but weight_p"),
    ("packed", configure(ignore=["re:("]), r"ignore holds '\(', which is not a regular"),
    ("packed", configure(ignore=["re:((a|b)+)+!"]), "ignore holds .*very long to match"),
    ("packed", configure(ignore=["re:" + ".*" * 5]), "ignore holds .*very long to match"),
    ("packed", configure(ignore=["re:" + "a" * 1001]), "ignore holds .*is too long"),
    ("int8", spoil("weight_scale"), r"up_proj: its weight_scale has a number that is not finite"),
    ("int8", only_one_scale, r"weight_scale .*its shape is \[1\], not the \[256\] or"),
    ("float_channel", only_one_scale, r"its shape is \[1\], not the \[256\] or"),
    (
        "float_block",
        spoil("weight_scale"),
        r"up_proj: its weight_scale has a number that is not finite",
    ),
)


@pytest.mark.parametrize("bits", [3, 5, 6, 7])
def test_codes_of_ambiguous_packing_are_refused(bits: int) -> None:
    """Equal numbers of words do not say which; codes of one word are the same in both."""
    linear = PackedLinear("config_groups.group_0", bits, -1, is_symmetric=True, rounds=False)
    both = [k for k in range(2, 400, 2) if linear.problem(8, k)]
    assert both
    for k in range(2, 400, 2):
        codes = torch.full((1, k), 2**bits - 1, dtype=torch.uint8)
        dense, padded = words(codes, bits), padded_words(codes, bits)
        assert (k in both) == (dense.shape == padded.shape and not dense.equal(padded))
    assert all(k % 32 for k in both)
