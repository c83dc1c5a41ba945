"""Activations in INT16, and four-bit codes as the bytes that multiply them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ptx import run_ptx

from quire.kernels.operands import ResidualState
from quire.kernels.reference_quantized import quantize_int4, round_int16
from quire.kernels.triton.gemm.int4_config import (
    INT16_ROWS,
    SHARED_MEMORY,
    block_rows,
    int16_config,
    shared_memory,
)
from quire.kernels.triton.launch.workspace import NUM_PARTIALS
from quire.kernels.triton.ops.int4_weight import pack_int4
from quire.kernels.triton.ops.int16_rows import int16_for, takes_int16


def test_numbers_keep_fifteen_bits_below_the_largest() -> None:
    x = torch.randn(5, 192) * torch.tensor([1e-30, 1.0, 1e4, 1e30, 0.0])[:, None]
    x[1, 70] = 1e4  # columns beside it lose digits, those of other blocks do not
    rows = round_int16(x)
    assert rows.codes.shape == (5, 2, 192)
    numbers = rows.codes[:, 0].double() * 128 + rows.codes[:, 1].double()
    found = (numbers.unflatten(1, (-1, 64)) * rows.scale.t()[:, :, None].double()).flatten(1)
    most = x.unflatten(1, (-1, 64)).abs().amax(2, keepdim=True).expand(5, 3, 64).flatten(1)
    assert bool(((found - x.double()).abs() <= most * 2.0**-14.9).all())
    torch.testing.assert_close(rows.widened().float(), found.float().bfloat16().float())


def test_what_is_not_finite_is_seen_in_the_scale() -> None:
    x = torch.ones(3, 128)
    x[0, 3], x[1, 64] = float("nan"), float("inf")
    finite = round_int16(x).scale.isfinite()
    assert finite.tolist() == [[False, True, True], [True, False, True]]


def test_instructions_make_bytes_of_codes() -> None:
    """What Hopper's GEMM does in registers, by an interpreter of its instructions."""
    kernel = pytest.importorskip("quire.kernels.triton.hopper.hopper_int16_rows")
    rows = quantize_int4(torch.randn(1, 512), 128, hadamard=False)
    codes = torch.stack([rows.codes & 15, rows.codes >> 4], dim=2).flatten().to(torch.int64)
    words = [int(word) & 0xFFFFFFFF for word in pack_int4(rows).words[0]]
    for step in range(2):
        for pair in range(0, 16, 2):
            first = 32 * step + 2 * pair
            four = dict(zip(("$1", "$2", "$3", "$4"), words[first : first + 4], strict=True))
            for block in range(8):
                found = run_ptx(kernel._bytes_asm(block), dict(four))["$0"]
                column = 256 * step + 32 * block + 2 * pair
                expected = (codes[column : column + 4] - 8) * 16 & 255
                assert [found >> 8 * i & 255 for i in range(4)] == expected.tolist()


def test_weights_that_take_them() -> None:
    """Small groups and orders of inputs need x in bfloat16, zero points the sums of numbers."""
    rows = quantize_int4(torch.randn(16, 512), 64, hadamard=False)
    x = torch.randn(2, 512)
    given = round_int16(x)
    state = ResidualState(x, x, torch.ones(512), 1e-5, torch.ones(1, 2), given)
    words = pack_int4(rows)
    assert takes_int16(words)
    assert int16_for(state, words) is int16_for(given, words) is given
    assert int16_for(x, words) is None
    points = torch.full(rows.scale.shape, 7, dtype=torch.uint8)
    shifted = pack_int4(replace(rows, zeros=points))
    assert int16_for(given, shifted) is given
    assert int16_for(replace(given, sums=None), shifted) is None
    others = [
        pack_int4(quantize_int4(torch.randn(16, 512), 32, hadamard=False)),
        pack_int4(replace(rows, permutation=torch.randperm(512).int())),
        pack_int4(quantize_int4(torch.randn(16, 384), 64, hadamard=False)),
    ]
    assert not any(takes_int16(each) for each in others)
    assert all(int16_for(state, each) is None for each in others)


@pytest.mark.parametrize("rows", [INT16_ROWS[0], INT16_ROWS[-1]])
@pytest.mark.parametrize(
    ("n", "k"),
    [(4096, 4096), (28672, 4096), (1536, 1024), (64, 256), (8192, 28672), (57344, 8192)],
)
def test_configs_fit_a_multiprocessor_and_the_workspace(rows: int, n: int, k: int) -> None:
    for group in (64, 128):
        for head_dim in (0, 64, 128):
            found = int16_config(rows, n, k, group, 132, head_dim=head_dim)
            assert found is not None
            assert found.int16
            assert head_dim in (0, found.block_n) or head_dim == 64
            assert shared_memory(rows, k, group, zeros=False, config=found) <= SHARED_MEMORY
            tiles = -(-n // found.block_n)
            sums = tiles * found.split * found.block_n * block_rows(rows)
            assert found.split == 1 or sums <= NUM_PARTIALS
            assert found.parts * found.block_n % (16 * found.warps) == 0
    assert int16_config(INT16_ROWS[-1] + 1, n, k, 64, 132) is None
