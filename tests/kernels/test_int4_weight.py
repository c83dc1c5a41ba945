"""Four-bit words for GPUs are unpacked to the numbers that the canonical rows stand for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gpu_shapes import SHAPES
from ptx import bf16_pair, run_ptx, word_of
from torch import Tensor

from quire.kernels import reference
from quire.kernels.operands import Fp8Rows, Int4Weight, Int4Words, ResidualState
from quire.kernels.reference_quantized import dequantize_int4, quantize_int4
from quire.kernels.triton import triton_operations
from quire.kernels.triton.gemm.byte_config import byte_config, byte_memory
from quire.kernels.triton.gemm.int4_config import (
    block_rows,
    half_heads_config,
    int4_config,
    int4_configs,
    shared_memory,
)
from quire.kernels.triton.gemm.int4_rows_config import (
    int4_rows_config,
)
from quire.kernels.triton.launch.gemm_config import fitting_programs
from quire.kernels.triton.launch.workspace import NUM_PARTIALS
from quire.kernels.triton.ops import int4_linear, int4_weight, linear_table, words_linear
from quire.kernels.triton.ops.skinny_gemm import skinny_gemm_norm


@pytest.mark.parametrize(
    ("n", "k", "group", "zeros"),
    [(40, 512, 128, False), (33, 256, 32, True), (16, 640, 64, True), (24, 384, 384, False)],
)
def test_words_are_the_rows_again(n: int, k: int, group: int, zeros: bool) -> None:
    rows = quantize_int4(torch.randn(n, k), group, hadamard=False)
    if zeros:
        rows = replace(rows, zeros=torch.randint(0, 16, rows.scale.shape, dtype=torch.uint8))
    words, expected = int4_weight.pack_int4(rows), dequantize_int4(rows)
    out = torch.full((n, k), float("nan"))
    assert torch.equal(int4_weight.dequantize_int4(words, out), expected)
    some = torch.empty(9, k)
    assert torch.equal(int4_weight.dequantize_int4(words, some, 5), expected[5:14])


def test_words_have_pairs_of_columns_side_by_side() -> None:
    rows = quantize_int4(torch.randn(1, 256), 128, hadamard=False)
    codes = torch.stack([rows.codes & 15, rows.codes >> 4], dim=2).flatten().tolist()
    words = [int(word) % 2**32 for word in int4_weight.pack_int4(rows).words[0]]
    for column, code in enumerate(codes):
        block, pair, second = column // 32, column % 32 // 2, column % 2
        word = words[2 * pair + block // 4]
        assert word >> (4 * (block % 4) + 16 * second) & 15 == code


@pytest.mark.parametrize("zero", [None, 0, 5, 15])
def test_instructions_make_numbers_of_codes(zero: int | None) -> None:
    """What Hopper's GEMM does in registers, by an interpreter of its instructions."""
    kernel = pytest.importorskip("quire.kernels.triton.hopper.hopper_int4_numbers")
    rows = quantize_int4(torch.randn(1, 256), 128, hadamard=False)
    codes = torch.stack([rows.codes & 15, rows.codes >> 4], dim=2).flatten().float()
    words = [int(word) & 0xFFFFFFFF for word in int4_weight.pack_int4(rows).words[0]]
    scale = torch.tensor([0.0123, 0.0123]).bfloat16()
    first, second = (scale * 2.0**112).view(torch.int16).tolist()
    whole = first | second << 16

    def times(by: str) -> int:
        return run_ptx(kernel._times_asm(by), {"$1": whole})["$0"]

    expected = ((codes - (8 if zero is None else zero)) * scale[0].float()).bfloat16().double()
    for block in range(8):
        half = times(kernel._SIXTEENTH.value) if block % 2 else whole
        point = times(kernel._EIGHT.value) if zero is None else zero * 65537 << 4 * (block % 2)
        for pair in range(16):
            given = {"$1": words[2 * pair], "$2": words[2 * pair + 1], "$3": half, "$5": point}
            found = run_ptx(kernel._numbers_asm(block, zero is not None), given)["$0"]
            column = 32 * block + 2 * pair
            assert torch.equal(bf16_pair(found) * 2.0**21, expected[column : column + 2])


@pytest.mark.parametrize("zero", [None, 0, 5, 15])
def test_instructions_round_codes_to_fp8(zero: int | None) -> None:
    """What GEMMs of many rows do on Hopper."""
    kernel = pytest.importorskip("quire.kernels.triton.hopper.hopper_int4_to_fp8")
    rows = quantize_int4(torch.randn(1, 256), 128, hadamard=False)
    codes = torch.stack([rows.codes & 15, rows.codes >> 4], dim=2).flatten().half()
    words = [int(word) & 0xFFFFFFFF for word in int4_weight.pack_int4(rows).words[0]]
    scale = torch.tensor(0.0123).half()
    expected = ((codes - (8 if zero is None else zero)) * scale).to(torch.float8_e4m3fn)
    given = {f"${i}": int(scale.view(torch.int16)) * 65537 for i in range(5, 9)}
    given |= {f"${i}": (0x6400 | (8 if zero is None else zero)) * 65537 for i in range(9, 13)}
    for block in range(8):
        asm = kernel._unpack_asm(block)
        for pair in range(0, 16, 2):
            four = {f"${i + 1}": words[2 * pair + i] for i in range(4)}
            column = 32 * block + 2 * pair
            assert run_ptx(asm, given | four)["$0"] == word_of(expected[column : column + 4])


def test_an_order_of_inputs_is_followed() -> None:
    rows = quantize_int4(torch.randn(16, 384), 128, hadamard=False)
    order = torch.randperm(384)
    weight = linear_table.pack(replace(rows, permutation=order.int()))
    assert isinstance(weight, Int4Words)
    x = torch.randn(5, 384)
    expected = x[:, order] @ dequantize_int4(rows).T
    torch.testing.assert_close(int4_linear.unpacked(x, weight, None), expected)


def exact_in_fp8(n: int, k: int) -> Int4Weight:
    """A weight whose scales are powers of two: Triton's interpreter cuts FP8 off."""
    rows = quantize_int4(torch.randn(n, k), 64, hadamard=False)
    return replace(rows, scale=torch.exp2(torch.randint(-3, 3, rows.scale.shape)).half())


@pytest.mark.parametrize("zeros", [False, True])
def test_numbers_in_fp8_have_scales_by_rows(zeros: bool) -> None:
    rows = exact_in_fp8(33, 512)
    if zeros:
        rows = replace(rows, zeros=torch.randint(0, 16, rows.scale.shape, dtype=torch.uint8))
    words, numbers = int4_weight.pack_int4(rows), dequantize_int4(rows)
    codes = int4_weight.dequantize_int4(words, torch.empty(33, 512, dtype=torch.float8_e4m3fn))
    assert torch.equal(codes.float() * words.row_scale[:, None], numbers)
    assert float(codes.float().abs().max()) > 448 / 4  # the type's range is used


def test_many_rows_are_multiplied_in_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows of the weight at a time, in the order of its inputs."""

    def multiply(x: Fp8Rows, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        return reference.linear_fp8(x.dequantize(), codes, scale, bias)

    monkeypatch.setattr(int4_linear, "many_rows", multiply)
    rows, order = exact_in_fp8(80, 256), torch.randperm(256)
    weight = linear_table.pack(replace(rows, permutation=order.int()))
    assert isinstance(weight, Int4Words)
    x, bias = Fp8Rows(*reference.quantize_rows(torch.randn(7, 256))), torch.randn(80).bfloat16()
    expected = reference.linear(
        x.dequantize().float()[:, order], dequantize_int4(rows), bias.float()
    ).bfloat16()
    for piece in (2**25, 2**13):
        monkeypatch.setattr(int4_linear, "_PIECE", piece)
        torch.testing.assert_close(int4_linear.in_fp8(x, weight, bias), expected)


def test_a_norm_that_a_layer_in_16_bits_left_is_done_for_words() -> None:
    """A checkpoint may mix both."""
    x, dense = torch.randn(3, 64).half(), torch.randn(128, 64).half() / 8
    residual, norm = torch.randn(3, 128).half(), torch.rand(128).half()
    state = skinny_gemm_norm(x, dense, residual, norm, 1e-5)
    assert state.squares is not None
    rows = quantize_int4(torch.randn(32, 128), 64, hadamard=False)
    found = triton_operations.rms_norm_linear(state, linear_table.pack(rows), None)
    normalized = reference.rms_norm(state.residual.float(), norm.float(), 1e-5)
    expected = normalized @ dequantize_int4(rows).T
    torch.testing.assert_close(found.float(), expected, atol=0.02, rtol=0.01)


@pytest.mark.parametrize("rows", [1, 16, 64])
def test_hoppers_ring_does_the_norm_itself(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words_linear, "has_hopper_gpu", lambda _: True)
    weight = linear_table.pack(quantize_int4(torch.randn(64, 4096), 64, hadamard=False))
    x = torch.zeros(rows, 4096).bfloat16()
    state = ResidualState(x, x, torch.ones(4096).bfloat16(), 1e-5, torch.ones(1, rows))
    assert linear_table.linear_of(weight).normalizes(state, weight)


@pytest.mark.parametrize(
    ("rows", "n", "k", "zeros", "block_n"),
    [
        (24, 28672, 4096, False, 128),
        (48, 28672, 4096, False, 128),
        (48, 28672, 4096, True, 64),  # with zeros one has the room
        (64, 28672, 4096, False, 64),  # as measured
        (32, 37888, 3584, False, 64),  # neither kind runs at once
        (32, 16384, 3072, False, 64),  # both do
        (40, 24576, 4096, False, 128),
    ],
)
def test_large_tiles_where_these_alone_run_at_once(
    rows: int, n: int, k: int, zeros: bool, block_n: int
) -> None:
    found = int4_config(rows, n, k, 64, 132, zeros=zeros)
    assert found is not None
    assert found.block_n == block_n
    if block_n == 128:
        assert -(-n // 128) <= 2 * 132 < -(-n // 64)


@pytest.mark.parametrize(
    ("n", "k", "split"), [(6144, 4096, 2), (4608, 3584, 3), (5120, 3072, 3), (10240, 8192, 3)]
)
def test_heads_of_many_rows_have_programs_that_run_in_few_rounds(
    n: int, k: int, split: int
) -> None:
    """Of eight warps without a limit of registers one program fits on a multiprocessor."""
    found = int4_config(64, n, k, 64, 132, head_dim=128)
    assert found is not None
    assert (found.warps, found.registers, found.split) == (8, None, split)


@pytest.mark.parametrize(
    ("n", "k", "group", "zeros", "registers"),
    [
        (16384, 2048, 64, False, None),  # 3.9 programs for each multiprocessor
        (16384, 3072, 128, True, None),
        (19456, 2560, 128, False, 96),  # 4.6: room for five
        (28672, 4096, 128, False, 104),  # 6.8: for seven
        (28672, 4096, 64, False, 96),  # for seven, too
        (37888, 3584, 64, False, 80),  # 9.0: for nine
        (37888, 3584, 128, False, 96),  # two rounds of five
        (34816, 5120, 64, False, 96),  # no shared memory for nine
        (57344, 8192, 128, False, 104),  # two rounds of seven
    ],
)
def test_one_row_has_registers_for_full_rounds(
    n: int, k: int, group: int, zeros: bool, registers: int | None
) -> None:
    """As measured; what ptxas takes with a limit is in `registers_of_one_row`."""
    found = int4_config(1, n, k, group, 132, zeros=zeros)
    assert found is not None
    assert (found.block_n, found.registers) == (32, registers)


@pytest.mark.parametrize(
    ("rows", "n", "block_n", "registers"),
    [
        (2, 28672, 64, 128),  # four on a multiprocessor are one round
        (2, 37888, 32, 80),  # more than five on a multiprocessor
        (4, 34816, 32, None),
        (8, 28672, 64, 128),
        (8, 34816, 64, None),  # five are one round
        (8, 57344, 64, 128),  # two rounds either way
        (16, 37888, 64, 128),
    ],
)
def test_few_rows_have_registers_for_few_rounds(
    rows: int, n: int, block_n: int, registers: int | None
) -> None:
    """As measured."""
    found = int4_config(rows, n, 4096, 128, 132)
    assert found is not None
    assert (found.block_n, found.registers) == (block_n, registers)


@pytest.mark.parametrize("rows", [8, 9, 12, 16, 17])
@pytest.mark.parametrize("kind", ["int4", "bytes"])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("model", ["8b", "1b", "llama-3.2-3b", "qwen2.5-7b", "qwen2.5-1.5b"])
def test_few_rows_fit_one_round(model: str, group: int, kind: str, rows: int) -> None:
    for linear, (n, k) in SHAPES[model].linear_shapes().items():
        if kind == "bytes":
            found = byte_config(rows, n, k, group, 132, 1)
            assert found is not None
            memory = byte_memory(rows, k, group, 1, found)
        else:
            found = int4_config(rows, n, k, group, 132)
            assert found is not None
            memory = shared_memory(rows, k, group, zeros=False, config=found)
        programs = -(-n // found.block_n) * found.split
        most = -(-programs // 132)
        if found.parts > 1 or most > 3 or rows not in range(9, 17) or n <= k < 2 * n:
            assert found.stages <= 3
        elif programs >= 66:
            assert 1 <= fitting_programs(memory, spare=2048) <= most, linear


def test_integers_in_groups_of_16_have_no_words() -> None:
    weight = quantize_int4(torch.randn(8, 256), 16, hadamard=False)
    with pytest.raises(AssertionError):
        int4_weight.pack_int4(weight)


@pytest.mark.parametrize("rows", [12, 16, 24, 32])
@pytest.mark.parametrize("kind", ["int4", "bytes"])
@pytest.mark.parametrize(
    ("n", "k"), [(8192, 28672), (5120, 27648), (5120, 13824), (8192, 8192), (8192, 29568)]
)
def test_all_programs_of_a_long_layer_run_at_once(n: int, k: int, kind: str, rows: int) -> None:
    """A second round, of some multiprocessors alone, took up to half as long again."""
    if kind == "bytes":
        found = byte_config(rows, n, k, 64, 132, 1)
        assert found is not None
        memory = byte_memory(rows, k, 64, 1, found)
    else:
        found = int4_config(rows, n, k, 64, 132)
        assert found is not None
        memory = shared_memory(rows, k, 64, zeros=False, config=found)
    programs = -(-n // found.block_n) * found.split
    assert 132 < programs <= 132 * fitting_programs(memory, spare=2048)


SIZES = [(4096, 4096), (28672, 4096), (1536, 896), (64, 256), (8192, 28672), (57344, 8192),
         (27648, 5120), (5120, 27648)]  # fmt: skip


@pytest.mark.parametrize("rows", [65, 129, 256, 300, 1024])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_many_rows_occupy_a_gpu_or_take_few_steps(rows: int, n: int, k: int) -> None:
    found = int4_rows_config(rows, n, k, 132)
    programs, most = found.num_programs(rows, n), max(1, n * rows // (64 * 128))
    assert programs >= min(most, 64) or found.steps(k, 256) <= 8


@pytest.mark.parametrize("n", [28672, 57344])
def test_tiles_have_few_rows_that_are_missing(n: int) -> None:
    """From 257 rows on, half of a second tile of 256 would be computed and not stored."""
    for rows in (257, 300, 384):
        assert -rows % int4_rows_config(rows, n, 4096, 132).block_m < 128


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 33, 64, 100, 257, 512])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_a_config_fits_a_multiprocessor_and_the_workspace(rows: int, n: int, k: int) -> None:
    found = [(config, 64, False) for config in int4_configs(rows, n, k, 64, 132)]
    for group in (16, 32, 64, 128):
        for zeros in (False, True):
            for head_dim in (0, 64, 128):
                config = int4_config(rows, n, k, group, 132, zeros=zeros, head_dim=head_dim)
                assert config is not None or rows > 64
                assert config is None or not head_dim or config.block_n % head_dim == 0
                halves = half_heads_config(rows, n, k, group, 132, head_dim, zeros=zeros)
                found += [(each, group, zeros) for each in (config, halves) if each is not None]
    for config, group, zeros in found:
        assert shared_memory(rows, k, group, zeros=zeros, config=config) < 227 * 1024
        assert config.parts * config.block_n >= 64
        assert min(rows, 8) * config.parts >= 2  # see hopper_int4_ring: blocks side by side
        tiles = -(-n // config.block_n) * -(-rows // block_rows(rows))
        sums = tiles * config.split * config.block_n * block_rows(rows)
        assert config.split == 1 or sums <= NUM_PARTIALS
