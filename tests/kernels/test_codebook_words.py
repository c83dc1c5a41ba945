"""NF4 and MXFP4 as words for GPUs: the numbers that they are, by both ways of unpacking them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from device import DEVICE, ON_EITHER
from ptx import pair_of, run_ptx, word_of
from test_triton_kernels import check_fused, moved
from torch import Tensor
from twins import error_of, normal

from quire.kernels.dispatch import kernels_for
from quire.kernels.formats.codebook_format import CodebookFormat
from quire.kernels.formats.fp4 import MXFP4, NVFP4
from quire.kernels.formats.nf4 import NF4
from quire.kernels.operands import CodebookWeight, Int4Words
from quire.kernels.reference_codebook import powers_of_two
from quire.kernels.reference_quantized import quantize_int4
from quire.kernels.triton.gemm.int4_config import (
    Int4Config,
    block_rows,
    programs_that_fit,
    shared_memory,
)
from quire.kernels.triton.gemm.table_config import TABLE, table_config
from quire.kernels.triton.launch.gemm_config import SHARED_MEMORY
from quire.kernels.triton.ops.int4_linear import INT4, W4A16_ROWS, ring_codebook
from quire.kernels.triton.ops.int4_weight import byte_tables, dequantize_int4, pack_int4
from quire.kernels.triton.ops.linear_table import pack, quantize
from quire.kernels.triton.ops.skinny_gemm import (
    interleave_gate_up,
)
from quire.kernels.triton.step.elementwise import quantize_rows

pytestmark = [*ON_EITHER, pytest.mark.usefixtures("one_thread")]
FORMATS = pytest.mark.parametrize("found", [NF4, MXFP4, NVFP4], ids=lambda each: each.name)
LOOKED_UP = pytest.mark.parametrize("found", [NF4, MXFP4], ids=lambda each: each.name)


def rows_of(found: CodebookFormat, n: int, k: int) -> CodebookWeight:
    """A random weight in canonical rows, with all codes and scales of some sizes."""
    plain = normal(n, k, dtype=torch.float32, seed=n) * torch.logspace(-3, 1, n)[:, None]
    rows: CodebookWeight = moved(found.round_rows(plain))
    if rows.row_scale is not None:  # as of rows that are small beside the whole weight
        by = torch.where(torch.arange(n, device=rows.codes.device) % 2 == 0, 1.0, 2.0**-9)
        small = (rows.scale.float() * by[:, None]).to(rows.scale.dtype)
        rows = replace(rows, scale=small, row_scale=rows.row_scale / by)
    return rows


def test_small_rows_of_nvfp4_have_all_their_digits_in_fp8() -> None:
    rows = rows_of(NVFP4, 16, 256)
    words, numbers = packed(rows), NVFP4.dequantize(rows)
    out = moved(torch.empty(16, 256, dtype=torch.float8_e4m3fn))
    found = dequantize_int4(words, out).float() * words.row_scale[:, None]
    assert ((found - numbers).norm(dim=1) < 0.03 * numbers.norm(dim=1)).all()


def test_scales_of_rows_need_not_be_contiguous() -> None:
    rows = rows_of(NVFP4, 16, 256)
    own = torch.stack([rows.row_scale, rows.row_scale], dim=1)[:, 0]  # type: ignore[list-item]
    out = moved(torch.empty(16, 256))
    found = dequantize_int4(packed(replace(rows, row_scale=own)), out)
    assert torch.equal(found, NVFP4.dequantize(rows))


def packed(weight: CodebookWeight) -> Int4Words:
    """The weight in words."""
    found = pack(weight)
    assert isinstance(found, Int4Words)
    return found


@FORMATS
def test_words_are_the_rows_again(found: CodebookFormat) -> None:
    rows = rows_of(found, 21, 384)
    words, expected = packed(rows), found.dequantize(rows)
    out = moved(torch.full((21, 384), float("nan")))
    assert torch.equal(dequantize_int4(words, out), expected)
    assert torch.equal(dequantize_int4(words, out[:9], 5), expected[5:14])
    again = quantize(expected, found.spec)
    assert isinstance(again, Int4Words)
    assert again.codebook == found.spec.codes
    torch.testing.assert_close(INT4.numbers(again, torch.float32), expected, rtol=1e-3, atol=0)


def test_every_power_of_two_is_a_scale() -> None:
    codes = torch.full((8, 32), 0x22, dtype=torch.uint8)
    exponents = torch.tensor([1, 2, 90, 126, 127, 128, 250, 254], dtype=torch.uint8)
    rows = moved(CodebookWeight(codes, exponents[:, None].repeat(1, 2), "mxfp4", 32))
    assert torch.equal(INT4.numbers(packed(rows), torch.float32), MXFP4.dequantize(rows))


@FORMATS
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_linear_multiplies_by_the_numbers(found: CodebookFormat, batch_invariant: bool) -> None:
    """Activations are not rounded."""
    rows = rows_of(found, 40, 192)
    x, bias = moved(normal(3, 192, dtype=torch.float32)), moved(normal(40, dtype=torch.float32))
    kernels = kernels_for("cuda", batch_invariant=batch_invariant)
    expected = F.linear(x, found.dequantize(rows), bias)
    out = kernels.linear(x, packed(rows), bias)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-3)


def pairs_of_codes(found: CodebookFormat) -> tuple[Tensor, list[int]]:
    """Each pair of adjacent codes, 512 in all, and the words [64] of them."""
    codes = torch.arange(256, dtype=torch.uint8)[None]
    scale = torch.ones(1, 512 // found.spec.group).half()
    words = pack_int4(quantize_int4(torch.randn(1, 512), 128, hadamard=False)).words
    stored = packed(CodebookWeight(codes, scale, found.spec.codes, found.spec.group)).words
    assert stored.shape == words.shape
    ids = torch.stack([codes & 15, codes >> 4], dim=2).flatten().int()
    return ids, [word & 0xFFFFFFFF for word in stored[0].tolist()]


LANE = 12  # where a lane's numbers begin in each row of the table


def by_arithmetic(
    kernel: ModuleType, words: dict[str, int], scale: int, block: int
) -> Iterator[int]:
    """MXFP4's codes of a block of 32 columns and of the next one, two each."""
    for half in range(2):
        given = {"$1": words["$2"], "$2": words["$3"], "$3": scale}
        yield run_ptx(kernel.e2m1_asm(2 * block + half), given)["$0"]


def by_look_up(kernel: ModuleType, words: dict[str, int], scale: int, block: int) -> Iterator[int]:
    """The same of NF4."""
    asm = kernel._scaled_asm(block, byte_tables("nf4", torch.bfloat16))
    zeros = {"$4": 0, "$6": 0}
    yield run_ptx(asm, words | zeros | {"$4": scale})["$0"]
    yield run_ptx(asm, words | zeros | {"$6": scale})["$1"]


@LOOKED_UP
def test_instructions_make_scaled_numbers(found: CodebookFormat) -> None:
    """What Hopper's GEMM does in registers, by an interpreter of its instructions."""
    kernel = pytest.importorskip("quire.kernels.triton.hopper.hopper_codebooks")
    make, lift = (by_look_up, 1.0) if found is NF4 else (by_arithmetic, 2.0**63)
    scale = torch.tensor([0.0123 if found is NF4 else 0.0625] * 2).bfloat16()
    low, high = (scale * lift).view(torch.int16).tolist()
    expected = (torch.tensor(found.numbers).bfloat16() * scale[0]).double()
    ids, words = pairs_of_codes(found)
    for step, pair, block in itertools.product(range(2), range(16), range(4)):
        first, second = words[32 * step + 2 * pair :][:2]
        made = make(kernel, {"$2": first, "$3": second}, low | high << 16, block)
        for half, word in enumerate(made):
            column = 256 * step + 64 * block + 32 * half + 2 * pair
            numbers = pair_of(word, torch.bfloat16) * lift
            assert torch.equal(numbers, expected[ids[column : column + 2]])


@pytest.mark.parametrize("exponent", [0, 1, 57, 58, 120, 190, 191])
def test_bits_give_the_numbers_of_all_scales(exponent: int) -> None:
    """To 2^-70; larger scales are left to tables."""
    kernel = pytest.importorskip("quire.kernels.triton.hopper.hopper_codebooks")
    scale = powers_of_two(torch.tensor([exponent], dtype=torch.uint8))
    lifted = int((scale * 2.0**63).bfloat16().view(torch.int16)) * 0x10001
    for code, number in enumerate(MXFP4.numbers):
        given = {"$1": code * 0x10001, "$2": 0, "$3": lifted}
        made = pair_of(run_ptx(kernel.e2m1_asm(0), given)["$0"], torch.bfloat16) * 2.0**63
        assert (made - number * scale.double()).abs().max() <= 2.0**-70


@pytest.mark.parametrize(("exponent", "by_bits"), [(191, True), (192, False), (255, True)])
def test_large_scales_are_for_tables(exponent: int, by_bits: bool) -> None:
    exponents = torch.tensor([[120, exponent]], dtype=torch.uint8).repeat(8, 1)
    codes = torch.zeros(8, 32, dtype=torch.uint8)
    words = packed(moved(CodebookWeight(codes, exponents, "mxfp4", 32)))
    assert words.by_bits == by_bits
    assert (ring_codebook(words) == "e2m1") == by_bits


def test_a_table_has_the_numbers_of_both_codes_of_a_byte() -> None:
    kernel = pytest.importorskip("quire.kernels.triton.hopper.hopper_codebooks")
    codebook, table = byte_tables("nf4", torch.bfloat16), {}
    for byte in range(256):
        asm = kernel._store_asm(codebook).replace("%laneid", "lane")
        after = run_ptx(asm, {"$1": byte, "$2": 0, "lane": LANE // 4}, stored := {})
        assert set(stored.values()) == {after["t"]}
        assert sorted(stored) == list(range(128 * byte, 128 * byte + 128, 16))
        table[128 * byte + LANE] = after["t"]
    expected = torch.tensor(NF4.numbers).bfloat16().double()
    ids, words = pairs_of_codes(NF4)
    for step, pair, block in itertools.product(range(2), range(16), range(4)):
        first, second = words[32 * step + 2 * pair :][:2]
        after = run_ptx(kernel.pairs_asm(block), {"$2": first, "$3": second, "$4": LANE}, table)
        for half in range(2):
            column = 256 * step + 64 * block + 32 * half + 2 * pair
            numbers = pair_of(after[f"${half}"], torch.bfloat16)
            assert torch.equal(numbers, expected[ids[column : column + 2]])


@LOOKED_UP
def test_instructions_look_up_scale_and_round_to_fp8(found: CodebookFormat) -> None:
    """What GEMMs of many rows do on Hopper."""
    kernel = pytest.importorskip("quire.kernels.triton.hopper.hopper_int4_to_fp8")
    codebook, (ids, words) = byte_tables(found.spec.codes, torch.float16), pairs_of_codes(found)
    signed = kernel._has_signs(codebook)
    scales = torch.tensor([0.75, 3.3 if signed else 0.75]).half()  # of both blocks' groups
    pairs = [65537 * bits for bits in scales.view(torch.int16).tolist()]
    halves = [(pairs[0], 0), (pairs[1], 0) if signed else (pairs[0], 8)]
    tables = [run_ptx(kernel._table_asm(codebook, first), {"$2": pair}) for pair, first in halves]
    given = {f"${6 + 8 * i + 4 * j}": tables[i][f"${j}"] for i in range(2) for j in range(2)}
    asm = kernel._signed_asm if signed else kernel._look_up_asm
    for step, pair, block in itertools.product(range(2), range(0, 16, 2), range(4)):
        four = {f"${i + 2}": words[32 * step + 2 * pair + i] for i in range(4)}
        after = run_ptx(asm(block), given | four)
        for half in range(2):
            column = 256 * step + 64 * block + 32 * half + 2 * pair
            numbers = torch.tensor(found.numbers).half()[ids[column : column + 4]] * scales[half]
            assert after[f"${half}"] == word_of(numbers.to(torch.float8_e4m3fn))


def shared_memory_of(rows: int, k: int, config: Int4Config) -> int:
    """Bytes of a program with its table."""
    return shared_memory(rows, k, 64, zeros=False, config=config) + TABLE


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 16, 17, 32])
@pytest.mark.parametrize("head_dim", [0, 64, 128])
@pytest.mark.parametrize(
    ("n", "k"), [(64, 256), (1536, 896), (4096, 14336), (57344, 8192), (8192, 28672)]
)
def test_a_table_fits_beside_a_ring(n: int, k: int, head_dim: int, rows: int) -> None:
    """CUDA launches a kernel with more than 48 KiB in all only if more is asked for beside it."""
    found = table_config(rows, n, k, 64, 132, head_dim)
    assert found is not None
    stage = found.parts * (128 * found.block_n + 512 * block_rows(rows))
    assert found.stages * stage >= 48 * 1024
    assert shared_memory_of(rows, k, found) <= SHARED_MEMORY
    assert head_dim < 128 or found.block_n % head_dim == 0
    assert programs_that_fit(found, partial(shared_memory_of, rows, k)) >= 8 // found.warps


HOPPER_ONLY = pytest.mark.gpu("Hopper")
ROWS = 1, 2, 3, 8, 16, 17, 32, 33, 64, 65, 128, 129, 300, 2048


@HOPPER_ONLY
@FORMATS
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("n", "k"), [(768, 1280), (151, 2752), (4096, 4096)])
def test_any_number_of_rows_on_a_hopper(found: CodebookFormat, rows: int, n: int, k: int) -> None:
    weight = found.round_rows(torch.randn(n, k, device=DEVICE))
    x = torch.randn(rows, k, device=DEVICE, dtype=torch.bfloat16)
    bias = torch.randn(n, device=DEVICE, dtype=torch.bfloat16)
    expected = x.double() @ found.dequantize(weight).double().T + bias.double()
    error = error_of(kernels_for("cuda").linear(x, packed(weight), bias), expected)
    assert error < (5e-3 if rows <= W4A16_ROWS else 5e-2)  # more rows are in FP8


@HOPPER_ONLY
@LOOKED_UP
@pytest.mark.parametrize("rows", [100, 129, 257])
def test_every_config_of_many_rows_on_a_hopper(found: CodebookFormat, rows: int) -> None:
    """Both operands are rounded to FP8."""
    from quire.kernels.triton.gemm.int4_rows_config import int4_rows_configs
    from quire.kernels.triton.hopper.hopper_int4_rows import multiply_rows_int4

    weight = found.round_rows(torch.randn(1008, 2048, device=DEVICE))
    words, x = packed(weight), torch.randn(rows, 2048, device=DEVICE, dtype=torch.bfloat16)
    scale, given = words.row_scale[:, None], quantize_rows(x)
    numbers = (found.dequantize(weight) / scale).half().to(torch.float8_e4m3fn).double() * scale
    expected = given.dequantize().double() @ numbers.T
    tables = byte_tables(found.spec.codes, torch.float16)
    for config in int4_rows_configs(rows, 1008, 2048):
        out = multiply_rows_int4(given, words, None, config, tables)
        assert error_of(out, expected) < 4e-3, config


@HOPPER_ONLY
@FORMATS
@pytest.mark.parametrize("rows", [1, 3, 16, 24, 64])
def test_what_is_fused_on_a_hopper(found: CodebookFormat, rows: int) -> None:
    weight = found.round_rows(torch.randn(1024, 1024, device=DEVICE))
    gate_up = packed(weight.map_rows(interleave_gate_up))
    check_fused(found.dequantize(weight).double(), packed(weight), gate_up, rows)
