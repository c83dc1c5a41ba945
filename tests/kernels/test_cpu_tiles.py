"""Products by tiles (AMX) beside those of other sets, also with the tile instructions spelt out."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quire.kernels.cpu import linear, linear_int, native
from quire.kernels.operands import Int8Weight, Normed

pytestmark = pytest.mark.skipif(native.library() is None, reason="the kernels were not built")

ROWS = (1, 15, 17, 33, 70)
SHAPES = ((48, 64), (288, 128), (16, 1216))  # outputs, inputs: more than a piece, than a stretch
ENTRY = """
#include "quire_cpu.h"
static int left = 0;
void linear_int_avx512_vnni(const LinearArgs&) { ++left; }
void linear_avx512_bf16(const LinearArgs&) { ++left; }
extern "C" int left_to_others() { return left; }
extern "C" void quire_cpu_linear(const LinearArgs* args) {
    args->format == Format::bf16 ? linear_bf16_amx(*args) : linear_int_amx(*args);
}
"""


@pytest.fixture(scope="module", params=["amx", "spelt out"])
def tiles(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ctypes.CDLL]:
    """The library with products by tiles."""
    ours = native.compiled()
    if request.param == "spelt out":
        yield spelt_out(tmp_path_factory.mktemp("tiles"))
        return
    if ours.quire_cpu_choose(b"amx") is None:
        pytest.skip("this processor has no tiles")
    loaded = ctypes.CDLL(shutil.copy(ours._name, tmp_path_factory.mktemp("amx")))
    loaded.quire_cpu_choose(b"amx")
    loaded.quire_cpu_linear.argtypes = [ctypes.c_char_p]
    ours.quire_cpu_choose(b"avx512_vnni")
    yield loaded
    ours.quire_cpu_choose(None)


def spelt_out(folder: Path) -> ctypes.CDLL:
    """What processors with tiles run, but for the instructions."""
    compiler = shutil.which("c++")
    if compiler is None or "avx512f" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("needs a C++ compiler and AVX-512")
    sources = Path(native.__file__).parent / "native"
    (folder / "entry.cpp").write_text(ENTRY)
    parts = [folder / "entry.cpp", sources / "amx.cpp", sources / "pool.cpp"]
    flags = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", "-DQUIRE_PLAIN_TILES"]
    out = folder / "tiles.so"
    subprocess.run([compiler, *flags, "-I", sources, "-o", out, *parts], check=True)
    lib = ctypes.CDLL(str(out))
    lib.quire_cpu_linear.argtypes = [ctypes.c_char_p]
    return lib


def both(
    tiles: ctypes.CDLL, patch: pytest.MonkeyPatch, x: Tensor, weight: Tensor | Int8Weight
) -> list[tuple[Tensor, Tensor]]:
    """The same products by the library's own choice and by tiles, with all that is around them."""
    n = weight.shape[0] * 16 if isinstance(weight, Tensor) else len(weight.scale)
    bias, residual = torch.randn(n).to(x.dtype), torch.randn(len(x), n).to(x.dtype)
    stream = Normed(x, None, torch.rand(x.shape[1]).to(x.dtype), 1e-5)

    def products() -> list[Tensor]:
        added = linear.linear_add_norm(x, weight, bias, residual.clone(), stream.weight, 1e-5)
        found = [linear.linear(x, weight, bias), linear.linear_normed(stream, weight, None)]
        found.append(added.residual)
        return found if n % 32 else [*found, linear.linear_silu(stream, weight, None)]

    expected = products()
    with patch.context() as chosen:
        chosen.setattr(native, "library", lambda: tiles)
        return list(zip(products(), expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bytes_give_the_same_bits(
    tiles: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    for n, k in SHAPES:
        codes = torch.randint(-127, 128, (n, k), dtype=torch.int8)
        weight = linear_int.prepare_int8(Int8Weight(codes, torch.rand(n) + 0.5))
        for rows in ROWS:
            x = torch.randn(rows, k).to(dtype)
            for found, expected in both(tiles, monkeypatch, x, weight):
                assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bfloat16(tiles: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    for n, k in SHAPES:
        weight = linear.pack(torch.randn(n, k).bfloat16())
        for rows in ROWS:
            x = torch.randn(rows, k).to(dtype)
            for found, expected in both(tiles, monkeypatch, x, weight):
                difference = (found - expected).abs().max()
                assert difference <= 0.02 * expected.abs().max()


def test_sizes_that_end_within_a_tile_are_left_to_others(
    tiles: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, x = torch.randint(-127, 128, (16, 96), dtype=torch.int8), torch.randn(3, 96)
    weight = linear_int.prepare_int8(Int8Weight(codes, torch.rand(16)))
    other, short = linear.pack(torch.randn(16, 80).bfloat16()), x[:, :80].contiguous()
    expected = linear.linear(x, weight, None), linear.linear(short, other, None)
    monkeypatch.setattr(native, "library", lambda: tiles)
    found = linear.linear(x, weight, None), linear.linear(short, other, None)
    if hasattr(tiles, "left_to_others"):
        assert tiles.left_to_others() == 2
    else:
        assert torch.equal(found[0], expected[0])
        torch.testing.assert_close(found[1], expected[1], rtol=0.02, atol=0.02)
