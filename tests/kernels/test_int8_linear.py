"""Linears with weights in INT8 by a GPU's operations; interpreted, where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from device import DEVICE, DTYPE, ON_EITHER, ON_GPU
from test_triton_kernels import moved
from torch import Tensor
from twins import error_of, normal

from quire.kernels import reference
from quire.kernels.dispatch import kernels_for
from quire.kernels.operands import Fp8Rows, Fp8Weight, Int8Rows, Int8Weight, ResidualState
from quire.kernels.reference_quantized import quantize_int8, round_int8
from quire.kernels.triton.gemm.gemm_tuning import bytes_gemm_config
from quire.kernels.triton.launch.gemm_config import SkinnyConfig
from quire.kernels.triton.launch.workspace import NUM_PARTIALS, workspace
from quire.kernels.triton.ops.int8_linear import INT8, multiply_int8
from quire.kernels.triton.ops.linear_table import linear_of
from quire.kernels.triton.ops.rounded_rows import rows_for
from quire.kernels.triton.ops.skinny_gemm import (
    interleave_gate_up,
    skinny_gemm,
    skinny_gemm_norm,
    skinny_gemm_silu,
)
from quire.kernels.triton.step import elementwise

pytestmark = [*ON_EITHER, pytest.mark.usefixtures("one_thread")]


def weight_of(n: int, k: int) -> Int8Weight:
    """A weight on the device under test."""
    plain = normal(n, k, dtype=torch.float32, seed=n) / k**0.5
    found: Int8Weight = moved(quantize_int8(plain, hadamard=False))
    return found


def numbers_of(weight: Int8Weight) -> Tensor:
    """What its codes stand for, in float64."""
    return weight.codes.double() * weight.scale[:, None].double()


def test_rows_are_rounded_as_the_twin_says() -> None:
    x = moved(normal(5, 333, dtype=DTYPE) * 3)
    x[1], x[2, 7], x[3] = 0.0, 500.0, x[3] * 1e-4
    rows = elementwise.quantize_rows(x, Int8Rows)
    codes, scale = round_int8(x)
    torch.testing.assert_close(rows.scale[[0, 2, 3, 4]], scale[[0, 2, 3, 4]])
    assert rows.codes.dtype == torch.int8
    assert not rows.codes[1].any()
    difference = (rows.codes.int() - codes.int()).abs()
    assert difference.max() <= 1  # at a border between two codes
    assert difference.float().mean() < 0.01


def test_what_is_not_a_number_makes_a_row_of_nans() -> None:
    x = moved(normal(2, 64, dtype=DTYPE))
    x[1, 5] = torch.nan
    out = INT8.linear(x.repeat(40, 1), weight_of(32, 64), None)
    assert out[0::2].isfinite().all()
    assert out[1::2].isnan().all()
    assert INT8.linear(x, weight_of(32, 64), None)[1].isnan().all()


def test_norm_and_silu_round_what_they_would_have_stored() -> None:
    x, residual = moved(normal(2, 3, 77, dtype=DTYPE))
    weight = moved(normal(77, dtype=DTYPE, seed=1))
    stored, _ = elementwise.rms_norm_residual(x, residual.clone(), weight, 1e-5)
    ours, _ = elementwise.rms_norm_residual_rounded(x, residual.clone(), weight, 1e-5, Int8Rows)
    pairs = moved(normal(3, 154, dtype=DTYPE, seed=2) * 3)
    hidden = elementwise.silu_and_mul_rounded(pairs, Int8Rows)
    for rows, whole in (
        (ours, stored),
        (hidden, elementwise.silu_and_mul(pairs, interleaved=True)),
    ):
        alone = elementwise.quantize_rows(whole, Int8Rows)
        assert isinstance(rows, Int8Rows)
        assert torch.equal(rows.scale, alone.scale)
        assert torch.equal(rows.codes, alone.codes)


@pytest.mark.parametrize(("m", "n", "k"), [(5, 40, 96), (70, 33, 130), (17, 16, 2048)])
def test_matmuls_of_bytes_are_exact(m: int, n: int, k: int) -> None:
    """But for the result's one rounding, whatever sign the sums have."""
    dtype, limit = (DTYPE, 2**-8) if ON_GPU else (torch.float32, 1e-5)
    weight = weight_of(n, k)
    weight.codes[0] = 127
    codes = moved(torch.randint(-127, 128, (m, k), dtype=torch.int8))
    codes[0] = 127
    rows = Int8Rows(codes, moved(torch.rand(m, 1) + 0.5))
    bias = moved(normal(n, dtype=DTYPE))
    exact = (codes.double() * rows.scale) @ numbers_of(weight).T + bias.double()
    out = multiply_int8(rows, weight, bias, dtype)
    torch.testing.assert_close(out.double(), exact, rtol=limit, atol=limit)


@pytest.mark.parametrize("config", [None, SkinnyConfig(64, 64, 2, split=3)], ids=["rule", "split"])
def test_few_rows_are_rounded_inside_of_the_gemm(config: SkinnyConfig | None) -> None:
    """With norm, residual and SiLU fused."""
    n, k = 96, 200
    weight, x = weight_of(n, k), moved(normal(3, k, dtype=DTYPE))
    bias, residual = moved(normal(n, dtype=DTYPE)), moved(normal(3, n, dtype=DTYPE, seed=1))
    norm = moved(normal(n, dtype=DTYPE, seed=2)).abs()
    exact = x.double() @ numbers_of(weight).T + bias.double()
    assert error_of(skinny_gemm(x, weight, bias=bias, config=config), exact) < 1e-2
    state = skinny_gemm_norm(x, weight, residual, norm, 1e-5, bias=bias, config=config)
    assert error_of(state.residual, exact + residual.double()) < 1e-2
    rms = (state.residual.double().square().mean(1, keepdim=True) + 1e-5).rsqrt()
    gate_up = weight_of(64, n)
    gate, up = (state.residual.double() * rms * norm.double() @ numbers_of(gate_up).T).chunk(2, 1)
    pairs = gate_up.map_rows(interleave_gate_up)
    assert error_of(skinny_gemm_silu(state, pairs, config=config), F.silu(gate) * up) < 2e-2
    assert not workspace(DEVICE).counters.any()


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("rows", [2, 70])
def test_the_operations_of_a_layer(rows: int, batch_invariant: bool) -> None:
    kernels = kernels_for("cuda", batch_invariant=batch_invariant)
    x, residual = moved(normal(2, rows, 96, dtype=DTYPE))
    norm = moved(normal(96, dtype=DTYPE, seed=1)).abs() + 0.5
    out, gate_up, down = weight_of(96, 96), weight_of(128, 96), weight_of(96, 64)
    state = kernels.linear_add_norm(x, out, None, residual.clone(), norm, 1e-5)
    stream = residual.double() + x.double() @ numbers_of(out).T
    assert error_of(state.residual, stream) < 1e-2
    hidden = kernels.linear_silu(state, gate_up.map_rows(interleave_gate_up), None, True)
    wide = kernels.linear_silu(state, gate_up.map_rows(interleave_gate_up), None, False)
    rms = (stream.square().mean(1, keepdim=True) + 1e-5).rsqrt()
    gate, up = (stream * rms * norm.double() @ numbers_of(gate_up).T).chunk(2, dim=1)
    assert isinstance(wide, Tensor)
    assert error_of(wide, F.silu(gate) * up) < 2e-2
    exact = F.silu(gate) * up @ numbers_of(down).T
    assert error_of(kernels.linear(hidden, down, None), exact) < 3e-2


def test_rows_are_rounded_for_the_weight_that_takes_them() -> None:
    """Bytes by bytes, FP8 by FP8; a weight of another format gets rows without rounding."""
    weight, residual = weight_of(32, 64), moved(normal(70, 64, dtype=DTYPE))
    out, norm = residual.bfloat16(), torch.ones_like(residual[0])
    assert INT8.rounds_next(out, weight) is Int8Rows
    assert INT8.rounds_next(out[:9], weight) is None
    plain = weight.codes.bfloat16()
    assert linear_of(plain).rounds_next(out, plain) is None
    rows = elementwise.quantize_rows(residual, Int8Rows)
    state = ResidualState(residual, rows, norm, 1e-5)
    assert rows_for(state, INT8.rows_of(weight)) is rows
    in_fp8 = Fp8Weight(weight.codes.float().to(reference.FP8), weight.scale)
    for other in (in_fp8, weight.codes.to(DTYPE)):
        assert isinstance(rows_for(state, linear_of(other).rows_of(other)), Tensor)
    fp8 = Fp8Rows(*reference.quantize_rows(residual))
    found = INT8.linear(fp8, weight, None)
    assert error_of(found, residual.double() @ numbers_of(weight).T) < 0.05


def test_no_rows_have_no_result() -> None:
    weight = weight_of(4096, 1024)  # of which Hopper's kernel takes few rows
    x = moved(torch.empty(0, 1024, dtype=DTYPE))
    for rows in (x, elementwise.quantize_rows(x, Int8Rows)):
        assert INT8.linear(rows, weight, None).shape == (0, 4096)


@pytest.mark.parametrize("m", [0, 1, 16, 17, 64, 65, 128, 129, 200, 256, 257, 2048])
@pytest.mark.parametrize(
    ("n", "k"), [(4096, 4096), (4096, 1024), (28672, 4096), (4096, 14336), (96, 272)]
)
def test_a_config_of_many_rows_fits_the_workspace(m: int, n: int, k: int) -> None:
    """And where no multiprocessor would idle, the kernel of many rows may serve."""
    config = bytes_gemm_config(m, n, k, 132)
    if config is None:
        assert m == 0 or m > 256 or -(-m // 128) * -(-n // 128) >= 132
    else:
        rows = 1 << (m - 1).bit_length()
        sums = -(-n // config.block_n) * config.split * config.block_n * rows
        assert config.split == 1 or sums <= NUM_PARTIALS
        assert config.stages * config.tiles * 128 * (config.block_n + rows) < 227 * 1024


HOPPER_ONLY = pytest.mark.gpu("Hopper")
ROWS = 1, 2, 8, 16, 17, 64, 128, 129, 200, 256, 300, 2048


@HOPPER_ONLY
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("n", "k"), [(4096, 1024), (1040, 4096), (200, 272), (151, 1001)])
def test_any_number_of_rows_on_a_hopper(rows: int, n: int, k: int) -> None:
    weight, bias = weight_of(n, k), moved(normal(n, dtype=DTYPE))
    x = moved(normal(rows, k, dtype=DTYPE))
    exact = x.double() @ numbers_of(weight).T + bias.double()
    calls: list[Callable[..., Any]] = [kernels_for("cuda", batch_invariant=b).linear
                                       for b in (False, True)]  # fmt: skip
    for linear in calls:
        for _ in range(2):  # counters of partial results are left at zero
            assert error_of(linear(x, weight, bias), exact) < 2e-2
    rounded = elementwise.quantize_rows(x, Int8Rows)
    exact = (rounded.codes.double() * rounded.scale) @ numbers_of(weight).T + bias.double()
    out = INT8.linear(rounded, weight, bias)
    assert error_of(out, exact) < 4e-3
    assert not (workspace(DEVICE).arrivals % 256).any()
