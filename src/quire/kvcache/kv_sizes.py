"""Bytes that keys and values take, by the names of their types. No torch, and no arrays."""

from __future__ import annotations

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}
_SCALE_BYTES = 2  # at the end of each row in int8


def kv_name(setting: str, dtype: str) -> str:
    """The type of keys and values by the setting `kv_cache_dtype`; dtype: the model's."""
    return {"auto": dtype, "int8": "int8"}.get(setting, "float8_e4m3fn")


def row_bytes(head_dim: int, dtype: str) -> int:
    """Bytes of a head's row of keys or values."""
    return head_dim * _ITEM_BYTES[dtype] + (_SCALE_BYTES if dtype == "int8" else 0)


def block_bytes(
    num_layers: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: str
) -> int:
    """Bytes of one block: keys and values of block_size tokens in all layers."""
    return 2 * num_layers * block_size * num_kv_heads * row_bytes(head_dim, dtype)
