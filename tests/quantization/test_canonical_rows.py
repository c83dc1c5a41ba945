"""Fused layers made of codes that each part has of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quire.core.layer_spec import LinearPart, LinearSpec
from quire.kernels import reference
from quire.kernels.byte_operands import ByteWeight
from quire.kernels.dispatch import kernels_for
from quire.kernels.formats.fp4 import NVFP4
from quire.kernels.operands import (
    CodebookWeight,
    Int4Weight,
    PackedWeight,
    QuantizedWeight,
    QuantSpec,
    ResidualState,
)
from quire.layers.linear_layers import GateUpParallelLinear, LinearBase, QKVParallelLinear
from quire.layers.parameter import LayerOptions, Weight
from quire.quantization.canonical_rows import scale_rows, stack_rows

K = 128
SPECS = (
    QuantSpec("int4", group=32),
    QuantSpec("int4", group=64, zeros=True),
    QuantSpec("int4", group=32, permuted=True),
    QuantSpec("int8"),
    QuantSpec("int8_group", group=64, zeros=True),
    QuantSpec("int8_group", group=32, permuted=True),
    QuantSpec("fp8_block", group=128),
    QuantSpec("fp8_a16"),
    QuantSpec("fp8"),
)


def part_of(spec: QuantSpec, rows: int) -> QuantizedWeight:
    made = reference.quantize(torch.randn(rows, K), replace(spec, zeros=False, permuted=False))
    if not isinstance(made, Int4Weight | ByteWeight):
        return made
    kind = torch.uint8 if isinstance(made, Int4Weight) else torch.int8
    zeros = torch.randint(0, 16, made.scale.shape, dtype=kind) if spec.zeros else None
    order = torch.arange(K, dtype=torch.int32).flip(0) if spec.permuted else None
    return replace(made, zeros=zeros, permutation=order)


def spec_of(module: str, **rows: int) -> LinearSpec:
    parts = tuple(LinearPart(name=name, rows=n, module=f"{name}_proj") for name, n in rows.items())
    n = sum(rows.values())
    return LinearSpec(module=module, n=n, k=K, role="layer", bias=True, parts=parts)


def filled(layer: LinearBase, spec: QuantSpec) -> list[QuantizedWeight]:
    """Load parts in another order than that of their rows; return them in that of their rows."""
    parts = {part.name: part_of(spec, part.rows) for part in layer.spec.parts}
    weight = layer.weight
    assert isinstance(weight, Weight)
    assert isinstance(layer.bias, Weight)
    for name in reversed(parts):
        weight.load(parts[name], name)
    layer.bias.copy_(torch.randn(layer.spec.n))
    return list(parts.values())


def expected(x: Tensor, parts: list[QuantizedWeight], bias: Tensor) -> Tensor:
    outputs = [reference.linear(x.float(), part, None) for part in parts]
    return torch.cat(outputs, dim=1) + bias.float()


def close(found: Tensor, wanted: Tensor) -> None:
    scale = wanted.abs().max()
    torch.testing.assert_close(found.float() / scale, wanted / scale, rtol=0.02, atol=0.01)


CASES = [(spec, dtype, "cpu") for spec in SPECS for dtype in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize(
    ("spec", "dtype", "device"), [*CASES, (SPECS[-1], torch.float16, "cuda")], ids=str
)
def test_fused_rows_give_what_their_parts_give(
    spec: QuantSpec, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gate and up rows are interleaved for the kernels, with their scales, zeros and biases."""
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("its memory here is the CPU's")
    if device == "cuda":  # in the interpreter, whose rounding of activations is not the GPU's
        name = "quire.kernels.triton.ops.fp8_linear.multiplies_fp8"
        monkeypatch.setattr(name, lambda _: False)
    options = LayerOptions(dtype, torch.device("cpu"), kernels_for(device))
    x = torch.randn(5, K).to(dtype)
    state = ResidualState(x, x, torch.ones(K, dtype=dtype), 1e-6)
    qkv = QKVParallelLinear(spec_of("qkv_proj", q=64, k=32, v=32), options)
    gate_up = GateUpParallelLinear(spec_of("gate_up_proj", gate=48, up=48), options)
    with torch.inference_mode():
        parts = filled(qkv, spec)
        wanted = expected(x, parts, qkv.bias)
        qkv.process_after_load()
        close(qkv(x), wanted)
        parts = filled(gate_up, spec)
        wanted = reference.silu_and_mul(expected(x, parts, gate_up.bias))
        gate_up.process_after_load()
        found = gate_up.act_and_mul(state)
    assert isinstance(found, Tensor)
    close(found, wanted)
    if spec.codes in ("int4", "int8") and options.kernels.fuses:
        assert isinstance(gate_up.method.operand, PackedWeight)


def test_parts_that_cannot_be_one_weight_are_refused() -> None:
    first = part_of(SPECS[2], 16)
    with pytest.raises(ValueError, match="quantized differently"):
        stack_rows([first, part_of(SPECS[0], 16)])
    assert isinstance(first, Int4Weight)
    with pytest.raises(ValueError, match="order their inputs differently"):
        stack_rows([first, replace(first, permutation=torch.arange(K, dtype=torch.int32))])


def test_exponents_of_scaled_rows_stay_in_their_range() -> None:
    """The least one, of a group of zeros, does not become that of NaN, nor NaN a number."""
    scale = torch.tensor([[0, 1, 127, 254, 255]], dtype=torch.uint8)
    rows = CodebookWeight(torch.zeros(1, 80, dtype=torch.uint8), scale, "mxfp4", 32)
    for factor, wanted in ((0.5, [0, 0, 126, 253, 255]), (4.0, [2, 3, 129, 254, 255])):
        found = scale_rows(rows, torch.tensor([factor]))
        assert isinstance(found, CodebookWeight)
        assert found.scale.flatten().tolist() == wanted


def test_rows_of_nvfp4_are_scaled_by_their_own_scale() -> None:
    """Their scales of groups are in e4m3, which multiplies nothing."""
    rows = NVFP4.round_rows(torch.randn(4, 64))
    factors = torch.tensor([0.25, 1.0, 2.0, 4.0])
    expected = NVFP4.dequantize(rows) * factors[:, None]
    found = scale_rows(rows, factors)
    assert isinstance(found, CodebookWeight)
    assert torch.equal(NVFP4.dequantize(found), expected)
    found = scale_rows(rows, torch.tensor([2.0]))
    assert isinstance(found, CodebookWeight)
    assert torch.equal(NVFP4.dequantize(found), NVFP4.dequantize(rows) * 2.0)
    with pytest.raises(LookupError, match=r"row_scale has the shape \[1\], not \[4\]"):
        NVFP4.size_of(replace(rows, row_scale=torch.ones(1)))  # type: ignore[call-arg]
