"""What compiled calls take, as quire_cpu.h tells. Owns the layouts alone. No torch."""

from __future__ import annotations

import ctypes
import struct
from enum import IntEnum
from typing import ClassVar

from quire.dtypes import NATIVE_DTYPES

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float

FLOAT32, BFLOAT16 = NATIVE_DTYPES["float32"], NATIVE_DTYPES["bfloat16"]
INT8, INT4, INT4_ZEROS, INT4_SPREAD = 2, 3, 4, 5  # `Format`, whose first two are those

LINEAR_ARGS = struct.Struct("5P3qf5i")  # packed: a structure of ctypes costs 5 times as much
QUANTIZE_ARGS = struct.Struct("2P3q4i")


class Epilogue(IntEnum):
    """What is made where a product's sums are."""

    STORE = 0
    ADD = 1
    SILU = 2


class RmsNormArgs(ctypes.Structure):
    """Rows behind a norm."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("x", "weight", "out")),
        *((name, _LONG) for name in ("rows", "size")),
        ("eps", _FLOAT),
        *((name, _INT) for name in ("dtype", "threads")),
    ]


class RowsArgs(ctypes.Structure):
    """What looks at rows of logits or hidden states."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("x", "places", "peaks", "slopes", "out", "ids")),
        *((name, _LONG) for name in ("rows", "size")),
        *((name, _INT) for name in ("dtype", "threads")),
    ]


class PackArgs(ctypes.Structure):
    """A weight into the order that products read."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("codes", "scale", "zeros", "out")),
        *((name, _LONG) for name in ("n", "k", "half")),
        *((name, _INT) for name in ("group", "format", "threads")),
    ]


class RotaryArgs(ctypes.Structure):
    """Heads to turn, and to write."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("heads", "query_norm", "key_norm", "cos", "sin")),
        *((name, _POINTER) for name in ("k_cache", "v_cache", "slots", "query")),
        *((name, _LONG) for name in ("tokens", "stride")),
        *((name, _INT) for name in ("num_heads", "kv_heads", "head_dim", "rotary_dim")),
        ("eps", _FLOAT),
        *((name, _INT) for name in ("dtype", "kept", "threads")),
    ]


class AttentionArgs(ctypes.Structure):
    """Queries over a paged cache."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("query", "k_cache", "v_cache", "out")),
        *((name, _POINTER) for name in ("query_start", "seq_lens", "block_table")),
        *((name, _LONG) for name in ("requests", "table_stride", "query_stride")),
        *((name, _INT) for name in ("block_size", "heads", "kv_heads", "head_dim")),
        ("window", _INT),
        ("scale", _FLOAT),
        *((name, _INT) for name in ("dtype", "kept", "threads")),
    ]


class ProductArgs(ctypes.Structure):
    """A packed weight with its bias."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("weight", "bias")),
        ("outputs", _LONG),
        *((name, _INT) for name in ("group", "format")),
    ]


class LayerArgs(ctypes.Structure):
    """All that one decoder layer reads."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, _POINTER) for name in ("k_cache", "v_cache")),
        *((name, ProductArgs) for name in ("qkv", "o", "gate_up", "down")),
        *((name, _FLOAT) for name in ("eps", "head_eps", "scale")),
        ("window", _INT),
    ]


class LayersArgs(ctypes.Structure):
    """A step through decoder layers."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("rows", "residual", "room", "layers")),
        *((name, _POINTER) for name in ("cos", "sin", "slots")),
        *((name, _POINTER) for name in ("query_start", "seq_lens", "block_table")),
        *((name, _LONG) for name in ("count", "tokens", "hidden", "requests", "table_stride")),
        *((name, _INT) for name in ("block_size", "heads", "kv_heads", "head_dim", "rotary_dim")),
        *((name, _INT) for name in ("dtype", "kept", "threads")),
    ]
