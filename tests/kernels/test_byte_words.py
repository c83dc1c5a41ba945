"""Weights of a byte each with scales of groups, as words for GPUs: the numbers that they are."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from device import DEVICE, HOPPER, ON_EITHER, ON_GPU
from ptx import bf16_pair, run_ptx
from test_triton_kernels import check_fused, moved
from torch import Tensor
from twins import error_of, normal

from quire.kernels import reference
from quire.kernels.byte_operands import (
    BlockRows,
    ByteWeight,
    ByteWords,
    Fp8Blocks,
    Int8Blocks,
)
from quire.kernels.dispatch import kernels_for
from quire.kernels.formats.table import format_of
from quire.kernels.formats.weight_format import WeightFormat
from quire.kernels.operands import Fp8Rows, Fp8Weight, QuantSpec, RoundedRows
from quire.kernels.triton.gemm.block_config import block_config, block_configs
from quire.kernels.triton.gemm.byte_config import byte_config, byte_configs, byte_memory
from quire.kernels.triton.gemm.byte_rows_config import (
    ByteRowsConfig,
    byte_rows_config,
    byte_rows_configs,
)
from quire.kernels.triton.gemm.int4_config import WIDE
from quire.kernels.triton.hopper.hopper_block_gemm import multiply_blocks
from quire.kernels.triton.hopper.hopper_byte_rows import multiply_byte_rows
from quire.kernels.triton.launch.workspace import NUM_COUNTERS, NUM_PARTIALS
from quire.kernels.triton.ops import byte_linear, byte_words
from quire.kernels.triton.ops.byte_linear import BYTES, multiplies_blocks
from quire.kernels.triton.ops.byte_words import dequantize_words
from quire.kernels.triton.ops.linear_table import pack
from quire.kernels.triton.ops.skinny_gemm import (
    interleave_gate_up,
    skinny_gemm,
)
from quire.kernels.triton.step.block_rounding import quantize_blocks, silu_and_mul_blocks
from quire.kernels.triton.step.elementwise import quantize_rows, rms_norm_residual_rounded

pytestmark = [*ON_EITHER, pytest.mark.usefixtures("one_thread")]
SPECS = (
    QuantSpec("int8_group", 128),
    QuantSpec("int8_group", 32, zeros=True),
    QuantSpec("int8_group", 64, permuted=True),
    QuantSpec("int8_group", 384),
    QuantSpec("fp8_block", 128),
)
EACH = pytest.mark.parametrize("spec", SPECS, ids=str)
ALONE, BLOCKS_ALONE = QuantSpec("fp8_a16"), QuantSpec("fp8_block_a16", 128)  # inputs are exact


def rows_of(found: WeightFormat, n: int, k: int) -> ByteWeight:
    """A random weight in canonical rows, with scales of many sizes."""
    sizes = torch.logspace(-6, 1, n)[:, None] * torch.exp2(normal(n, k // 32, dtype=torch.float32))
    plain = normal(n, k, dtype=torch.float32, seed=n) * sizes.repeat_interleave(32, 1)
    rows = found.round_rows(plain)
    assert isinstance(rows, ByteWeight)
    if rows.permutation is not None:
        rows = replace(rows, permutation=torch.randperm(k, dtype=torch.int32))
    return replace(rows, **{name: moved(own) for name, own in rows.tensors.items()})


def packed(weight: ByteWeight | Fp8Weight) -> ByteWords:
    """The weight in words."""
    found = pack(weight)
    assert isinstance(found, ByteWords)
    return found


def all_codes(kind: str) -> Tensor:
    """Each code that is a number, uint8 [1, 256]."""
    codes = torch.arange(256, dtype=torch.uint8)
    return codes[None] if kind == "int8_group" else torch.where(codes & 127 == 127, 0, codes)[None]


@EACH
def test_words_are_the_rows_again(spec: QuantSpec) -> None:
    found = format_of(spec)
    rows = rows_of(found, 21, 384)
    words, expected = packed(rows), found.dequantize(rows)
    assert words.row_scale.isfinite().all()
    out = moved(torch.full((21, 384), float("nan")))
    torch.testing.assert_close(dequantize_words(words, out), expected, rtol=5e-4, atol=0)
    assert torch.equal(dequantize_words(words, moved(torch.empty(9, 384)), 5), out[5:14])


@EACH
def test_groups_of_zeros_leave_the_rows_other_scales_their_digits(spec: QuantSpec) -> None:
    found = format_of(spec)
    plain = normal(4, 768, dtype=torch.float32, seed=1) * 5e-4
    plain[1, :384] = 0.0
    plain[2] = 0.0
    rows = found.round_rows(moved(plain))
    assert isinstance(rows, ByteWeight)
    groups = found.dequantize(rows).unflatten(1, (-1, spec.group))
    # as other libraries' checkpoints have it
    rows = replace(rows, scale=torch.where((groups == 0).all(dim=2), 1.0, rows.scale))
    out = dequantize_words(packed(rows), moved(torch.full((4, 768), float("nan"))))
    torch.testing.assert_close(out, found.dequantize(rows), rtol=5e-4, atol=0)


@pytest.mark.parametrize(
    "spec",
    [*SPECS[:3], SPECS[4], QuantSpec("int8_group", 4096), QuantSpec("int8_group", 64, zeros=True)],
    ids=str,
)
def test_words_take_the_bytes_that_their_format_counts(spec: QuantSpec) -> None:
    found = format_of(spec)
    words = packed(rows_of(found, 3, 4096))
    assert sum(own.nbytes for own in words.tensors.values()) == found.num_bytes(3, 4096)


@pytest.mark.parametrize("kind", ["int8_group", "fp8_block"])
def test_instructions_dequantize_every_code(kind: str) -> None:
    """What Hopper's GEMM does in registers, by an interpreter of its instructions."""
    codes_of = pytest.importorskip("quire.kernels.triton.hopper.hopper_byte_codes")
    found, zero, scale = format_of(QuantSpec(kind, 128)), 3.0, 0.75
    codes = all_codes(kind).view(torch.int8 if kind == "int8_group" else torch.float8_e4m3fn)
    weight = ByteWeight(codes, torch.ones(1, 2), None, kind, 128)
    numbers, words = found.dequantize(weight)[0].double(), packed(weight)
    by = scale * (2.0**120 if kind == "fp8_block" else 1.0)
    bits = {value: torch.tensor([value]).bfloat16().view(torch.int16).item() * 0x10001
            for value in (zero, by)}  # fmt: skip
    for chunk, pair, word in torch.cartesian_prod(*map(torch.arange, (2, 16, 2))).tolist():
        stored = words.words[0, 32 * chunk + 2 * pair :][:2].tolist()
        first = {"$2": stored[0] & 0xFFFFFFFF, "$3": stored[1] & 0xFFFFFFFF}
        column = 128 * chunk + 64 * word + 2 * pair
        for has_zeros, is_scaled in ((False, False), (False, True), (True, True)):
            registers = first | ({"$4": bits[zero], "$5": bits[zero]} if has_zeros else {})
            last = 4 + 2 * has_zeros
            registers |= {f"${last}": bits[by], f"${last + 1}": bits[by]}
            if has_zeros and kind == "fp8_block":
                continue
            asm = codes_of._dequantize_asm(words.codes, word, has_zeros, is_scaled)
            after = run_ptx(asm, registers)
            for half in range(2):
                expected = numbers[column + 32 * half :][:2] - zero * has_zeros
                expected = expected * (scale if is_scaled else 1.0)
                assert torch.equal(bf16_pair(after[f"${half}"]), expected.bfloat16().double())


@EACH
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_linear_multiplies_by_the_numbers(
    spec: QuantSpec, batch_invariant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activations are not rounded; some rows of the weight become numbers at a time."""
    found = format_of(spec)
    monkeypatch.setattr(byte_linear, "_PIECE", 2**14)
    rows = rows_of(found, 200, 384)
    x, bias = moved(normal(3, 384, dtype=torch.float32)), moved(normal(200, dtype=torch.float32))
    kernels = kernels_for("cuda", batch_invariant=batch_invariant)
    limit = 5e-4 * x.norm() * found.dequantize(rows).norm(dim=1)  # scales are in float16
    for given in (bias, None):
        out, expected = kernels.linear(x, packed(rows), given), found.linear(x, rows, given)
        assert bool(((out - expected).abs() <= limit + 1e-6).all())


def test_fp8_for_activations_in_16_bits_is_in_words_on_a_hopper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of as many bytes as in the memory plan, multiplied by numbers however many rows there are."""
    monkeypatch.setattr(byte_words, "has_hopper_gpu", lambda _: True)
    monkeypatch.setattr(byte_linear, "_PIECE", 2**14)
    for k in (384, 512):
        found = format_of(ALONE)
        rows = found.round_rows(moved(normal(200, k, dtype=torch.float32)))
        assert isinstance(rows, Fp8Weight)
        words, x = packed(rows), moved(normal(70, k, dtype=torch.float32))
        assert sum(own.nbytes for own in words.tensors.values()) == found.num_bytes(200, k)
        out, expected = kernels_for("cuda").linear(x, words, None), found.linear(x, rows, None)
        torch.testing.assert_close(out, expected, atol=2e-3, rtol=1e-4)
        assert BYTES.rows_of(words, 5000) is None
    assert not format_of(ALONE).fits(64, 77)


def test_blocks_of_fp8_are_multiplied_as_their_checkpoint_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(byte_linear, "has_hopper_gpu", lambda _: True)
    for spec, rounds in ((SPECS[4], True), (BLOCKS_ALONE, False)):
        words = packed(rows_of(format_of(spec), 64, 384))
        assert [multiplies_blocks(rows, words) for rows in (64, 65, 5000)] == [
            False,
            rounds,
            rounds,
        ]


@pytest.mark.skipif(HOPPER, reason="is in words there")
@pytest.mark.parametrize("rows", [3, 70])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_fp8_leaves_activations_in_16_bits_on_other_gpus(rows: int, batch_invariant: bool) -> None:
    """Where they multiply FP8 by FP8, too, as Triton's interpreter does."""
    found, kernels = format_of(ALONE), kernels_for("cuda", batch_invariant=batch_invariant)
    weight = pack(found.round_rows(moved(normal(64, 96, dtype=torch.float32) / 10)))
    assert isinstance(weight, Fp8Weight)
    x, residual = (moved(normal(rows, n, dtype=torch.float16, seed=n)) for n in (96, 64))
    expected = found.linear(x.float(), weight, None)
    torch.testing.assert_close(
        kernels.linear(x, weight, None).float(), expected, atol=4e-3, rtol=4e-3
    )
    ones, summed = torch.ones_like(residual[0]), expected + residual.float()
    state = kernels.linear_add_norm(x, weight, None, residual, ones, 1e-5)
    assert not isinstance(state.rows, RoundedRows)
    torch.testing.assert_close(state.residual.float(), summed, atol=6e-3, rtol=6e-3)
    if ON_GPU:  # the interpreter has no products in bfloat16
        given = quantize_rows(x.bfloat16(), Fp8Rows)
        out = kernels.linear(given, weight, None)
        exact = found.linear(given.dequantize().float(), weight, None)
        torch.testing.assert_close(out.float(), exact, atol=3e-2, rtol=3e-2)


KINDS = pytest.mark.parametrize("kind", [Fp8Blocks, Int8Blocks])


def of_many_sizes(rows: int, k: int) -> Tensor:
    """Rows that eight bits have exactly: whole numbers, in bfloat16, of a size for each block."""
    x = torch.randint(-8, 9, (rows, k), generator=torch.Generator().manual_seed(k)).float()
    x[:, ::128] = 8.0
    return x * torch.exp2(torch.arange(k / 128)).repeat_interleave(128)


@KINDS
def test_rows_are_rounded_in_blocks(kind: type[BlockRows]) -> None:
    """Alone, after SiLU and after a norm; dequantized they are what they were, but for rounding."""
    dtype = torch.bfloat16 if ON_GPU else torch.float32  # the interpreter has no other products
    x = moved(of_many_sizes(3, 1280).to(dtype))
    pairs = torch.stack([torch.full_like(x, 40.0), x / 40.0], dim=2).flatten(1)  # silu(40) is 40
    ones, residual = torch.ones_like(x[0]), moved(normal(3, 1280, dtype=dtype))
    summed = residual.float() + x.float()
    wanted = reference.rms_norm(summed.to(dtype), ones, 1e-5)
    normalized = rms_norm_residual_rounded(x, residual, ones, 1e-5, kind)[0]
    given = (
        (quantize_blocks(x, kind), x),
        (silu_and_mul_blocks(pairs, kind), x),
        (normalized, wanted),
    )
    for rows, expected in given:
        assert type(rows) is kind
        assert rows.scale.shape == (10, 3)
        largest = expected.float().unflatten(1, (10, 128)).abs().amax(2, keepdim=True)
        # Triton's interpreter cuts bits off of bfloat16 and FP8 in place of rounding
        share = 0.016 if kind is Int8Blocks else 0.07 if ON_GPU else 0.25
        error = (rows.dequantize().float() - expected.float()).unflatten(1, (10, 128)).abs()
        assert bool((error <= share * largest).all())


@pytest.mark.filterwarnings("ignore:invalid value")  # of NumPy, in Triton's interpreter
def test_what_is_no_number_stays_none_in_its_block() -> None:
    x = of_many_sizes(2, 256).bfloat16()
    x[0, 3], x[1, 200] = float("nan"), 0.0
    x[1, :128] = 0.0
    rows = quantize_blocks(moved(x), Int8Blocks)
    wide = rows.dequantize().cpu()
    assert bool(wide[0, :128].isnan().all())
    assert bool(wide[0, 128:].isfinite().all())
    assert not wide[1, :128].any()


def test_rows_are_rounded_in_the_order_of_words() -> None:
    """With scales of 128 columns that are powers of two: Triton's interpreter cuts FP8 off."""
    x = of_many_sizes(3, 1280)
    found = quantize_blocks(moved(x))
    assert found.scale.shape == (10, 3)
    wide = found.codes[:3].float().cpu() * found.scale.float().cpu().t().repeat_interleave(128, 1)
    order = torch.arange(1280, dtype=torch.int16).view(torch.uint8)[::2]
    weight = ByteWeight(
        order.view(1, 1280).view(torch.int8), torch.ones(1, 10), None, "int8_group", 128
    )
    order_of = pack(weight).words.view(torch.uint8)[0, :1280].long()
    for chunk in range(10):
        own = order_of[128 * chunk :][:128] - 128 * (chunk % 2)
        assert torch.equal(wide[:, 128 * chunk :][:, :128], x[:, 128 * chunk + own])


BLOCKS = [(4096, 4096), (28672, 4096), (4096, 14336), (57344, 8192), (64, 128), (1536, 384)]


@pytest.mark.parametrize(("n", "k"), BLOCKS)
def test_configs_of_blocks_fit(n: int, k: int) -> None:
    for rows in (65, 128, 300, 2048):
        assert block_config(rows, n, k, 132) is not None
        assert byte_rows_config(rows, n, k, 132).shared_memory <= 226 * 1024
        for each in (*block_configs(rows, n, k), *byte_rows_configs(rows, n, k)):
            if isinstance(each, ByteRowsConfig):
                assert each.shared_memory <= 226 * 1024
            else:
                assert each.shared_memory(k) <= 226 * 1024
            tiles = -(-n // each.block_n) * -(-rows // each.block_m)
            sums = tiles * each.split * each.block_n * each.block_m
            assert each.split == 1 or (2 * tiles <= NUM_COUNTERS and sums <= NUM_PARTIALS)


def test_rows_are_rounded_in_blocks_where_a_config_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(byte_linear, "has_hopper_gpu", lambda _: True)
    rows, words, scale = 2**13, torch.empty(2**17, 0), torch.empty(0)
    for inputs, fits in ((2**16, True), (2**17, False)):
        weight = ByteWords(words, scale, None, scale, 128, inputs, "e4m3")
        assert multiplies_blocks(rows, weight) == fits
        assert fits == (block_config(rows, len(words), inputs, 132) is not None)


SIZES = [(4096, 4096), (28672, 4096), (6144, 4096), (4096, 14336), (1536, 896), (64, 256),
         (8192, 28672), (128256, 4096)]  # fmt: skip


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_configs_fit(n: int, k: int) -> None:
    for rows in (1, 2, 5, 16, 17, 64, 65, 200):
        for group, tables in ((32, 2), (64, 1), (128, 1), (128, 0)):
            found = byte_config(rows, n, k, group, 132, tables)
            assert found is not None or rows > 64 or (group == 32 and k > 14336)
            for each in ([found] if found else []) + list(
                byte_configs(rows, n, k, group, 132, tables)
            ):
                assert byte_memory(rows, k, group, tables, each) <= 226 * 1024
                block_m = min(128, 1 << (rows - 1).bit_length())
                tiles = -(-n // each.block_n) * -(-rows // block_m)
                assert (
                    each.split == 1 or tiles * each.split * each.block_n * block_m <= NUM_PARTIALS
                )


@pytest.mark.parametrize(
    ("rows", "n", "group", "wide"),
    [
        (4, 28672, 0, True),  # two on a multiprocessor are one round
        (16, 28672, 64, True),
        (32, 28672, 128, True),
        (24, 28672, 64, False),  # sums of groups take the registers of two
        (40, 28672, 0, False),
        (16, 37888, 64, False),
        (1, 28672, 0, False),
    ],
)
def test_wide_tiles_serve_what_is_one_round(rows: int, n: int, group: int, wide: bool) -> None:
    """As measured."""
    found = byte_config(rows, n, 4096, group or 256, 132, min(group, 1))
    assert (found == WIDE) == wide


@pytest.mark.parametrize(("k", "stages"), [(8192, 3), (4096, 2), (17408, 2)])
def test_more_stages_fit_one_round(k: int, stages: int) -> None:
    n = 5120 if k == 17408 else 4096
    found = byte_config(32, n, k, 256, 132, 0)
    assert found is not None
    assert (found.stages, found.split) == (stages, 4)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_tiles_hold_whole_heads(n: int, k: int, head_dim: int) -> None:
    """So that the GEMM of queries, keys and values applies RoPE, also for one request."""
    for rows, group in itertools.product((1, 2, 5, 16, 17, 64, 65), (64, 128)):
        found = byte_config(rows, n, k, group, 132, 1, head_dim)
        assert found is None or found.block_n % head_dim == 0


def test_bytes_are_those_of_the_memory_plan() -> None:
    for spec, k in itertools.product(SPECS, (384, 768)):
        found = format_of(spec)
        tensors = packed(rows_of(found, 64, k)).tensors
        assert sum(own.nbytes for own in tensors.values()) == found.num_bytes(64, k)


HOPPER_ONLY = pytest.mark.gpu("Hopper")
ROWS = 1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 128, 129, 300, 700


def on_gpu(spec: QuantSpec, n: int, k: int) -> ByteWeight | Fp8Weight:
    """A random weight on the GPU."""
    rows = format_of(spec).round_rows(torch.randn(n, k, device=DEVICE))
    assert isinstance(rows, ByteWeight | Fp8Weight)
    return rows


@HOPPER_ONLY
@pytest.mark.parametrize("spec", [*SPECS[:2], *SPECS[4:], ALONE, BLOCKS_ALONE], ids=str)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("n", "k"), [(768, 1280), (152, 2816), (4096, 4096), (64, 384), (28672, 1280)]
)
def test_any_number_of_rows_on_a_hopper(spec: QuantSpec, rows: int, n: int, k: int) -> None:
    weight = on_gpu(spec, n, k)
    x = torch.randn(rows, k, device=DEVICE, dtype=torch.bfloat16)
    bias = torch.randn(n, device=DEVICE, dtype=torch.bfloat16)
    expected = x.double() @ format_of(spec).dequantize(weight).double().T + bias.double()
    exact, rounded = 5e-3, 5e-2 if spec.codes == "fp8_block" else 1.2e-2
    limit = rounded if multiplies_blocks(rows, packed(weight)) else exact
    assert error_of(kernels_for("cuda").linear(x, packed(weight), bias), expected) < limit


@HOPPER_ONLY
@pytest.mark.parametrize(
    "spec", [SPECS[0], QuantSpec("int8_group", 1024), SPECS[4], ALONE], ids=str
)
@pytest.mark.parametrize("rows", [1, 3, 16, 24, 64])
def test_what_is_fused_on_a_hopper(spec: QuantSpec, rows: int) -> None:
    weight = on_gpu(spec, 1024, 1024)
    gate_up = packed(weight.map_rows(interleave_gate_up))
    check_fused(format_of(spec).dequantize(weight).double(), packed(weight), gate_up, rows)


@HOPPER_ONLY
@pytest.mark.parametrize("rows", [1, 4, 16, 64, 128])
def test_every_config_gives_the_result_on_a_hopper(rows: int) -> None:
    weight = on_gpu(SPECS[0], 2048, 4096)
    x = torch.randn(rows, 4096, device=DEVICE, dtype=torch.bfloat16)
    expected = x.double() @ format_of(SPECS[0]).dequantize(weight).double().T
    for config in byte_configs(rows, 2048, 4096, 128, 132, 1):
        for _ in range(2):  # counters of partial results are left at zero
            assert error_of(skinny_gemm(x, packed(weight), config=config), expected) < 5e-3, config


@HOPPER_ONLY
@pytest.mark.parametrize("rows", [65, 128, 200, 600])
@pytest.mark.parametrize("spec", [SPECS[4], SPECS[0], QuantSpec("int8_group", 2048)], ids=str)
def test_every_config_of_blocks_gives_the_result_on_a_hopper(spec: QuantSpec, rows: int) -> None:
    """That of the rounded rows, by what each group of columns of both is."""
    n, k = 1016, 2048
    weight = on_gpu(spec, n, k)
    x = torch.randn(rows, k, device=DEVICE, dtype=torch.bfloat16)
    x *= (
        torch.exp2(torch.randint(-9, 9, (rows, k // 128, 1), device=DEVICE))
        .expand(-1, -1, 128)
        .flatten(1)
        .bfloat16()
    )
    kind = Fp8Blocks if spec.codes == "fp8_block" else Int8Blocks
    given, bias = quantize_blocks(x, kind), torch.randn(n, device=DEVICE, dtype=torch.bfloat16)
    wide = given.dequantize().double()
    assert error_of(wide, x.double()) < (4e-2 if kind is Fp8Blocks else 1e-2)
    expected = wide @ format_of(spec).dequantize(weight).double().T + bias.double()
    for config in block_configs(rows, n, k):
        for _ in range(2):
            out = multiply_blocks(given, packed(weight), bias, config)
            assert error_of(out, expected) < 5e-3, config


@HOPPER_ONLY
@pytest.mark.parametrize(
    "spec",
    [*SPECS[:2], QuantSpec("int8_group", 128, zeros=True), QuantSpec("fp8_block", 64)],
    ids=str,
)
@pytest.mark.parametrize("rows", [65, 150, 600])
def test_every_config_of_many_rows_gives_the_result_on_a_hopper(spec: QuantSpec, rows: int) -> None:
    n, k = 1008 if spec.zeros else 1016, 2048
    weight = on_gpu(spec, n, k)
    words = packed(weight)
    x = torch.randn(rows, k, device=DEVICE, dtype=torch.bfloat16)
    bias = torch.randn(n, device=DEVICE, dtype=torch.bfloat16)
    expected = x.double() @ format_of(spec).dequantize(weight).double().T + bias.double()
    for config in byte_rows_configs(rows, n, k):
        outs = [multiply_byte_rows(x, words, bias, config) for _ in range(2)]
        assert torch.equal(*outs), config
        assert error_of(outs[0], expected) < 5e-3, config


@HOPPER_ONLY
@pytest.mark.parametrize("spec", [SPECS[0], QuantSpec("int8_group", 1024), SPECS[4]], ids=str)
def test_many_rows_are_rounded_by_the_kernels_before_on_a_hopper(spec: QuantSpec) -> None:
    """A norm and SiLU leave block rows, and results are those of rows in 16 bits."""
    weight = on_gpu(spec, 1024, 1024)
    numbers, words = format_of(spec).dequantize(weight).double(), packed(weight)
    x, residual = (torch.randn(300, 1024, device=DEVICE).bfloat16() for _ in range(2))
    norm, kernels = torch.rand(1024, device=DEVICE).bfloat16(), kernels_for("cuda")
    state = kernels.linear_add_norm(x, words, None, residual, norm, 1e-5)
    assert type(state.rows) is BYTES.rows_of(words, 300)
    rms = (state.residual.double().square().mean(1, keepdim=True) + 1e-5).rsqrt()
    gate, up = (state.residual.double() * rms * norm.double() @ numbers.T).chunk(2, dim=1)
    gate_up = packed(weight.map_rows(interleave_gate_up))
    out = kernels.linear_silu(state, gate_up, None, True)
    assert isinstance(out, BlockRows)
    limit = 1e-1 if spec.codes == "fp8_block" else 2.5e-2
    assert error_of(out.dequantize(), F.silu(gate) * up) < limit
