"""The table of data types agrees with PyTorch, NumPy and the header of the native library."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from quire.dtypes import (
    CHECKPOINT_DTYPES,
    DTYPES,
    MODEL_DTYPES,
    NATIVE_DTYPES,
    SAFETENSORS,
    DataType,
)
from quire.kernels.cpu import native
from quire.kernels.torch_dtypes import dtype_name, torch_dtype


@pytest.mark.parametrize("dtype", [each for each in DTYPES.values() if each.array], ids=str)
def test_sizes_are_those_of_pytorch_and_numpy(dtype: DataType) -> None:
    theirs = torch_dtype(dtype.name)
    assert dtype_name(theirs) == dtype.name
    assert theirs.itemsize == np.dtype(dtype.array).itemsize == dtype.num_bytes


def test_names_are_unique_and_the_groups_known() -> None:
    assert len(DTYPES) == len(SAFETENSORS)
    assert {*MODEL_DTYPES, *NATIVE_DTYPES} <= set(DTYPES)
    assert set(CHECKPOINT_DTYPES) <= set(SAFETENSORS)


def test_native_codes_are_those_of_the_header() -> None:
    header = (Path(native.__file__).parent / "native" / "quire_cpu.h").read_text()
    (listed,) = re.findall(r"enum class Dtype : int32_t \{(.*?)\}", header, re.S)
    codes = dict(re.findall(r"(\w+) = (\d+)", listed))
    names = {"f32": "float32", "bf16": "bfloat16", "fp8": "float8_e4m3fn", "int8": "int8"}
    assert {names[name]: int(code) for name, code in codes.items()} == NATIVE_DTYPES
