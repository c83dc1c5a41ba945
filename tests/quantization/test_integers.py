"""Weights as signed bytes and as four bits: how they are rounded, and whole models of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.config import ModelSettings
from quire.hub import resolve_model
from quire.kernels import reference, reference_quantized
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.dispatch import kernels_for
from quire.kernels.formats.fp4 import MXFP4
from quire.kernels.formats.fp8 import FP8
from quire.kernels.formats.int4 import INT4
from quire.kernels.formats.int8 import INT8
from quire.kernels.formats.nf4 import NF4
from quire.kernels.formats.weight_format import WeightFormat
from quire.models.config.model_config import ModelConfig
from quire.models.families.llama import LlamaForCausalLM
from quire.models.loading.loader import load_model
from quire.quantization.stored_weight import tensors_of

SCALES = (st.integers(0, 2**31), st.floats(-12, 8))


def random(seed: int, exponent: float, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator) * 2.0**exponent


@settings(max_examples=30)
@given(*SCALES)
def test_bytes_are_at_most_half_a_step_off(seed: int, exponent: float) -> None:
    weight = random(seed, exponent, 5, 70)
    made = reference_quantized.quantize_int8(weight)
    assert (made.codes.abs().amax(dim=1) == 127).all()
    error = (made.codes * made.scale[:, None] - weight).abs()
    assert (error <= made.scale[:, None] * 0.50001).all()


@pytest.mark.parametrize(("k", "together", "share"), [(128, 64, 0.5), (96, 32, 0.6), (48, 16, 0.7)])
def test_hadamard_rotation_of_an_outlier_keeps_results(k: int, together: int, share: float) -> None:
    x, weight = random(1, 0.0, 3, k), random(2, 0.0, 5, k)
    x[:, 7] = 50.0
    twice = reference_quantized.hadamard_rotate(reference_quantized.hadamard_rotate(x))
    torch.testing.assert_close(twice, together * x, rtol=1e-4, atol=1e-3)
    exact = x @ weight.T
    codes, scale = reference_quantized.round_int8(x)
    result = reference_quantized.linear_int8(x, reference_quantized.quantize_int8(weight), None)
    error = (result - exact).abs().mean()
    assert error < share * ((codes.float() * scale) @ weight.T - exact).abs().mean()
    uneven = x[:, :40]  # as it is
    assert reference_quantized.hadamard_rotate(uneven) is uneven


@settings(max_examples=30)
@given(*SCALES)
def test_activations_are_rounded_group_by_group(seed: int, exponent: float) -> None:
    x = random(seed, exponent, 3, 96)
    codes, scale = reference_quantized.round_int8(x, 32)
    assert scale.shape == (3, 3)
    for group, (its_codes, its_scale) in enumerate(
        reference_quantized.round_int8(part) for part in x.split(32, dim=1)
    ):
        assert torch.equal(codes[:, group * 32 : group * 32 + 32], its_codes)
        assert torch.equal(scale[:, group], its_scale[:, 0])
        assert (its_codes.abs().amax(dim=1) == 127).all()


@settings(max_examples=30)
@given(*SCALES)
def test_four_bits_cost_no_more_than_rounding_by_the_largest(seed: int, exponent: float) -> None:
    """In each group the sum of squared errors is at most that of the plain scale."""
    weight = random(seed, exponent, 7, 128)
    groups = (reference_quantized.hadamard_rotate(weight, 32) / 32.0).view(-1, 32)
    scale = groups.abs().amax(dim=1, keepdim=True) / 7.0
    plain = ((groups / scale).round() * scale - groups).square().sum(dim=1)
    four = reference_quantized.quantize_int4(weight)
    made = reference_quantized.dequantize_int4(four).view(-1, 32)
    found = (made - groups).square().sum(dim=1)
    assert found.sum() < plain.sum()


def test_fitted_scales_of_four_bits_leave_less_of_an_error() -> None:
    """Than those by which the largest number becomes -8."""
    weight = random(3, 0.0, 500, 32)
    groups = reference_quantized.hadamard_rotate(weight, 32) / 32.0
    largest = groups.gather(1, groups.abs().argmax(dim=1, keepdim=True)) / -8.0
    plain = ((groups / largest).round().clamp(-8, 7) * largest - groups).square().sum(dim=1)
    made = reference_quantized.dequantize_int4(reference_quantized.quantize_int4(weight))
    found = (made - groups).square().sum(dim=1)
    assert (found < 1.001 * plain).all()
    assert found.sum() < 0.92 * plain.sum()


def test_four_bits_as_bytes_are_hardly_less_exact() -> None:
    weight = random(4, 0.0, 50, 1024) * random(5, 0.0, 50, 1).exp()
    four = reference_quantized.quantize_int4(weight)
    made, exact = (
        reference_quantized.dequantize_int4(four),
        reference_quantized.hadamard_rotate(weight, 32) / 32.0,
    )
    eight = reference_quantized.int4_as_bytes(four)
    assert (eight.codes.abs().amax(dim=1) > 100).all()
    errors = [
        (found - exact).square().sum(dim=1) for found in (made, eight.codes * eight.scale[:, None])
    ]
    assert (errors[1] < 1.03 * errors[0]).all()


def test_zeros_and_what_is_not_a_number() -> None:
    weight = torch.zeros(2, 64)
    weight[1, 3] = float("nan")
    whole = reference_quantized.quantize_int8(weight)
    assert torch.equal(whole.codes[0] * whole.scale[0], torch.zeros(64))
    four = reference_quantized.quantize_int4(weight)
    assert torch.equal(reference_quantized.dequantize_int4(four)[0], torch.zeros(64))
    x = torch.ones(2, 64)
    x[1, 5] = float("inf")
    for result in (
        reference_quantized.linear_int8(x, whole, None),
        reference_quantized.linear_int4(x, four, None),
    ):
        assert result[0, 0] == 0.0
        assert not result[0, 1].isfinite()  # never made into a number
        assert not result[1].isfinite().any()


def test_zero_points_stand_for_zero() -> None:
    weight = reference_quantized.quantize_int4(torch.ones(2, 64))
    zeros = torch.tensor([[0, 15], [7, 8]], dtype=torch.uint8)
    codes = torch.full_like(weight.codes, 0x37)  # 7, 3, 7, 3, ...
    shifted = type(weight)(codes, torch.ones_like(weight.scale), zeros, weight.group)
    expected = torch.tensor([7.0, 3.0]).repeat(2, 32) - zeros.repeat_interleave(32, dim=1)
    assert torch.equal(reference_quantized.dequantize_int4(shifted), expected)


@pytest.mark.parametrize("weight_format", [INT8, INT4], ids=lambda each: each.name)
def test_pieces_change_nothing(
    weight_format: WeightFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(37, 96, dtype=torch.bfloat16)
    whole = tensors_of(kernels_for("cpu").quantize(weight, weight_format.spec))
    monkeypatch.setattr("quire.kernels.reference_quantized.PIECE_ELEMENTS", 500)
    pieces = tensors_of(kernels_for("cpu").quantize(weight, weight_format.spec))
    assert pieces.keys() == whole.keys()
    assert all(torch.equal(pieces[name], whole[name]) for name in whole)


def load(quantization: str, load_format: str) -> LlamaForCausalLM:
    set_num_threads(1)
    folder = resolve_model("quire-tiny-draft")
    config = ModelSettings(model=str(folder), load_format=load_format, quantization=quantization)
    model_config = ModelConfig.from_folder(folder)
    return load_model(config, model_config, folder, torch.device("cpu"), torch.float32)


LIKENESS = {"int8": 0.9999, "w8a16": 0.99995, "int4": 0.99, "nf4": 0.99, "mxfp4": 0.985}


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize(("scheme", "likeness"), LIKENESS.items())
def test_each_linear_layer_is_like_the_unquantized_one(
    scheme: str, likeness: float, load_format: str
) -> None:
    plain, quantized = load("none", load_format), load(scheme, load_format)
    x = torch.randn(5, plain.lm_head.spec.k)
    pairs = [(plain.lm_head, quantized.lm_head)]
    for ours, theirs in zip(quantized.model.layers, plain.model.layers, strict=True):
        pairs.append((theirs.self_attn.qkv_proj, ours.self_attn.qkv_proj))
    for exact, rounded in pairs:
        assert not list(rounded.parameters())
        assert F.cosine_similarity(exact(x).flatten(), rounded(x).flatten(), dim=0) > likeness


@pytest.mark.parametrize("weight_format", [FP8, INT8, INT4, NF4, MXFP4], ids=lambda each: each.name)
def test_codes_of_each_type_fill_whole_bytes(weight_format: WeightFormat) -> None:
    stored = weight_format.round_rows(torch.randn(4, 64)).codes
    assert stored.nbytes * weight_format.codes_per_byte == 4 * 64


def test_a_weight_of_an_unknown_format_is_not_multiplied_as_another() -> None:
    made = NF4.round_rows(torch.randn(4, 64))
    with pytest.raises(KeyError, match="nf5"):
        reference.linear(torch.randn(2, 64), replace(made, codebook="nf5"), None)
