"""Arguments of the native library's functions, laid out as in quire_cpu.h. No torch."""

from __future__ import annotations

import ctypes
import struct
from enum import IntEnum
from typing import ClassVar

from quire.dtypes import DTYPES, NATIVE_DTYPES

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float

ROW_DTYPES = ("float32", "bfloat16")  # of activations
FLOAT32, BFLOAT16 = (NATIVE_DTYPES[name] for name in ROW_DTYPES)
FLOAT_BYTES = {NATIVE_DTYPES[name]: DTYPES[name].num_bytes for name in ROW_DTYPES}  # of a value

LINEAR_ARGS = struct.Struct("6P3qf5i")  # packed: a structure of ctypes costs 5 times as much
QUANTIZE_ARGS = struct.Struct("2P3q4i")


_MAX_HEAD_DIM, _HEAD_DIM_MULTIPLE = 256, 16  # as paged.h has them


def serves_heads(dim: int, block_size: int) -> bool:
    """Whether there are attention kernels for heads of `dim` numbers in blocks of this size."""
    is_power = block_size & (block_size - 1) == 0
    return is_power and dim % _HEAD_DIM_MULTIPLE == 0 and dim <= _MAX_HEAD_DIM


class Epilogue(IntEnum):
    """Operations that a linear kernel applies to its sums before it stores them."""

    STORE = 0
    ADD = 1
    SILU = 2
    GELU = 3


class LayerOperation(IntEnum):
    """Operations of a decoder layer, as `LayerOperation` in quire_cpu.h."""

    QKV = 0
    ROPE = 1
    ATTENTION = 2
    OUTPUT = 3
    GATE_UP = 4
    DOWN = 5
    NORM = 6


class RmsNormArgs(ctypes.Structure):
    """Arguments of the native RMSNorm of rows."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("x", "weight", "out")),
        *((name, _LONG) for name in ("rows", "size")),
        ("eps", _FLOAT),
        *((name, _INT) for name in ("dtype", "threads", "adds")),
    ]


class RowsArgs(ctypes.Structure):
    """Checks and reductions of rows of logits or hidden states."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("x", "indices", "peaks", "slopes", "out", "ids")),
        *((name, _LONG) for name in ("rows", "size")),
        *((name, _INT) for name in ("dtype", "threads")),
    ]


class PackArgs(ctypes.Structure):
    """Arguments of the native packing of a weight."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("codes", "scale", "zeros", "out")),
        *((name, _LONG) for name in ("n", "k", "half")),
        *((name, _INT) for name in ("group", "format", "threads")),
    ]


class RotaryArgs(ctypes.Structure):
    """RoPE of queries and keys, and the write of keys and values."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("heads", "query_norm", "key_norm", "cos", "sin")),
        *((name, _POINTER) for name in ("positions", "k_cache", "v_cache", "slots", "query")),
        *((name, _LONG) for name in ("tokens", "stride")),
        *((name, _INT) for name in ("num_heads", "kv_heads", "head_dim", "rotary_dim")),
        ("eps", _FLOAT),
        *((name, _INT) for name in ("dtype", "cache_dtype", "threads")),
    ]


class AttentionArgs(ctypes.Structure):
    """Attention of queries over a paged cache."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("query", "k_cache", "v_cache", "out")),
        *((name, _POINTER) for name in ("query_start", "seq_lens", "block_table", "prompts")),
        *((name, _LONG) for name in ("requests", "table_stride", "query_stride")),
        *((name, _INT) for name in ("block_size", "heads", "kv_heads", "head_dim")),
        ("window", _INT),
        *((name, _FLOAT) for name in ("scale", "soft_cap")),
        *((name, _INT) for name in ("dtype", "cache_dtype", "threads")),
    ]


class LinearWeightArgs(ctypes.Structure):
    """A packed weight with its bias, as the native library takes it."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("weight", "bias", "permutation")),
        ("outputs", _LONG),
        *((name, _INT) for name in ("group", "format")),
    ]


class LayerArgs(ctypes.Structure):
    """Weights, caches and constants of one decoder layer."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, _POINTER) for name in ("post_attention_norm", "post_mlp_norm")),
        *((name, _POINTER) for name in ("k_cache", "v_cache")),
        *((name, LinearWeightArgs) for name in ("qkv", "o", "gate_up", "down")),
        *((name, _FLOAT) for name in ("eps", "head_eps", "scale", "soft_cap")),
        *((name, _INT) for name in ("window", "activation")),
    ]


class LayersArgs(ctypes.Structure):
    """Arguments of a step through decoder layers."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("residual", "workspace", "layers", "nanoseconds")),
        *((name, _POINTER) for name in ("cos", "sin", "positions", "slots")),
        *((name, _POINTER) for name in ("query_start", "seq_lens", "block_table", "prompts")),
        *((name, _POINTER) for name in ("needed", "final_norm", "states", "finite")),
        *((name, _LONG) for name in ("count", "tokens", "hidden", "requests", "table_stride")),
        ("num_needed", _LONG),
        *((name, _INT) for name in ("block_size", "heads", "kv_heads", "head_dim", "rotary_dim")),
        *((name, _INT) for name in ("is_start", "dtype", "cache_dtype", "threads")),
    ]
