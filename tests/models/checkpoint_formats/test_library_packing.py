"""Codes as GPTQModel and compressed-tensors pack them: read and packed again to the last bit.

library_packing.safetensors has eight outputs of a layer of checkpoints that GPTQModel 7.7 (GPTQ,
AWQ) and llm-compressor 0.14 (compressed-tensors 0.20) wrote, with the numbers that they make of
them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from quantized_checkpoints import stored_in
from torch import Tensor

from quire.compress.code_grids import GroupScales, IntegerGrid
from quire.compress.packing import LEAST_ZERO, awq_tensors, gptq_tensors, packed_tensors
from quire.compress.quantized_rows import IntegerCodes
from quire.kernels.torch_dtypes import dtype_name
from quire.models.checkpoint_formats.awq import AwqLinear
from quire.models.checkpoint_formats.gptq import GptqLinear
from quire.models.checkpoint_formats.integer_linear import IntegerLinear
from quire.models.checkpoint_formats.integer_rows import unpacked
from quire.models.checkpoint_formats.stored_packed import PackedLinear

written = partial(stored_in, Path(__file__).with_name("library_packing.safetensors"))
LINEARS: dict[str, GptqLinear | AwqLinear | PackedLinear] = {
    "gptq": GptqLinear("", 4, 64, True, False, True),
    "gptq_order": GptqLinear("", 4, 32, False, True, True),
    "gptq_v2": GptqLinear("", 4, 32, False, False, False),
    "gptq_8": GptqLinear("", 8, 64, False, False, True),
    "awq": AwqLinear("", 64),
    "awq_symmetric": AwqLinear("", 64),  # zero_point is false
    "packed": PackedLinear("", 4, 64, True, False),
    "packed_zeros": PackedLinear("", 4, 32, False, False),
    "packed_channel": PackedLinear("", 4, -1, True, False),
    "packed_8": PackedLinear("", 8, 64, False, False),
}
PACK = {GptqLinear: gptq_tensors, AwqLinear: awq_tensors, PackedLinear: packed_tensors}


@pytest.mark.parametrize("name", LINEARS)
def test_numbers_are_those_of_the_library_to_the_last_bit(name: str) -> None:
    tensors, numbers = written(name)
    assert torch.equal(LINEARS[name].numbers(tensors, dtype_name(numbers.dtype)), numbers)
    expected = LINEARS[name].tensors(*numbers.shape)
    for leaf, tensor in tensors.items():
        assert tuple(tensor.shape) in expected[leaf].shapes


@pytest.mark.parametrize("name", [name for name in LINEARS if name != "gptq_v2"])
def test_packing_what_was_read_gives_the_tensors_of_the_library(name: str) -> None:
    """Version 2 of GPTQ's packing is read, not written."""
    tensors, _ = written(name)
    packed = PACK[type(LINEARS[name])](codes_of(LINEARS[name], tensors))
    assert packed.keys() == tensors.keys()
    for leaf, tensor in tensors.items():
        assert torch.equal(packed[leaf], tensor), leaf


def codes_of(linear: IntegerLinear, tensors: dict[str, Tensor]) -> IntegerCodes:
    """A weight as it is before it is packed: its inputs in their own order."""
    rows = linear.integer_rows(tensors)
    scale, middle = rows.scale.float(), 2.0 ** (rows.bits - 1)
    zero = torch.full_like(scale, middle) if rows.zeros is None else rows.zeros.float()
    in_groups = unpacked(rows.codes, rows.bits)
    order = torch.arange(in_groups.shape[1]) if rows.permutation is None else rows.permutation
    codes = torch.empty_like(in_groups)
    codes[:, order.long()] = in_groups
    group, dtype = in_groups.shape[1] // scale.shape[1], dtype_name(rows.scale.dtype)
    grid = IntegerGrid(rows.bits, group, rows.zeros is None, dtype, LEAST_ZERO)
    return IntegerCodes(grid, codes, GroupScales(scale, zero), tensors.get("g_idx"))
