"""Layers with FP8 weights where products are fused with norm, SiLU and residual, as on a GPU.

The kernels run in Triton's interpreter, whose rounding to FP8 is not the GPU's, so they dequantize
here.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.core.layer_spec import LinearSpec, NormSpec
from quire.kernels import reference
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.dispatch import kernels_for
from quire.kernels.operands import Fp8Rows, Fp8Weight, ResidualState, Rows
from quire.kernels.triton import triton_operations
from quire.kernels.triton.invariant import invariant_operations
from quire.kernels.triton.ops import fp8_linear
from quire.kernels.triton.ops.gpu_linear import MAX_ROWS
from quire.layers.linear_layers import GateUpParallelLinear, RowParallelLinear
from quire.layers.linear_methods import FusedLinearMethod, method_for
from quire.layers.norm import RMSNorm
from quire.layers.parameter import LayerOptions, Weight
from quire.quantization.scheme import scheme_of


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU activations are rounded, too")
@pytest.mark.parametrize("tokens", [3, 70])
def test_a_layer_with_all_that_is_fused_equals_one_without(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_num_threads(1)
    monkeypatch.setattr(fp8_linear, "multiplies_fp8", lambda _: False)
    x = torch.randn(tokens, 64, generator=torch.Generator().manual_seed(0)).half()
    ours, plain = (mlp(x.clone(), device) for device in ("cuda", "cpu"))
    assert F.cosine_similarity(ours.float().flatten(), plain.float().flatten(), dim=0) > 0.9999


@pytest.mark.skipif(torch.cuda.is_available(), reason="its memory here is the CPU's")
@pytest.mark.parametrize("tokens", [64, 70])
def test_rows_are_rounded_by_the_kernels_that_make_them(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For more than 64 rows, on a GPU with FP8."""
    set_num_threads(1)
    seen: list[Rows] = []

    def by_library(x: Rows, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        seen.append(x)
        rows = x.dequantize().half() if isinstance(x, Fp8Rows) else x
        return reference.linear_fp8(rows, codes, scale, bias)

    monkeypatch.setattr(fp8_linear, "by_library", by_library)
    # float16 stands for bfloat16, which the interpreter does not know
    monkeypatch.setattr(fp8_linear, "library_multiplies", lambda x, _: len(x) > MAX_ROWS)
    x = torch.randn(tokens, 64, generator=torch.Generator().manual_seed(0)).half()
    ours, plain = (mlp(x.clone(), device) for device in ("cuda", "cpu"))
    assert [type(rows) for rows in seen] == [Fp8Rows] * (3 if tokens > 64 else 0)
    assert F.cosine_similarity(ours.float().flatten(), plain.float().flatten(), dim=0) > 0.995


def test_linear_operations_without_fp8_rows_dequantize_them() -> None:
    x = torch.randn(70, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    rows = Fp8Rows(*reference.quantize_rows(x))
    weight = torch.randn(30, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    exact = F.linear(rows.codes.float() * rows.scale, weight.float())
    torch.testing.assert_close(
        triton_operations.linear(rows, weight, None).float(), exact, atol=0.1, rtol=0.02
    )
    stored = Fp8Weight(*reference.quantize_fp8(weight))
    exact = F.linear(rows.codes.float() * rows.scale, stored.codes.float() * stored.scale[:, None])
    ours = triton_operations.linear(rows, stored, None).float()
    torch.testing.assert_close(ours, exact, atol=0.1, rtol=0.02)


@pytest.mark.skipif(torch.cuda.is_available(), reason="its memory here is the CPU's")
@pytest.mark.parametrize("operations", [triton_operations, invariant_operations])
def test_a_weight_that_is_not_in_fp8_gets_rows_that_are_not(operations: ModuleType) -> None:
    """Some layers of a checkpoint may be in FP8, and others not."""
    set_num_threads(1)
    residual = torch.randn(70, 64, generator=torch.Generator().manual_seed(0)).half()
    norm, weight = torch.ones(64).half(), torch.randn(32, 64).half()
    exact = reference.rms_norm(residual, norm, 1e-5)
    state = ResidualState(residual, Fp8Rows(*reference.quantize_rows(exact)), norm, 1e-5)
    found = operations.rms_norm_linear(state, weight, None)
    torch.testing.assert_close(found, F.linear(exact, weight), atol=0.02, rtol=0.002)


@pytest.mark.parametrize(
    ("setting", "overrides", "is_same"),
    [
        ("fp8", None, True),
        ("fp8", "*.down_proj=none", False),
        ("fp8", "*.down_proj=int8", False),
        ("none", "*.gate_up_proj=fp8", False),
        ("none", "*.gate_up_proj=int8,*.down_proj=int8", True),
    ],
)
def test_what_gate_and_up_leave_is_rounded_for_a_down_projection_of_their_format(
    setting: Any, overrides: str | None, is_same: bool
) -> None:
    scheme = scheme_of(setting, "cuda", overrides)
    cpu, kernels = torch.device("cpu"), kernels_for("cpu")
    options = LayerOptions(torch.bfloat16, cpu, kernels, scheme, "model.layers.0")
    gate_up = LinearSpec(module="mlp.gate_up_proj", n=96, k=64, role="layer")
    down = LinearSpec(module="mlp.down_proj", n=64, k=48, role="layer")
    assert method_for(options, gate_up, down).feeds_same_format == is_same
    assert method_for(options, down).feeds_same_format, "norms round for the layer after them"


def mlp(x: Tensor, kernels: str) -> Tensor:
    """The stream x behind an MLP, by the kernels of a device."""
    options = LayerOptions(
        x.dtype, torch.device("cpu"), kernels_for(kernels), scheme_of("fp8", "cpu")
    )
    specs = [
        LinearSpec(module="", n=n, k=k, role="layer") for n, k in ((64, 64), (96, 64), (64, 48))
    ]
    first = RowParallelLinear(specs[0], options)
    gate_up = GateUpParallelLinear(specs[1], options)
    down = RowParallelLinear(specs[2], options)
    norm = RMSNorm(NormSpec(module="", size=64, eps=1e-5), options)
    norm.weight.fill_(1.0)
    for seed, layer in enumerate((first, gate_up, down)):
        assert isinstance(layer.weight, Weight)
        layer.weight.allocate()
        generator = torch.Generator().manual_seed(seed)
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) / 8)
        layer.process_after_load()
        assert isinstance(layer.method, FusedLinearMethod) == options.kernels.fuses
    stream = first.method.add_norm(first, x, x.clone(), norm)
    hidden = gate_up.method.apply_silu_linear(gate_up, stream)
    return down.method.add_norm(down, hidden, stream.residual, norm).residual
