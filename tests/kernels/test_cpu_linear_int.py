"""Native products with weights of 8 and 4 bits beside whole numbers, for each instruction set."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from child_process import run_to_end
from torch import Tensor
from twins import chosen_set

from quire.kernels import reference, reference_quantized
from quire.kernels.cpu import native, native_linear, quantized_linear
from quire.kernels.cpu.native import num_threads, set_num_threads
from quire.kernels.formats.codebook_format import CodebookFormat
from quire.kernels.formats.fp4 import MXFP4
from quire.kernels.formats.nf4 import NF4
from quire.kernels.operands import (
    CodebookWeight,
    Int4Weight,
    Int8Weight,
    LinearWeight,
    PackedWeight,
    ResidualState,
)
from quire.quantization.stored_weight import describe, tensors_of

pytestmark = pytest.mark.skipif(native.library() is None, reason="the kernels were not built")

SETS = ("avx2", "avx2_vnni", "avx512", "avx512_vnni")  # of tiles: test_cpu_tiles.py
ROWS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 17, 70)
# outputs, inputs, inputs that share a scale of four bits
SHAPES = ((16, 32, 32), (64, 128, 64), (80, 256, 128), (96, 96, 96), (160, 2048, 32))
Rows = Int8Weight | Int4Weight | CodebookWeight
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2**-8}
PLANES = 5e-4  # least, of rows in two planes of bytes


ENTRY = """
#include "quire_cpu.h"
extern "C" void quire_cpu_linear(const LinearArgs* args) { linear_int_SET_vnni(*args); }
extern "C" void quire_cpu_pack(const PackArgs* args) { pack_weight(*args); }
"""


@pytest.fixture(params=SETS)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    yield from chosen_set(request.param)


def int8_weight(n: int, k: int, hadamard: bool = True, rounds: bool = True) -> Int8Weight:
    codes = torch.randint(-127, 128, (n, k), dtype=torch.int8)
    codes[:, 0] = -127  # the ends of what sums may come to
    return Int8Weight(codes, torch.rand(n) + 0.5, hadamard, rounds)


def int4_weight(
    n: int, k: int, group: int, zeros: bool = False, hadamard: bool = False
) -> Int4Weight:
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    codes[0], codes[1] = 255, 0
    points = torch.randint(0, 16, (n, k // group), dtype=torch.uint8)
    points[0], points[1] = 0, 15
    scale = torch.randn(n, k // group).half()
    return Int4Weight(codes, scale, points if zeros else None, group, hadamard)


def codebook_weight(own: CodebookFormat, n: int, k: int, group: int) -> CodebookWeight:
    """A weight with all codes, and scales in float16 or as exponents."""
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    codes[0], codes[1] = 255, 0
    scale = (
        torch.randn(n, k // group).half()
        if own is NF4
        else torch.randint(110, 130, (n, k // group))
    )
    return CodebookWeight(codes, scale.to(torch.uint8) if own is MXFP4 else scale, own.name, group)


def exact(x: Tensor, weight: Rows) -> Tensor:
    """The product of the rounded rows in float64, which holds every sum of whole numbers."""
    if isinstance(weight, Int8Weight):
        wide, group = weight.codes.double() * weight.scale.double()[:, None], None
        if not weight.rounds:
            return x.double() @ wide.T
        x = reference_quantized.hadamard_rotate(x.float()) if weight.hadamard else x
    elif isinstance(weight, CodebookWeight):
        own = NF4 if weight.codebook == "nf4" else MXFP4
        wide, group = own.dequantize_bytes(weight).double(), reference_quantized.ACTIVATION_GROUP
    else:
        wide = reference_quantized.dequantize_int4(weight).double()
        group = reference_quantized.ACTIVATION_GROUP
        x = reference_quantized.hadamard_rotate(x.float(), group) if weight.hadamard else x
    codes, scale = reference_quantized.round_int8(x, group)
    groups = torch.unflatten(codes, 1, (-1, group or x.shape[1])).double()
    return (groups * scale.double()[:, :, None]).flatten(1) @ wide.T


def check(
    found: Tensor, expected: Tensor, weight: Rows, in_planes_size: Tensor | None = None
) -> None:
    """in_planes_size: what errors of rows in planes are relative to, where not to a sum alone."""
    assert found.isfinite().all()
    in_planes = isinstance(weight, Int8Weight) and not weight.rounds
    size = expected.abs() + expected.abs().mean() if len(expected) else expected
    if in_planes and in_planes_size is not None:
        size = in_planes_size
    limit = max(PLANES if in_planes else 0.0, ROUNDING[found.dtype])
    assert ((found.double() - expected).abs() <= limit * size).all()


def prepared(weight: Rows) -> PackedWeight:
    packed = native_linear.pack(weight)
    assert isinstance(packed, PackedWeight)
    return packed


def check_linear(dtype: torch.dtype, n: int, k: int, group: int) -> None:
    x, bias = torch.randn(max(ROWS), k).to(dtype), torch.randn(n).to(dtype)
    together = reference_quantized.hadamard_size(k)
    x[0], x[1], x[1, ::together] = 1.0, 0.0, 1.0  # of int4, and of int8, all of them 127
    for weight in weights(n, k, group):
        packed, expected = prepared(weight), exact(x, weight) + bias.double()
        for rows in ROWS:
            check(native_linear.linear(x[:rows], packed, bias), expected[:rows], weight)


def weights(n: int, k: int, group: int) -> list[Rows]:
    fours = [int4_weight(n, k, group, **{kind: True}) for kind in ("zeros", "hadamard")]
    looked_up = [codebook_weight(own, n, k, group) for own in (NF4, MXFP4)]
    eights = [int8_weight(n, k), *(int8_weight(n, k, False, rounds) for rounds in (True, False))]
    return [*eights, int4_weight(n, k, group), *fours, *looked_up]


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_linear(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        check_linear(dtype, *shape)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_what_stands_around_them(dtype: torch.dtype) -> None:
    n, k = 64, 96
    norm, bias = torch.randn(k).to(dtype), torch.randn(n).to(dtype)
    for weight in weights(n, k, 32):
        packed = prepared(weight)
        stream = ResidualState(torch.randn(5, k).to(dtype), None, norm, 1e-5)
        rows = reference.rms_norm(stream.residual.float(), norm.float(), 1e-5)
        # a number that lies between two codes may be rounded to either: some steps of a weight
        expected = exact(rows, weight) + bias.double()
        found = native_linear.rms_norm_linear(stream, packed, bias)
        torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=2.0)
        rounded = rows.to(dtype)
        expected = exact(rounded, weight)
        halves = expected.view(5, n // 32, 2, 16)  # gate and up by turns
        given = ResidualState(stream.residual, rounded, norm, 1e-5)
        gate, up, mean = F.silu(halves[:, :, 0]), halves[:, :, 1], expected.abs().mean()
        # a product is off by each factor's error times the other
        size = gate.abs() * (up.abs() + mean) + up.abs() * (gate.abs() + mean)
        silu = (gate * up).flatten(1)
        check(native_linear.linear_silu(given, packed, None), silu, weight, size.flatten(1))
        residual = torch.randn(5, n).to(dtype)
        expected += residual.double()
        added = native_linear.linear_add_norm(rounded, packed, None, residual, norm, 1e-5)
        check(added.residual, expected, weight)
        assert added.residual is residual


@pytest.mark.usefixtures("instruction_set")
def test_a_row_depends_neither_on_others_nor_on_threads() -> None:
    x = torch.randn(70, 1024, dtype=torch.bfloat16)
    for weight in weights(160, 1024, 128):
        packed = prepared(weight)
        alone = torch.cat([native_linear.linear(row[None], packed, None) for row in x])
        assert torch.equal(native_linear.linear(x, packed, None), alone)
        threads = num_threads()
        set_num_threads(1)
        assert torch.equal(native_linear.linear(x[:11], packed, None), alone[:11])
        set_num_threads(threads)


@pytest.mark.usefixtures("instruction_set")
def test_what_is_not_a_number_stays_none_and_with_its_row() -> None:
    x = torch.ones(4, 64)
    x[1, 5], x[2, 40], x[3] = float("nan"), float("inf"), 0.0
    for weight in weights(16, 64, 64):
        found = native_linear.linear(x, prepared(weight), None)
        assert found[0].isfinite().all()
        assert not found[1:3].isfinite().any()
        assert (found[3] == 0.0).all()


@pytest.mark.usefixtures("instruction_set")
def test_other_sizes_and_types_are_served_too() -> None:
    for n, k in ((17, 64), (32, 77), (24, 32)):
        weight, x = int8_weight(n, k), torch.randn(3, k)
        assert quantized_linear.pack_rows(weight) is weight
        check(native_linear.linear(x, weight, None), exact(x, weight), weight)
    weight, x = int4_weight(8, 64, 32, True), torch.randn(3, 64)
    assert quantized_linear.pack_rows(weight) is weight
    check(native_linear.linear(x, weight, None), exact(x, weight), weight)
    half = torch.randn(3, 64, dtype=torch.float16)
    weight = int4_weight(16, 64, 32, False)
    found = native_linear.linear(half, prepared(weight), None)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.double(), exact(half, weight), rtol=2e-3, atol=1e-2)


def test_sums_that_32_bits_do_not_hold_are_left_to_others() -> None:
    for k in (2**17, 2**17 + 2**11):
        rows = Int8Weight(torch.full((16, k), 127, dtype=torch.int8), torch.ones(16), False)
        weight = quantized_linear.pack_rows(rows)
        assert isinstance(weight, PackedWeight) == (k <= 2**17)
        found = native_linear.linear(torch.ones(1, k), weight, None)
        assert torch.allclose(found, torch.full((1, 16), 127.0 * k), rtol=1e-3)


def test_vnni_with_its_dot_instruction_emulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processors with VNNI run the same code but for that instruction."""
    lib, compiler = native.library(), shutil.which("g++")
    assert lib is not None
    if compiler is None:
        pytest.skip("no compiler")
    name = "avx2" if lib.quire_cpu_choose(b"avx512") is None else "avx512"
    source = tmp_path / "entry.cpp"
    source.write_text(ENTRY.replace("SET", name))
    made, folder = tmp_path / "library.so", Path(native.__file__).parent / "native"
    parts = [folder / f"{part}.cpp" for part in (f"{name}_vnni", "pack", "pool")]
    flags = ["-std=c++20", "-O0", "-ffp-contract=off", "-pthread", "-w", "-fPIC", "-shared"]
    flags += ["-DQUIRE_PLAIN_DOT", f"-I{folder}"]
    run_to_end([compiler, *flags, source, *parts, "-o", made], check=True)
    loaded = ctypes.CDLL(str(made))
    loaded.quire_cpu_linear.argtypes = [ctypes.c_char_p]
    monkeypatch.setattr(native, "library", lambda: loaded)
    for shape in SHAPES[:3]:
        check_linear(torch.float32, *shape)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_are_rounded_as_their_twins_are(dtype: torch.dtype) -> None:
    weight = torch.randn(70, 512).to(dtype)
    weight[0], weight[1, 40:50] = 0.0, weight[1, 40:50].abs().max() * torch.tensor([1, -1] * 5)
    for rows in (70, 64, 48):  # of which the first cannot be packed
        some = weight[:rows]
        for hadamard in (True, False):
            theirs = reference_quantized.quantize_int8(some, hadamard=hadamard)
            check_same(quantized_linear.quantize(some, theirs.spec), theirs)
            for group in (32, 128, 512):
                fours = reference_quantized.quantize_int4(some, group, hadamard=hadamard)
                check_same(quantized_linear.quantize(some, fours.spec), fours)


def check_same(found: LinearWeight, rows: Int8Weight | Int4Weight) -> None:
    expected = quantized_linear.pack_rows(rows)
    assert describe(found) == describe(expected)
    ours, theirs = tensors_of(found), tensors_of(expected)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
