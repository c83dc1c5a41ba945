"""Weights of each format through their metadata: stored, read, packed and multiplied."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.dispatch import kernels_for
from quire.kernels.formats.fp4 import MXFP4
from quire.kernels.formats.fp8 import FP8, FP8_A16, BlockFp8
from quire.kernels.formats.int4 import INT4, Int4
from quire.kernels.formats.int8 import INT8, INT8_A16, GroupedBytes, GroupedInt8, Int8
from quire.kernels.formats.nf4 import NF4, Nf4
from quire.kernels.formats.weight_format import WeightFormat
from quire.kernels.operands import Int4Weight, LinearWeight, QuantSpec, ResidualState
from quire.quantization.stored_weight import describe, restore, sizes_of, tensors_of

MADE_ELSEWHERE = (
    Int8(QuantSpec("int8")),
    INT8_A16,
    GroupedInt8(QuantSpec("int8_group", group=32)),
    GroupedInt8(QuantSpec("int8_group", group=64, zeros=True, permuted=True)),
    BlockFp8(QuantSpec("fp8_block", group=128)),
    BlockFp8(QuantSpec("fp8_block_a16", group=128)),
    FP8_A16,
    Int4(QuantSpec("int4", group=128)),
    Int4(QuantSpec("int4", group=64, zeros=True)),
    Int4(QuantSpec("int4", group=32, permuted=True)),
    Int4(QuantSpec("int4", group=64, zeros=True, permuted=True)),
)
FORMATS: tuple[WeightFormat, ...] = (
    FP8, INT8, INT4, *MADE_ELSEWHERE, NF4, Nf4(QuantSpec("nf4", group=128)), MXFP4,
)  # fmt: skip


def rows_of(weight_format: WeightFormat, n: int, k: int) -> LinearWeight:
    """Canonical rows of random codes, as a checkpoint's reader gives them."""
    spec = weight_format.spec
    made = reference.quantize(torch.randn(n, k), replace(spec, zeros=False, permuted=False))
    tensors = tensors_of(made)
    if spec.zeros:
        zeros = torch.randint(0, 16, tensors["scale"].shape, dtype=torch.uint8)
        zeros = zeros if spec.codes == "int4" else zeros.to(torch.int8)
        tensors["zeros"] = zeros
    if spec.permuted:
        tensors["permutation"] = torch.randperm(k, dtype=torch.int32)
    return weight_format.rows(tensors)


def stored(weight: LinearWeight) -> LinearWeight:
    """The weight as a file gives it back."""
    read: LinearWeight = restore(json.loads(json.dumps(describe(weight))), tensors_of(weight))
    return read


def close(found: Tensor, expected: Tensor, rounding: float = 1e-5) -> None:
    limit = rounding * expected.abs().max()
    assert (found - expected).abs().max() <= limit


@pytest.mark.parametrize("weight_format", FORMATS, ids=lambda each: str(each.spec))
@pytest.mark.parametrize("shape", [(64, 256), (17, 128)], ids=["packed", "rows"])
def test_rows_become_what_the_device_reads(
    weight_format: WeightFormat, shape: tuple[int, int]
) -> None:
    """Codes from other tools, unrotated or with zero points, are served by the same kernels."""
    rows, x, bias = rows_of(weight_format, *shape), torch.randn(9, shape[1]), torch.randn(shape[0])
    kernels = kernels_for("cpu")
    packed = kernels.pack(rows)
    for each in (rows, packed):
        again = stored(each)
        assert describe(again) == describe(each)
        ours, theirs = tensors_of(again), tensors_of(each)
        assert ours.keys() == theirs.keys()
        assert all(ours[name] is theirs[name] for name in theirs)
    expected = reference.linear(x, rows, bias)
    rounding = 1e-4 if weight_format is INT8_A16 else 1e-5  # to 16 bits
    close(kernels.linear(x, stored(packed), bias), expected, rounding)
    close(kernels.linear(x, stored(rows), bias), expected)


def test_rotated_and_plain_rows_have_the_same_result_in_the_end() -> None:
    weight, x = torch.randn(32, 256), torch.randn(5, 256)
    kernels = kernels_for("cpu")
    for plain, rotated in ((MADE_ELSEWHERE[0], INT8), (MADE_ELSEWHERE[1], INT4)):
        for each in (plain, rotated):
            found = kernels.linear(x, kernels.quantize(weight, each.spec), None)
            assert torch.cosine_similarity(found.flatten(), (x @ weight.T).flatten(), 0) > 0.99


def test_a_plain_weight_is_described_too() -> None:
    weight = torch.randn(3, 4)
    assert describe(weight) == {"layout": "plain"}
    assert stored(weight) is weight


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"layout": "rows", "codes": "int8"},
        {
            "layout": "rows",
            "codes": "nf5",
            "group": 64,
            "zeros": False,
            "hadamard": False,
            "permuted": False,
        },
        {"layout": "packed", "format": "INT3", "outputs": 16, "inputs": 32, "group": 0},
        {"layout": "folded"},
    ],
    ids=str,
)
def test_what_is_not_known_is_refused(description: dict[str, object]) -> None:
    tensors = {"codes": torch.zeros(1), "scale": torch.zeros(1), "packed": torch.zeros(1)}
    with pytest.raises(LookupError):
        restore(description, tensors)


@pytest.mark.parametrize("order", [[0, 0, 2, 3], [0, 1, 2, 4], [0, 1, 2]])
def test_an_order_that_does_not_name_each_input_is_refused(order: list[int]) -> None:
    codes, scale = torch.zeros(8, 2, dtype=torch.uint8), torch.ones(8, 1).half()
    permutation = torch.tensor(order, dtype=torch.int32)
    rows = Int4Weight(codes, scale, None, 4, permutation=permutation)
    with pytest.raises(LookupError, match="its permutation is not one of 4 inputs"):
        sizes_of(rows)


def test_a_permutation_gives_the_result_of_weights_in_the_order_of_inputs() -> None:
    """Also in the fused operations, which read the rows of a residual with its norm."""
    rows = rows_of(Int4(QuantSpec("int4", group=32, zeros=True)), 64, 128)
    assert isinstance(rows, Int4Weight)
    permutation = torch.randperm(128, dtype=torch.int32)
    x, norm, kernels = torch.randn(700, 128), torch.rand(128), kernels_for("cpu")
    permuted = kernels.pack(replace(rows, permutation=permutation))
    plain = kernels.pack(rows)
    close(kernels.linear(x, permuted, None), kernels.linear(x[:, permutation], plain, None))
    residual = ResidualState(x, None, norm, 1e-5)
    ordered = ResidualState(x[:, permutation], None, norm[permutation], 1e-5)
    for operation in (kernels.rms_norm_linear, kernels.linear_silu, kernels.linear_gelu):
        close(operation(residual, permuted, None), operation(ordered, plain, None))
    added = kernels.linear_add_norm(x, permuted, None, torch.ones(700, 64), norm[:64], 1e-5)
    close(added.residual, kernels.linear(x, permuted, None) + 1.0)


PACKED = {"layout": "packed", "format": "INT8", "outputs": 32, "inputs": 64, "group": 0}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"outputs": 64},
        {"outputs": 31},  # as many bytes, of whole blocks
        {"inputs": 32},
        {"inputs": -64},
        {"format": "INT4"},
        {"format": "INT4", "group": 32},
        {"format": "INT4", "group": 33},
        {"format": "FLOAT32"},
        {"format": "BFLOAT16", "outputs": 17},  # as many bytes
        {"format": ["INT8"]},
        {"outputs": None},
        {"permuted": True},
    ],
    ids=str,
)
def test_packed_bytes_are_checked_against_the_description(change: dict[str, object]) -> None:
    tensors = {"packed": torch.zeros(1, 32 * 68, dtype=torch.uint8)}
    tensors["permutation"] = torch.full((64,), 64 if change else 0, dtype=torch.int32)
    description = {**PACKED, "permuted": False, **change}
    if not change:
        assert sizes_of(restore(description, tensors)) == (32, 64)
        return
    with pytest.raises(LookupError):
        restore(description, tensors)


@pytest.mark.parametrize("name", ["codes", "scale", "zeros", "permutation"])
def test_rows_of_other_sizes_are_refused(name: str) -> None:
    rows = rows_of(MADE_ELSEWHERE[-1], 64, 128)
    tensors = {**tensors_of(rows), name: tensors_of(rows)[name][:-1]}
    with pytest.raises(LookupError):
        restore(describe(rows), tensors)


@pytest.mark.parametrize("weight", [5, [], None, "rows", {"layout": ["rows"]}], ids=str)
def test_a_description_that_is_no_description_is_refused(weight: Any) -> None:
    with pytest.raises(LookupError):
        restore(weight, {})


def test_specs_count_their_bytes() -> None:
    for each in FORMATS:
        if isinstance(each, GroupedBytes):  # by their words: tests/kernels/test_byte_words.py
            continue
        n, k = 64, 256
        weight = rows_of(each, n, k)
        rows = sum(tensor.nbytes for tensor in tensors_of(weight).values())
        extra = 4 * n if isinstance(weight, Int4Weight) and weight.hadamard else 0  # when packed
        assert each.num_bytes(n, k) == rows + extra
