"""The table of data types: their names, their sizes, and how files and arrays hold them.

Owns no objects of NumPy or PyTorch, so that everything may read it; `kernels.torch_dtypes` maps
names to PyTorch's types.
"""

from __future__ import annotations

import msgspec


class DataType(msgspec.Struct, frozen=True):
    """One data type. array: as NumPy spells the type that holds its numbers or, if it has none
    such, their bits; None where several numbers share a byte."""

    name: str  # PyTorch's, which config.json uses, too
    safetensors: str
    bits: int
    array: str | None

    @property
    def num_bytes(self) -> int:
        """The number of bytes of one value."""
        return self.bits // 8


_ALL = (
    DataType("float64", "F64", 64, "f8"),
    DataType("float32", "F32", 32, "f4"),
    DataType("float16", "F16", 16, "f2"),
    DataType("bfloat16", "BF16", 16, "u2"),
    DataType("float8_e4m3fn", "F8_E4M3", 8, "u1"),
    DataType("float8_e4m3fnuz", "F8_E4M3FNUZ", 8, "u1"),
    DataType("float8_e5m2", "F8_E5M2", 8, "u1"),
    DataType("float8_e5m2fnuz", "F8_E5M2FNUZ", 8, "u1"),
    DataType("float8_e8m0fnu", "F8_E8M0", 8, "u1"),
    DataType("float6_e2m3", "F6_E2M3", 6, None),
    DataType("float6_e3m2", "F6_E3M2", 6, None),
    DataType("float4_e2m1", "F4", 4, None),
    DataType("complex64", "C64", 64, "c8"),
    DataType("int64", "I64", 64, "i8"),
    DataType("int32", "I32", 32, "i4"),
    DataType("int16", "I16", 16, "i2"),
    DataType("int8", "I8", 8, "i1"),
    DataType("uint64", "U64", 64, "u8"),
    DataType("uint32", "U32", 32, "u4"),
    DataType("uint16", "U16", 16, "u2"),
    DataType("uint8", "U8", 8, "u1"),
    DataType("bool", "BOOL", 8, "?"),
)
DTYPES = {each.name: each for each in _ALL}
SAFETENSORS = {each.safetensors: each for each in _ALL}

MODEL_DTYPES = ("float32", "bfloat16", "float16")  # that a model can run in
CHECKPOINT_DTYPES = ("F64", "F32", "F16", "BF16")  # that weights may have in a checkpoint
FP8_CAPABILITY = (8, 9)  # compute capability of the first GPUs that convert and multiply FP8
HOPPER_MAJOR = 9  # of compute capability, of GPUs that have kernels of their own
# head dimensions and block sizes that these kernels' attention takes
HOPPER_HEAD_DIMS, HOPPER_BLOCK_SIZES = (64, 128), (8, 16, 32, 64, 128)
NATIVE_DTYPES = {"float32": 0, "bfloat16": 1, "float8_e4m3fn": 2, "int8": 3}  # of quire_cpu.h
