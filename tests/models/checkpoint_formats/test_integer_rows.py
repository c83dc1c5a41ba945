"""Codes of integers: packed, unpacked, and in groups of any size."""

from __future__ import annotations

import pytest
import torch
from quantized_checkpoints import words

from quire.models.checkpoint_formats.awq import ORDER, rows_of
from quire.models.checkpoint_formats.checkpoint_format import row_bits
from quire.models.checkpoint_formats.integer_linear import integer_spec
from quire.models.checkpoint_formats.integer_rows import packed, unpacked, words_as_rows


@pytest.mark.parametrize("bits", [4, 8])
def test_packing_and_unpacking_are_inverses(bits: int) -> None:
    codes = torch.randint(0, 2**bits, (24, 64), dtype=torch.uint8)
    assert torch.equal(unpacked(packed(codes, bits), bits), codes)
    assert torch.equal(words_as_rows(words(codes, bits), bits), packed(codes, bits))
    few = codes[:, : 32 // bits]  # in one word each: a transposed column has strides of its own
    column = torch.empty(1, 24, dtype=torch.int32).copy_(words(few, bits).t()).t()
    assert torch.equal(words_as_rows(column, bits), packed(few, bits))
    fours = codes & 15
    assert torch.equal(unpacked(rows_of(words(fours, 4, ORDER)), 4), fours.t())


@pytest.mark.parametrize("bits", range(2, 8))
@pytest.mark.parametrize("k", [64, 50])
def test_codes_of_fewer_bits_are_in_the_middle_of_the_wider_range(bits: int, k: int) -> None:
    codes, wide = torch.randint(0, 2**bits, (24, k), dtype=torch.uint8), row_bits(bits)
    rows = unpacked(words_as_rows(words(codes, bits), bits), wide)[:, :k]
    middle, of_wide = 2 ** (bits - 1), 2 ** (wide - 1)
    assert torch.equal(rows.int() - of_wide, codes.int() - middle)


@pytest.mark.parametrize("size", [0, -32, -1, 32, 7])
def test_groups_of_no_size_have_no_format(size: int) -> None:
    """A plan is made before the sizes of groups are refused with the tensor's name."""
    found = integer_spec(4, size, 64, zeros=False)
    assert (found is None) == (size in (0, -32, 7))
