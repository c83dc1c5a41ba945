"""Products by tiles (AMX), and attention by them and by dot products of pairs, beside others.

Both also with the instructions spelt out.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from child_process import run_to_end
from torch import Tensor
from twins import attention_case

from quire.kernels import reference, reference_quantized
from quire.kernels.cpu import native, native_attention, native_linear, quantized_linear
from quire.kernels.formats.fp4 import MXFP4
from quire.kernels.formats.nf4 import NF4
from quire.kernels.operands import (
    CodebookWeight,
    Int4Weight,
    Int8Weight,
    LinearWeight,
    PackedWeight,
    QuantizedWeight,
    ResidualState,
)

pytestmark = pytest.mark.skipif(native.library() is None, reason="the kernels were not built")

ROWS = (1, 15, 17, 33, 70)
SHAPES = ((48, 64), (288, 128), (16, 1216))  # outputs, inputs: more than a piece, than a stretch
LINEAR_ENTRY = """
#include "quire_cpu.h"
static int left = 0;
void linear_int_avx512_vnni(const LinearArgs&) { ++left; }
void linear_avx512_bf16(const LinearArgs&) { ++left; }
extern "C" int left_to_others() { return left; }
extern "C" void quire_cpu_linear(const LinearArgs* args) {
    args->format == Format::bf16 ? linear_bf16_amx(*args) : linear_int_amx(*args);
}
"""
ATTENTION_ENTRY = """
#include "quire_cpu.h"
extern "C" void quire_cpu_attention(const AttentionArgs* args) {  // of prompts, one after the other
    const AttentionArgs& a = *args;
    const auto [attend, rows] = PROMPTS(a);
    const int64_t most = rows * a.kv_heads / a.heads;
    for (int64_t r = 0; r < a.requests; ++r) {
        const int32_t* table = a.block_table + r * a.table_stride;
        const int64_t end = a.query_start[r + 1], length = a.seq_lens[r];
        for (int64_t token = a.query_start[r]; token < end; token += most)
            for (int64_t head = 0; head < a.kv_heads; ++head)
                attend(a, table, token, length - end + token,
                       end - token < most ? end - token : most, head);
    }
}
"""
SPELT_OUT = {  # of an instruction set's file, the entry beside attention's, and a flag
    "amx": (LINEAR_ENTRY, "QUIRE_PLAIN_TILES"),
    "avx512_bf16": ("", "QUIRE_PLAIN_DOTS"),
}


@pytest.fixture(scope="module", params=["amx", "amx spelt out"])
def tiles(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ctypes.CDLL]:
    """The library with products by tiles."""
    yield from library(request.param, tmp_path_factory)


@pytest.fixture(scope="module", params=[*SPELT_OUT, *(f"{name} spelt out" for name in SPELT_OUT)])
def pairs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ctypes.CDLL]:
    """A library with attention by products of pairs."""
    yield from library(request.param, tmp_path_factory)


def library(name: str, folders: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    """The kernels of an instruction set, or these with the instructions spelt out."""
    ours, folder = native.compiled(), folders.mktemp("kernels")
    name, _, spelled = name.partition(" ")
    if spelled:
        yield spelt_out(name, folder)
        return
    if ours.quire_cpu_choose(name.encode()) is None:
        pytest.skip(f"this processor does not run {name}")
    loaded = ctypes.CDLL(shutil.copy(ours._name, folder))
    loaded.quire_cpu_choose(name.encode())
    loaded.quire_cpu_linear.argtypes = [ctypes.c_char_p]
    ours.quire_cpu_choose(b"avx512_vnni")
    yield loaded
    ours.quire_cpu_choose(None)


def spelt_out(name: str, folder: Path) -> ctypes.CDLL:
    """What processors with an instruction set run, but for the instructions."""
    compiler = shutil.which("c++")
    if compiler is None or "avx512f" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("needs a C++ compiler and AVX-512")
    native_folder = Path(native.__file__).parent / "native"
    linear_entry, plain = SPELT_OUT[name]
    (folder / "entry.cpp").write_text(linear_entry + ATTENTION_ENTRY)
    parts = [folder / "entry.cpp", native_folder / f"{name}.cpp", native_folder / "pool.cpp"]
    flags = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread"]
    flags += [f"-D{plain}", f"-DPROMPTS=prompts_{name}"]
    out = folder / "kernels.so"
    run_to_end([compiler, *flags, "-I", native_folder, "-o", out, *parts], check=True)
    lib = ctypes.CDLL(str(out))
    if linear_entry:
        lib.quire_cpu_linear.argtypes = [ctypes.c_char_p]
    return lib


def both(
    tiles: ctypes.CDLL,
    patch: pytest.MonkeyPatch,
    x: Tensor,
    weight: LinearWeight,
) -> list[tuple[Tensor, Tensor]]:
    """Products and their fused operations, by the default kernels and by tiles."""
    assert isinstance(weight, PackedWeight)
    n = weight.outputs
    bias, residual = torch.randn(n).to(x.dtype), torch.randn(len(x), n).to(x.dtype)
    stream = ResidualState(x, None, torch.rand(x.shape[1]).to(x.dtype), 1e-5)

    def linears() -> list[Tensor]:
        added = native_linear.linear_add_norm(
            x, weight, bias, residual.clone(), stream.weight, 1e-5
        )
        found = [
            native_linear.linear(x, weight, bias),
            native_linear.rms_norm_linear(stream, weight, None),
        ]
        found.append(added.residual)
        return found if n % 32 else [*found, native_linear.linear_silu(stream, weight, None)]

    expected = linears()
    with patch.context() as chosen:
        chosen.setattr(native, "library", lambda: tiles)
        return list(zip(linears(), expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bytes_give_the_same_bits(
    tiles: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    for n, k in SHAPES:
        codes = torch.randint(-127, 128, (n, k), dtype=torch.int8)
        for kind in ((True, True), (False, True), (False, False)):
            rows_of = Int8Weight(codes, torch.rand(n) + 0.5, *kind)
            weight = quantized_linear.pack_rows(rows_of)
            for rows in ROWS:
                x = torch.randn(rows, k).to(dtype)
                for found, expected in both(tiles, monkeypatch, x, weight):
                    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bfloat16(tiles: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    for n, k in SHAPES:
        weight = native_linear.pack_floats(torch.randn(n, k).bfloat16())
        for rows in ROWS:
            x = torch.randn(rows, k).to(dtype)
            for found, expected in both(tiles, monkeypatch, x, weight):
                difference = (found - expected).abs().max()
                assert difference <= 0.02 * expected.abs().max()


def four_bits(kind: str, n: int, k: int, group: int) -> tuple[QuantizedWeight, Tensor]:
    """A weight of random codes, and the numbers that are multiplied."""
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    scale = torch.randn(n, k // group).half()
    if kind in ("int4", "zeros"):
        points = torch.randint(0, 16, (n, k // group), dtype=torch.uint8)
        weight = Int4Weight(codes, scale, points if kind == "zeros" else None, group)
        return weight, reference_quantized.dequantize_int4(weight)
    exponents = torch.randint(120, 130, scale.shape, dtype=torch.uint8)
    own = NF4 if kind == "nf4" else MXFP4
    looked_up = CodebookWeight(codes, scale if own is NF4 else exponents, own.name, group)
    return looked_up, own.dequantize_bytes(looked_up)


@pytest.mark.parametrize("kind", ["int4", "zeros", "nf4", "mxfp4"])
def test_four_bits(tiles: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Weights and rows are rounded to bfloat16: each product is within 2^-7 of what it is."""
    for n, k, group in ((48, 96, 96), (288, 1024, 32), (16, 1280, 160)):
        weight, wide = four_bits(kind, n, k, group)
        packed = quantized_linear.pack_rows(weight)
        for rows in (32, 33, 70):
            x, bias = torch.randn(rows, k), torch.randn(n)
            with monkeypatch.context() as chosen:
                chosen.setattr(native, "library", lambda: tiles)
                found = native_linear.linear(x, packed, bias)
            expected = x.double() @ wide.double().T + bias
            most = 2**-7 * (x.double().abs() @ wide.double().abs().T)
            assert ((found - expected).abs() <= most + 1e-4).all()
            error = (found - expected).norm() / expected.norm()
            assert error < 0.003


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_four_bits_with_hadamard_rotation(
    tiles: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Weights become the bytes of their twin, and sums are those of whole numbers."""
    for n, k, group in ((48, 64, 32), (288, 1024, 32), (16, 1280, 160), (64, 576, 96)):
        codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
        scale = torch.randn(n, k // group).half()
        scale[0], scale[1, 1:], scale[2] = 0.0, 0.0, -6e-8
        weight = Int4Weight(codes, scale, None, group, hadamard=True)
        packed, bytes_ = (
            quantized_linear.pack_rows(weight),
            reference_quantized.int4_as_bytes(weight),
        )
        for rows in (10, 33, 70):
            x, bias = torch.randn(rows, k).to(dtype), torch.randn(n).to(dtype)
            with monkeypatch.context() as chosen:
                chosen.setattr(native, "library", lambda: tiles)
                found = native_linear.linear(x, packed, bias)
            group_size = reference_quantized.ACTIVATION_GROUP
            rotated = reference_quantized.hadamard_rotate(x.float(), group_size)
            whole, x_scale = reference_quantized.round_int8(rotated)
            expected = (whole.double() @ bytes_.codes.double().T) * x_scale * bytes_.scale + bias
            close = 1e-5 if dtype == torch.float32 else 2**-7
            torch.testing.assert_close(found, expected.to(dtype), rtol=close, atol=1e-4)


@pytest.mark.parametrize(
    ("kv_dtype", "window"), [("bfloat16", None), ("bfloat16", 1), ("fp8", 70), ("int8", None)]
)
def test_attention(
    pairs: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, kv_dtype: str, window: int | None
) -> None:
    batch = [5, 70, 2], [90, 200, 2]
    for heads, block_size in (((6, 3, 32), 1), ((4, 1, 64), 32), ((5, 1, 96), 8)):
        query, k_cache, v_cache, *rest = attention_case(
            *batch, heads, window, True, torch.bfloat16, block_size
        )
        caches = [k_cache, v_cache]
        if kv_dtype == "fp8":
            caches = [cache.to(reference.FP8) for cache in caches]
        elif kv_dtype == "int8":
            caches = [reference.quantize_heads(cache) for cache in caches]
        exact = [cache.float() if kv_dtype == "bfloat16" else cache for cache in caches]
        expected = reference.attention(query.float(), *exact, *rest)
        monkeypatch.setattr(native, "library", lambda: pairs)
        found = native_attention.attention(query, *caches, *rest)
        monkeypatch.undo()
        assert (found.float() - expected).abs().max() <= 0.01 * expected.abs().max()


def test_attention_has_the_same_bits_in_any_batch_and_keeps_nan_to_its_request(
    pairs: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, lens = [70, 3, 9], [200, 3, 100]
    query, k_cache, v_cache, layout, *rest = attention_case(
        queries, lens, (4, 2, 64), None, True, torch.bfloat16
    )
    monkeypatch.setattr(native, "library", lambda: pairs)
    whole = native_attention.attention(query, k_cache, v_cache, layout, *rest)
    k_cache[layout.block_table[0]] = float("nan")
    found = native_attention.attention(query, k_cache, v_cache, layout, *rest)
    assert found[:70].isnan().all()
    assert torch.equal(found[70:], whole[70:])
    alone = type(layout).build([9], [100], layout.block_table[2:].numpy(), k_cache.shape[1])
    part = native_attention.attention(query[73:], k_cache, v_cache, alone, *rest)
    assert torch.equal(part, whole[73:])


def test_sizes_that_end_within_a_tile_are_left_to_others(
    tiles: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, x = torch.randint(-127, 128, (16, 96), dtype=torch.int8), torch.randn(3, 96)
    weight = quantized_linear.pack_rows(Int8Weight(codes, torch.rand(16)))
    wide, short = torch.randn(16, 80).bfloat16(), x[:, :80].contiguous()
    other = native_linear.pack_floats(wide)
    expected = native_linear.linear(x, weight, None), native_linear.linear(short, other, None)
    monkeypatch.setattr(native, "library", lambda: tiles)
    found = native_linear.linear(x, weight, None), native_linear.linear(short, other, None)
    if hasattr(tiles, "left_to_others"):
        assert tiles.left_to_others() == 2
    else:
        assert torch.equal(found[0], expected[0])
        most = 2**-8 * (short.abs() @ wide.float().abs().T)  # x is rounded to bfloat16 in one way
        assert ((found[1] - expected[1]).abs() <= most + 1e-4).all()
