"""Natively packed products beside float64, for each instruction set that runs here."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from child_process import run_to_end
from torch import Tensor

from quire.kernels.cpu import native, quantized_linear
from quire.kernels.cpu import native_linear as linears
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.operands import PackedWeight, ResidualState

pytestmark = [
    pytest.mark.skipif(native.library() is None, reason="the kernels were not built"),
    pytest.mark.usefixtures("instruction_set"),
]

# one unit in the last place, of a result and of sums of its size
ROUNDING = {torch.float32: 4e-6, torch.bfloat16: 2**-8}
ROWS = (0, 1, 2, 3, 5, 7, 14, 15, 33, 600)
SHAPES = ((16, 2), (48, 18), (96, 64), (1040, 1030))


def normal(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape).to(dtype)


def check(found: Tensor, expected: Tensor, size: Tensor) -> None:
    """size: what the numbers that were summed up come to; rounding is in proportion to it."""
    assert found.isfinite().all()
    assert ((found.double() - expected).abs() <= ROUNDING[found.dtype] * size).all()


def normalized(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm with eps 1e-5, in float64."""
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight.double()


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_linear(dtype: torch.dtype) -> None:
    for n, k in SHAPES:
        weight, bias = normal(n, k, dtype=dtype), normal(n, dtype=dtype)
        packed = linears.pack(weight)
        assert isinstance(packed, PackedWeight)
        assert packed.packed.numel() == weight.numel()
        for rows in ROWS:
            x = normal(rows, k, dtype=dtype)
            expected = x.double() @ weight.double().T
            size = x.double().abs() @ weight.double().abs().T + 5.0
            check(linears.linear(x, packed, None), expected, size)
            check(linears.linear(x, packed, bias), expected + bias.double(), size)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("rows", [1, 4, 40])
def test_what_stands_around_them(dtype: torch.dtype, rows: int) -> None:
    k, n = 90, 64
    norm, bias = normal(k, dtype=dtype), normal(n, dtype=dtype)
    stream = ResidualState(normal(rows, k, dtype=dtype), None, norm, 1e-5)
    weight = (normal(n, k, dtype=dtype) / 8).to(dtype)
    packed = linears.pack(weight)
    behind = normalized(stream.residual, norm)
    expected = behind @ weight.double().T + bias.double()
    size = behind.abs() @ weight.double().abs().T + 4.0
    check(linears.rms_norm_linear(stream, packed, bias), expected, size)

    gate_up = linears.pack(linears.order_gate_up(weight, weight.dtype))
    gate, up = expected.chunk(2, dim=-1)
    found = linears.linear_silu(stream, gate_up, linears.order_gate_up(bias, weight.dtype))
    check(found, F.silu(gate) * up, size[:, : n // 2] * (1 + gate.abs()) * (1 + up.abs()))
    found = linears.linear_gelu(stream, gate_up, linears.order_gate_up(bias, weight.dtype))
    gelu = F.gelu(gate, approximate="tanh")
    check(found, gelu * up, size[:, : n // 2] * (1 + gate.abs()) * (1 + up.abs()))

    x, residual = normal(rows, k, dtype=dtype), normal(rows, n, dtype=dtype)
    expected = residual.double() + x.double() @ weight.double().T + bias.double()
    size = residual.double().abs() + x.double().abs() @ weight.double().abs().T + 4.0
    added = linears.linear_add_norm(x, packed, bias, residual, normal(n, dtype=dtype), 1e-5)
    check(added.residual, expected, size)
    assert added.rows is None
    assert added.residual is residual


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_a_row_does_not_depend_on_others_nor_on_threads(dtype: torch.dtype) -> None:
    x, weight = normal(70, 1030, dtype=dtype), normal(560, 1030, dtype=dtype)
    packed = linears.pack(weight)
    alone = torch.cat([linears.linear(row[None], packed, None) for row in x])
    assert torch.equal(linears.linear(x, packed, None), alone)
    set_num_threads(1)
    assert torch.equal(linears.linear(x, packed, None), alone)
    set_num_threads(2)
    assert torch.equal(linears.linear(x[:9], packed, None), alone[:9])


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_rows_are_found_in_a_packed_weight(dtype: torch.dtype) -> None:
    weight, ids = normal(80, 18, dtype=dtype), torch.tensor([0, 79, 16, 15, 0, 33])
    packed = linears.pack(weight)
    assert torch.equal(linears.embedding(ids, packed), weight[ids])
    assert linears.embedding(ids[:0], packed).shape == (0, 18)
    with pytest.raises(IndexError):
        linears.embedding(torch.tensor([80]), packed)


def test_extreme_activations() -> None:
    """silu is exact to rounding where exp is at its ends, and NaN stays with its row."""
    gate = torch.tensor([-3e38, -1e4, -88.0, -87.0, -1.0, -0.0, 1e-20, 1.0, 88.0, 1e4, 3e38])
    x = torch.ones(2, 2)
    x[1, 0] = float("nan")
    weight = torch.zeros(64, 2)
    weight[: len(gate), 0] = gate
    weight[32:, 1] = 1.0  # up
    packed = linears.pack(linears.order_gate_up(weight, weight.dtype))
    found = linears.linear_silu(ResidualState(x, x, torch.ones(2), 0.0), packed, None)
    expected = F.silu(gate.double()).float()
    torch.testing.assert_close(found[0, : len(gate)], expected, rtol=1e-6, atol=1e-35)
    assert found[1].isnan().all()


@pytest.mark.parametrize("shape", [(17, 8), (32, 7), (16, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_sizes_and_types_go_elsewhere(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight, x = normal(*shape, dtype=dtype), normal(3, shape[1], dtype=dtype)
    packed = linears.pack(weight)
    assert isinstance(packed, Tensor)
    expected = x.double() @ weight.double().T
    torch.testing.assert_close(
        linears.linear(x, packed, None).double(), expected, rtol=0.02, atol=0.02
    )


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("shape", [(64, 7), (24, 8), (64, 8)])
def test_linear_silu_of_interleaved_gate_and_up(shape: tuple[int, int], rows: int) -> None:
    weight, residual = normal(*shape, dtype=torch.float32), torch.randn(rows, shape[1])
    stream = ResidualState(residual, None, torch.ones(shape[1]), 1e-5)
    gate, up = (normalized(residual, stream.weight) @ weight.double().T).chunk(2, dim=-1)
    ordered = quantized_linear.in_rows(linears.order_gate_up(weight, weight.dtype))
    found = linears.linear_silu(stream, ordered, None)
    torch.testing.assert_close(found.double(), F.silu(gate) * up, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def plain_dots(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """What processors with dot products of bfloat16 run, with that one instruction spelt out."""
    compiler = shutil.which("c++")
    if compiler is None or "avx512f" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("needs a C++ compiler and AVX-512")
    sources, folder = Path(native.__file__).parent / "native", tmp_path_factory.mktemp("dots")
    entry = """#include "quire_cpu.h"
        extern "C" void quire_cpu_linear(const LinearArgs* a) { linear_avx512_bf16(*a); }"""
    (folder / "entry.cpp").write_text(entry)
    parts = [folder / "entry.cpp", sources / "avx512_bf16.cpp", sources / "pool.cpp"]
    flags = ["-std=c++20", "-O0", "-w", "-shared", "-fPIC", "-pthread", "-DQUIRE_PLAIN_DOTS"]
    out = folder / "dots.so"
    run_to_end([compiler, *flags, "-I", sources, "-o", out, *parts], check=True)
    lib = ctypes.CDLL(str(out))
    lib.quire_cpu_linear.argtypes = [ctypes.c_char_p]
    return lib


def test_dots_of_pairs(plain_dots: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sum in the same order, so results are equal, but for a norm, which rounds."""
    for n, k in SHAPES:
        packed = linears.pack(normal(n, k, dtype=torch.bfloat16))
        for rows in (1, 3, 7, 14, 33):
            x = normal(rows, k, dtype=torch.bfloat16)
            stream = ResidualState(x, None, normal(k, dtype=torch.bfloat16), 1e-5)
            in_float = (
                linears.linear(x, packed, None),
                linears.rms_norm_linear(stream, packed, None),
            )
            with monkeypatch.context() as patch:
                patch.setattr(native, "library", lambda: plain_dots)
                found = linears.linear(x, packed, None)
                behind = linears.rms_norm_linear(stream, packed, None)
            assert torch.equal(found, in_float[0])
            size = 0.02 * in_float[1].abs().max()
            assert ((behind - in_float[1]).abs() <= size).all()
