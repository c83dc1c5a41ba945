"""Weights as FP8: rounded to the nearest, saturated, whole models loaded so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.config import ModelSettings
from quire.hub import resolve_model
from quire.kernels import reference
from quire.kernels.dispatch import kernels_for
from quire.kernels.formats.fp8 import FP8, Fp8
from quire.kernels.operands import Fp8Weight
from quire.layers.linear_layers import LinearBase
from quire.models.config.model_config import ModelConfig
from quire.models.families.llama import LlamaForCausalLM
from quire.models.loading import loader
from quire.models.loading.loader import load_model

CODES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
NUMBERS = CODES[CODES.isfinite()].unique()


def nearest(x: Tensor) -> Tensor:
    """The FP8 numbers nearest to x [N], found by looking at all of them; ties to either."""
    return (x[:, None] - NUMBERS).abs().min(dim=1).values


def test_the_largest_number_is_that_of_the_type() -> None:
    assert NUMBERS.max() == reference.FP8_MAX == torch.finfo(torch.float8_e4m3fn).max


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.floats(-30, 30))
def test_weights_are_rounded_to_the_nearest(seed: int, exponent: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, 40, generator=generator) * 2.0**exponent
    codes, scale = reference.quantize_fp8(weight)
    for row, its_codes, its_scale in zip(weight, codes.float(), scale, strict=True):
        assert its_codes.abs().max() == reference.FP8_MAX
        error = (row / its_scale - its_codes).abs()
        torch.testing.assert_close(error, nearest(row / its_scale), atol=3e-5, rtol=0)


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.floats(-30, 30))
def test_activations_are_rounded_once_whatever_shares_their_scale(
    seed: int, exponent: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 64, generator=generator) * 2.0**exponent
    codes, scale = reference.quantize_rows(x)
    assert (scale.log2() == scale.log2().round()).all()
    largest = codes.float().abs().amax(dim=1)
    assert ((largest > reference.FP8_MAX / 2 - 16) & (largest <= reference.FP8_MAX)).all()
    once = codes.float() * scale
    again, its_scale = reference.quantize_rows(once)
    assert torch.equal(again.float() * its_scale, once)
    parts = [c.float() * s for c, s in map(reference.quantize_rows, x.split(16, dim=1))]
    digits = x.abs() > x.abs().amax(dim=1, keepdim=True) / 2**14
    assert torch.equal(torch.cat(parts, dim=1)[digits], once[digits])


def test_zeros_and_what_is_not_a_number() -> None:
    codes, scale = reference.quantize_fp8(torch.tensor([[0.0, 0.0], [float("nan"), 1.0]]))
    assert torch.equal(codes[0].float() * scale[0], torch.zeros(2))
    assert not (codes[1].float() * scale[1]).isfinite().all()  # never made into a number
    codes, scale = reference.quantize_rows(torch.tensor([[0.0, 0.0], [float("inf"), 1.0]]))
    assert torch.equal(codes[0].float() * scale[0], torch.zeros(2))
    assert not (codes[1].float() * scale[1]).isfinite().all()


def test_rows_are_quantized_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.kernels.reference_quantized.PIECE_ELEMENTS", 100)
    weight = torch.randn(37, 24, dtype=torch.bfloat16)
    found = kernels_for("cpu").quantize(weight, FP8.spec)
    assert isinstance(found, Fp8Weight)
    whole = reference.quantize_fp8(weight)
    assert torch.equal(found.codes.float(), whole[0].float())
    assert torch.equal(found.scale, whole[1])


def load(load_format: str, quantization: str) -> LlamaForCausalLM:
    folder = resolve_model("quire-tiny-draft")
    config = ModelSettings(
        model=str(folder),
        load_format=load_format,
        quantization=quantization,
        prepared_weights="none",
    )
    model_config = ModelConfig.from_folder(folder)
    return load_model(config, model_config, folder, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_each_linear_layer_of_a_model_has_its_weights_in_fp8(load_format: str) -> None:
    plain, quantized = load(load_format, "none"), load(load_format, "fp8")
    x = torch.randn(5, plain.lm_head.spec.k)
    pairs = [(plain.lm_head, quantized.lm_head)]
    for ours, theirs in zip(quantized.model.layers, plain.model.layers, strict=True):
        pairs.append((theirs.self_attn.qkv_proj, ours.self_attn.qkv_proj))
        pairs.append((theirs.mlp.gate_up_proj, ours.mlp.gate_up_proj))
    for exact, rounded in pairs:
        assert rounded.codes.dtype == torch.float8_e4m3fn
        assert not list(rounded.parameters())
        similarity = F.cosine_similarity(exact(x).flatten(), rounded(x).flatten(), dim=0)
        assert similarity > 0.999
    ids = torch.arange(50)
    assert torch.equal(plain.model.embed_tokens(ids), quantized.model.embed_tokens(ids))


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_few_weights_are_in_memory_unquantized_at_a_time(
    load_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of other loaded weights that wait when one is quantized."""
    models: list[LlamaForCausalLM] = []
    waiting: list[int] = []
    build, quantize = loader._build, Fp8.round_rows

    def build_and_remember(*arguments: Any, **options: Any) -> LlamaForCausalLM:
        models.append(build(*arguments, **options))
        return models[-1]

    def quantize_and_look(self: Fp8, weight: Tensor) -> Fp8Weight:
        matrices = [p for p in models[-1].model.layers.parameters() if p.dim() == 2]
        waiting.append(sum(p.untyped_storage().nbytes() for p in matrices))
        return quantize(self, weight)

    monkeypatch.setattr(loader, "_build", build_and_remember)
    monkeypatch.setattr(Fp8, "round_rows", quantize_and_look)
    model = load(load_format, "fp8")
    sizes = [m.spec.num_weights * 4 for m in model.modules() if isinstance(m, LinearBase)]
    assert len(waiting) == len(sizes)
    assert max(waiting) <= max(sizes[:-1]) < sum(sizes) / 4
