"""GGUF's blocks as numbers, compared bit by bit with the `gguf` package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf_files import WRITTEN, encode

from quire.gguf.block_types import BLOCK_TYPES
from quire.models.checkpoint_formats.gguf_blocks import dequantize
from quire.models.checkpoint_formats.gguf_format import BlockLinear
from quire.models.checkpoint_formats.integer_rows import unpacked

QUANTIZED = [each for each in BLOCK_TYPES.values() if each.is_quantized]
NAMES = [each.name for each in QUANTIZED]
# a step between codes, of the largest number of a block: the most that rounding is off
STEPS = {"Q4": 0.13, "Q5": 0.065, "Q6": 0.035, "Q8": 0.008}


@pytest.mark.parametrize("number", BLOCK_TYPES)
def test_sizes_are_those_of_the_package(number: int) -> None:
    kind = gguf.GGMLQuantizationType(number)
    own = BLOCK_TYPES[number]
    assert (own.name, own.items, own.num_bytes) == (kind.name, *gguf.GGML_QUANT_SIZES[kind])


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_the_package_to_the_last_bit(name: str) -> None:
    """Any bytes may be a block, also those of scales that are not finite."""
    kind, generator = gguf.GGMLQuantizationType[name], np.random.default_rng(0)
    num_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    rows = generator.integers(0, 256, (64, 3 * num_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(rows, kind)
    np.testing.assert_array_equal(dequantize(name, rows), expected)


@pytest.mark.parametrize("name", [name for name in NAMES if name in WRITTEN])
def test_encoded_numbers_come_back(name: str) -> None:
    numbers = np.random.default_rng(1).standard_normal((8, 512)).astype(np.float32)
    blocks = numbers.reshape(8, -1, 32)
    error = np.abs(dequantize(name, encode(name, numbers)).reshape(blocks.shape) - blocks)
    assert (error.max(-1) / np.abs(blocks).max(-1)).max() < STEPS[name[:2]]


def test_q4_0_keeps_its_codes() -> None:
    numbers = np.random.default_rng(2).standard_normal((8, 64)).astype(np.float32)
    blocks = encode("Q4_0", numbers)
    rows = BlockLinear("", "Q4_0").rows({"weight": torch.from_numpy(blocks)})
    values = (unpacked(rows.codes, 4).float() - 8).unflatten(1, (-1, 32)) * rows.scale[..., None]
    np.testing.assert_array_equal(values.flatten(1).numpy(), dequantize("Q4_0", blocks))


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K"])
def test_scales_that_are_not_numbers_are_refused(name: str) -> None:
    blocks = encode(name, np.ones((2, 256), np.float32))
    at = 0 if name == "Q4_0" else 208
    blocks[1, at : at + 2] = 0xFF
    linear, tensors = BlockLinear("", name), {"weight": torch.from_numpy(blocks)}
    with pytest.raises(ValueError, match="a scale that is not a number"):
        linear.numbers(tensors, "float32")
    if linear.spec(256) is not None:
        with pytest.raises(ValueError, match="a scale that is not a number"):
            linear.rows(tensors)
