"""Linears with four-bit weights on a Hopper GPU, against float64 of the same numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from twins import error_of

from quire.kernels import reference
from quire.kernels.operands import (
    Fp8Rows,
    Int4Weight,
    Int4Words,
    ResidualState,
)
from quire.kernels.reference_quantized import (
    dequantize_int4,
    quantize_int4,
)
from quire.kernels.triton.gemm.int4_config import Int4Config, int4_configs
from quire.kernels.triton.gemm.int4_rows_config import int4_rows_configs
from quire.kernels.triton.hopper.hopper_int4_rows import multiply_rows_int4
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops.int4_linear import INT4, multiplies_in_fp8
from quire.kernels.triton.ops.linear_table import pack
from quire.kernels.triton.ops.skinny_gemm import (
    interleave_gate_up,
    skinny_gemm,
    skinny_gemm_norm,
    skinny_gemm_silu,
)
from quire.kernels.triton.step.elementwise import quantize_rows

pytestmark = pytest.mark.gpu("Hopper")
ROWS = 1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 129, 200, 500, 1100


def weight_of(n: int, k: int, group: int, *, zeros: bool = False) -> Int4Weight:
    """A random weight in canonical rows."""
    weight = quantize_int4(torch.randn(n, k, device="cuda"), group, hadamard=False)
    if zeros:
        points = torch.randint(0, 16, weight.scale.shape, dtype=torch.uint8, device="cuda")
        return replace(weight, zeros=points)
    return weight


def packed(weight: Int4Weight) -> Int4Words:
    """The weight in words."""
    found = pack(weight)
    assert isinstance(found, Int4Words)
    return found


def expected_of(x: Tensor, weight: Int4Weight, *, in_fp8: bool = False) -> Tensor:
    """What a linear operation gives: with many rows of x both are in FP8, if sizes allow it."""
    numbers = dequantize_int4(weight)
    if in_fp8 or multiplies_in_fp8(len(x), x.dtype, packed(weight)):
        scale = packed(weight).row_scale[:, None]
        numbers = (numbers / scale).half().to(torch.float8_e4m3fn).float() * scale
        x = Fp8Rows(*reference.quantize_rows(x)).dequantize()
    return x.double() @ numbers.double().T


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("group", "zeros"), [(128, False), (64, True), (32, True), (32, False)])
def test_results_are_those_of_the_dequantized_weight(rows: int, group: int, zeros: bool) -> None:
    weight = weight_of(768, 1280, group, zeros=zeros)
    x = torch.randn(rows, 1280, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(768, device="cuda", dtype=torch.bfloat16)
    expected = expected_of(x, weight) + bias.double()
    assert error_of(INT4.linear(x, packed(weight), bias), expected) < 4e-3


@pytest.mark.parametrize(("n", "k"), [(48, 256), (1000, 4096), (4096, 896), (151, 2752)])
def test_sizes_that_no_tile_divides(n: int, k: int) -> None:
    weight = weight_of(n, k, 32 if k % 64 else 64)
    for rows in (1, 7, 40, 130, 700, 1500):
        x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
        assert error_of(INT4.linear(x, packed(weight), None), expected_of(x, weight)) < 4e-3


@pytest.mark.parametrize("rows", [1, 4, 16, 64, 128])
def test_every_config_gives_the_result(rows: int) -> None:
    weight = weight_of(2048, 4096, 128)
    x = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16)
    expected, words = x.double() @ dequantize_int4(weight).double().T, packed(weight)
    for config in int4_configs(rows, 2048, 4096, 128, workspace(x.device).num_sms):
        for _ in range(3):  # counters of partial results are left at zero
            assert error_of(skinny_gemm(x, words, config=config), expected) < 4e-3, config


@pytest.mark.parametrize("rows", [70, 129, 257, 1000])
@pytest.mark.parametrize(
    ("n", "k", "group", "zeros"),
    [
        (1008, 2048, 64, False),
        (1008, 2048, 32, True),
        (20000, 320, 64, True),
        (9008, 640, 128, False),
    ],
)
def test_every_config_of_many_rows_gives_the_result(
    rows: int, n: int, k: int, group: int, *, zeros: bool
) -> None:
    """Rows behind the last one of x are not stored, and partial results leave nothing behind.

    Some programs have several tiles, of fewer blocks than the ring.
    """
    weight = weight_of(n, k, group, zeros=zeros)
    x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(n, device="cuda", dtype=torch.bfloat16)
    expected = expected_of(x, weight, in_fp8=True) + bias.double()
    given, words = quantize_rows(x), packed(weight)
    configs = list(int4_rows_configs(rows, n, k))
    assert len({(each.block_m, each.block_n) for each in configs}) >= 2
    for config in configs:
        outs = [multiply_rows_int4(given, words, bias, config) for _ in range(2)]
        assert torch.equal(*outs), config
        assert error_of(outs[0], expected) < 4e-3, config
        assert not (workspace(x.device).arrivals % 256).any()


def test_an_order_of_inputs_is_followed() -> None:
    weight = weight_of(256, 512, 128)
    order = torch.randperm(512, device="cuda")
    weight = replace(weight, permutation=order.int())
    for rows in (3, 600, 1500):
        x = torch.randn(rows, 512, device="cuda", dtype=torch.bfloat16)
        expected = expected_of(x[:, order], weight)
        assert error_of(INT4.linear(x, packed(weight), None), expected) < 4e-3


@pytest.mark.parametrize("rows", [1, 3, 16, 64])
def test_what_is_fused(rows: int) -> None:
    weight = weight_of(1024, 1024, 128)
    numbers, words = dequantize_int4(weight).double(), packed(weight)
    x, residual = (torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    norm = torch.rand(1024, device="cuda", dtype=torch.bfloat16)
    state = skinny_gemm_norm(x, words, residual, norm, 1e-5)
    assert error_of(state.residual, residual.double() + x.double() @ numbers.T) < 4e-3
    rms = (state.residual.double().square().mean(1, keepdim=True) + 1e-5).rsqrt()
    normalized = state.residual.double() * rms * norm.double()
    gate_up = packed(weight.map_rows(interleave_gate_up))
    gate, up = (normalized @ numbers.T).chunk(2, dim=1)
    expected = torch.nn.functional.silu(gate) * up
    assert isinstance(state, ResidualState)
    assert error_of(skinny_gemm_silu(state, gate_up), expected) < 1e-2
    if rows <= 4:
        config = Int4Config(block_n=32, parts=2, stages=2)
        assert error_of(skinny_gemm_silu(state, gate_up, config=config), expected) < 1e-2


@pytest.mark.parametrize("rows", [1, 5, 16, 64])
@pytest.mark.parametrize("zeros", [False, True])
def test_what_is_not_finite_stays_in_its_row(rows: int, zeros: bool) -> None:
    weight = weight_of(1088, 2048, 64, zeros=zeros)
    x = torch.randn(rows, 2048, device="cuda", dtype=torch.bfloat16)
    x[:, 5] *= 300  # an outlier among its columns
    expected, words = x.double() @ dequantize_int4(weight).double().T, packed(weight)
    assert error_of(skinny_gemm(x, words), expected) < 4e-3
    x[0, 9] = float("nan")
    found = skinny_gemm(x, words)
    assert bool(found[0].isnan().all())
    assert bool(found[1:].isfinite().all())
