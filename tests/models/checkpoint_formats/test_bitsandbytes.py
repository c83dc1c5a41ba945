"""Weights as bitsandbytes stores them: the numbers that it makes of them, and what is refused.

bitsandbytes.safetensors was written by bitsandbytes 0.50.2, with its own numbers beside the codes.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from harmed_checkpoints import refusals, spoil
from quantized_checkpoints import stored_in
from torch import Tensor

from quire.config_file import ConfigFile
from quire.errors import CheckpointError
from quire.kernels.formats.table import format_of
from quire.models.checkpoint_formats.bitsandbytes import (
    EightBitLinear,
    FourBitLinear,
    read_bitsandbytes,
)
from quire.models.checkpoint_formats.checkpoint_format import StoredLinear
from quire.models.loading.quantized_source import QuantizedSource
from quire.quantization.stored_weight import sizes_of

written = partial(stored_in, Path(__file__).with_name("bitsandbytes.safetensors"))
LINEARS: dict[str, StoredLinear] = {
    "nf4": FourBitLinear("", "nf4", is_nested=False),
    "nf4_nested": FourBitLinear("", "nf4", is_nested=True),
    "fp4": FourBitLinear("", "fp4", is_nested=False),
    "int8": EightBitLinear(""),
}
STATE = "weight.quant_state.bitsandbytes__nf4"


@pytest.mark.parametrize("name", LINEARS)
def test_numbers_are_those_of_bitsandbytes_to_the_last_bit(name: str) -> None:
    tensors, numbers = written(name)
    assert torch.equal(LINEARS[name].numbers(tensors, "float32"), numbers)
    expected = LINEARS[name].tensors(*numbers.shape)
    assert expected.keys() == tensors.keys()
    for leaf, tensor in tensors.items():
        shapes = expected[leaf].shapes
        assert not shapes or tuple(tensor.shape) in shapes


@pytest.mark.parametrize("name", ["nf4", "nf4_nested"])
def test_rows_have_the_codes_and_scales_in_float16(name: str) -> None:
    tensors, numbers = written(name)
    linear = LINEARS[name]
    rows, spec = linear.rows(tensors), linear.spec(numbers.shape[1])
    assert rows.spec == spec
    found = format_of(rows.spec).dequantize(rows)
    torch.testing.assert_close(found, numbers, rtol=2**-11, atol=0.0)


def with_state(**changes: Any) -> dict[str, Tensor]:
    tensors, _ = written("nf4")
    state = json.loads(bytes(tensors[STATE].tolist())) | changes
    return tensors | {STATE: torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)}


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        (with_state(blocksize=128), "has not blocks of 64 and the shape"),
        (with_state(shape=[8, 65]), "has not blocks of 64 and the shape"),
        (with_state(shape=[-8, -64]), "has not blocks of 64 and the shape"),
        (with_state(shape=[True, 512]), "has not blocks of 64 and the shape"),
        (with_state(shape="8"), "has not blocks of 64 and the shape"),
        (with_state(nested_offset="x"), "is damaged"),
        (with_state(nested_offset=float("nan")), "is damaged"),
        (with_state() | {STATE: torch.zeros(3, dtype=torch.uint8)}, "is damaged .Expecting"),
        (with_state() | {STATE: torch.zeros(3, 2, dtype=torch.uint8)}, "is damaged .*truncated"),
        (with_state() | {STATE: torch.full((99_999,), ord("["), dtype=torch.uint8)}, "nested too"),
        (with_state() | {STATE: torch.zeros(1 << 18, dtype=torch.uint8)}, "damaged .it has 262144"),
        (with_state() | {"weight.quant_map": torch.zeros(16)}, "not the numbers of NF4"),
        (with_state() | {"weight.absmax": torch.full((8,), 1e6)}, "beyond those of float16"),
    ],
    ids=[
        "blocks",
        "shape",
        "negative",
        "bool",
        "text",
        "offset",
        "offset_nan",
        "json",
        "wide",
        "nested",
        "large",
        "map",
        "scale",
    ],
)
def test_settings_that_do_not_fit_are_refused(tensors: dict[str, Tensor], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        LINEARS["nf4"].rows(tensors)


@pytest.mark.parametrize("keeps_codes", [True, False])
@pytest.mark.parametrize("shape", [[64, 8], [4, 128], [1, 512]])
def test_a_shape_that_is_not_the_models_is_refused(shape: list[int], keeps_codes: bool) -> None:
    """It has as many numbers, so tensors fit; kernels would read and write beyond their memory."""
    tensors, numbers = written("nf4")
    source = QuantizedSource("m", "m", LINEARS["nf4"], *numbers.shape, keeps_codes=keeps_codes)
    found = {f"m.{name}": tensor for name, tensor in tensors.items()}
    assert sizes_of(source.load(found, torch.float32)) == numbers.shape
    found = {f"m.{name}": tensor for name, tensor in with_state(shape=shape).items()}
    with pytest.raises(CheckpointError, match="m: its "):
        source.load(found, torch.float32)


def test_tiles_of_old_versions_are_refused() -> None:
    tensors, _ = written("int8")
    with pytest.raises(ValueError, match="weight_format is that of tiles"):
        EightBitLinear("").numbers(tensors | {"weight_format": torch.tensor(2)}, "float32")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "load_in_4bit and load_in_8bit are false or missing; take"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "af4"}, "bnb_4bit_quant_type is 'af4'"),
        ({"load_in_4bit": True, "bnb_4bit_quant_storage": "int4"}, "storage is 'int4'; save the"),
    ],
    ids=["none", "kind", "storage"],
)
def test_configs_that_are_not_read_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        read_bitsandbytes(ConfigFile(Path("config.json"), values))


test_what_does_not_fit_bitsandbytes_is_refused_by_name = refusals(
    ("nf4", spoil("weight.absmax"), r"up_proj: its weight.absmax has a number that is not finite"),
    ("llm_int8", spoil("SCB"), r"up_proj: its SCB has a number that is not finite; download"),
)
