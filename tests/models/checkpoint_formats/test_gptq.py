"""GPTQ and AutoRound checkpoints: act-order, biases, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harmed_checkpoints import configure, drop, refusals, spoil
from harness import load_folder
from quantized_checkpoints import DOWN, Change, write_quantized
from torch import Tensor


def reorder(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    name = "model.layers.0.self_attn.k_proj.g_idx"
    tensors[name] = tensors[name].flip(0)


def reorder_one(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    """A part with an order beside others without any."""
    reorder(tensors, {})
    del tensors["model.layers.0.self_attn.q_proj.g_idx"]


def one_group_less(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    name = "model.layers.0.self_attn.k_proj.g_idx"
    tensors[name] = tensors[name].clamp(max=2)


def no_groups(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    for name in [name for name in tensors if name.endswith(".g_idx")]:
        tensors[name] = torch.full_like(tensors[name], -1)


def without_order(desc_act: dict[str, bool | None]) -> Change:
    """No g_idx, and of desc_act what is given."""

    def change(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.endswith(".g_idx")]:
            del tensors[name]
        del config["quantization_config"]["desc_act"]
        config["quantization_config"] |= desc_act

    return change


def as_version_2(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    """Zero points of version 2, with version 1 in the config: 8 for 7."""
    for name in [name for name in tensors if name.endswith(".qzeros")]:
        tensors[name] = tensors[name] + 0x11111111


def as_version_1(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    """Zero points of version 1, less one in each four bits, with version 2 in the config."""
    for name in [name for name in tensors if name.endswith(".qzeros")]:
        zeros = tensors[name].view(torch.uint8)
        tensors[name] = ((zeros + 15 & 15) | ((zeros >> 4) + 15 & 15) << 4).view(torch.int32)


def give_biases(value: float) -> Change:
    """A bias for each quantized layer, as AutoGPTQ writes them."""

    def change(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.endswith(".scales")]:
            size = tensors[name].shape[1]
            tensors[name.replace(".scales", ".bias")] = torch.full((size,), value).half()

    return change


def test_biases_of_zeros_that_the_model_lacks_are_passed_over(tmp_path: Path) -> None:
    write_quantized("gptq", tmp_path, give_biases(0.0))
    load_folder(tmp_path, prepared_weights="none")


@pytest.mark.parametrize(
    ("name", "desc_act"), [("gptq", {"desc_act": False}), ("gptq_channel", {})]
)
def test_an_order_is_needed_only_where_groups_may_have_one(
    name: str, desc_act: dict[str, bool | None], tmp_path: Path
) -> None:
    write_quantized(name, tmp_path, without_order(desc_act))
    load_folder(tmp_path, prepared_weights="none")


test_what_does_not_fit_gptq_is_refused_by_name = refusals(
    ("gptq", configure(bits=8), r"its shape is .*\(bits=8, group_size=\d+, sym=True, desc_act=F"),
    ("gptq", configure(bits=5), r"bits is 5; take a checkpoint of 2, 3, 4 or 8 bits"),
    ("gptq", configure(checkpoint_format="marlin"), r"is 'marlin'; take a checkpoint in 'gptq'"),
    *(
        ("gptq", configure(checkpoint_format="gptq_v2", sym=sym), r"proj: its .*in 'gptq', but")
        for sym in (True, False)
    ),
    ("gptq", as_version_2, r"proj: its .* in 'gptq_v2', but quant.* says 'gptq'; correct"),
    ("gptq_v2", configure(checkpoint_format="gptq"), r"one off .*in 'gptq_v2', but .*'gptq'; "),
    ("gptq_v2", as_version_1, r"one off .*in 'gptq', but .* says 'gptq_v2'; cor"),
    ("gptq_3_order", configure(checkpoint_format="gptq_v2"), r"one off .*in 'gptq', but .*_v2'; "),
    ("gptq_2", configure(checkpoint_format="gptq_v2"), r"symmetric codes in 'gptq', but .*_v2'; "),
    ("gptq_v2", configure(sym=True), r"proj: its qzeros are not those of symmetric codes"),
    ("gptq", configure(dynamic={"-:(": {}}), r"dynamic.-:\( holds '\(', which is not a reg"),
    ("gptq_order", drop("g_idx"), r"missing: model.layers.0.mlp.up_proj.g_idx"),
    *(
        ("gptq_order", without_order(desc_act), r"missing: model.*g_idx says .*set desc_act of its")
        for desc_act in ({}, {"desc_act": None}, {"desc_act": True})
    ),
    ("gptq_order", reorder, r"k_proj: its g_idx orders inputs in another way than that of .*q_"),
    ("gptq", reorder, r"its g_idx orders inputs in another way"),
    ("gptq", reorder_one, r"its g_idx orders inputs in another way"),
    ("gptq_order", no_groups, r"proj: its g_idx has inputs of no group; download"),
    ("gptq_order", one_group_less, r"g_idx .*it does not put its inputs into 4 groups of one"),
    (
        "auto_round",
        configure(extra_config={DOWN: {"bits": 4, "data_type": "mx_int"}}),
        r"data_type is 'mx_int' with 4 bits, .* int",
    ),
    (
        "auto_round",
        configure(extra_config={DOWN: {"bits": 4, "act_bits": 8}}),
        r"act_bits 8; take integers with 16-bit activations",
    ),
    ("auto_round", configure(data_type="mx_int"), r"data_type is 'mx_int' with 4 bits, .* int"),
    ("auto_round", configure(rotation_config={"a": 1}), r"rotation_config is set, so that act"),
    ("gptq", configure(rotation="hadamard"), r"config\.rotation is set, so that activations a"),
    ("auto_round", configure(packing_format="x"), r"packing_format is 'x' with 4 bits; take"),
    ("auto_round", configure(act_bits=8), r"act_bits 8; take integers with 16-bit activations"),
    ("auto_round_fp8", configure(bits=4), r"is 'fp' with 4 bits, act_bits 8; take "),
    ("auto_round", configure(extra_config={}), rf"missing: {DOWN}.qweight"),
    ("gptq_8", spoil("scales"), r"up_proj: its scales has a number that is not finite"),
    ("gptq", give_biases(0.5), r"left over: model.layers.0.mlp.down_proj.bias"),
)
