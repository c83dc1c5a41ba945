"""Bytes of keys and values, by the names of their data types. No torch, and no arrays."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from quire.core.layer_spec import KVLayerSpec
from quire.dtypes import DTYPES
from quire.options import require

_WINDOWED = "sliding_window"  # of the setting: all layers that have one
_SCALE_BYTES = 2  # at the end of each row in int8
_IN_8_BITS = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "int8": "int8"}


def kv_name(setting: str, dtype: str, stored: str | None = None) -> str:
    """The type of keys and values by the setting `kv_cache_dtype`.

    dtype: the model's. stored: the setting that the checkpoint was made for, which "auto" takes.
    Raises ConfigError for 16 bits that are not the model's.
    """
    wanted = (stored or dtype) if setting == "auto" else setting
    require(
        wanted in (dtype, *_IN_8_BITS),
        f"kv_cache_dtype is {setting!r}, but the model runs in {dtype}; leave it out, or set dtype",
    )
    return _IN_8_BITS.get(wanted, wanted)


def row_bytes(dim: int, dtype: str) -> int:
    """Bytes of one head's keys or values of one token, of `dim` numbers."""
    return dim * DTYPES[dtype].num_bytes + (_SCALE_BYTES if dtype == "int8" else 0)


def layers_with_types(
    layers: Sequence[KVLayerSpec], skipped: str | None, dtype: str
) -> tuple[KVLayerSpec, ...]:
    """The layers of a model, those to be left out of a quantized KV cache in the model's dtype.

    skipped: the setting `kv_cache_dtype_skip_layers`. Raises ConfigError.
    """
    words = [word.strip() for word in (skipped or "").split(",") if word.strip()]
    for word in words:
        require(
            word == _WINDOWED or (word.isdecimal() and int(word) < len(layers)),
            f"kv_cache_dtype_skip_layers must hold {_WINDOWED} or numbers of layers up to "
            f"{len(layers) - 1}, not {word!r}",
        )
    indices = {int(word) for word in words if word != _WINDOWED}
    return tuple(
        replace(layer, dtype=dtype)
        if index in indices or (layer.window is not None and _WINDOWED in words)
        else layer
        for index, layer in enumerate(layers)
    )


def layer_bytes(layer: KVLayerSpec, dtype: str) -> tuple[int, int]:
    """Bytes of one token's keys, and of its values, in one layer. dtype: the cache's."""
    keys, values = (
        row_bytes(dim, layer.dtype or dtype) for dim in (layer.key_dim, layer.value_dim)
    )
    return layer.num_heads * keys, layer.num_heads * values


def block_bytes(layers: Sequence[KVLayerSpec], block_size: int, dtype: str) -> int:
    """Bytes of one block: keys and values of block_size tokens in all layers."""
    return block_size * sum(sum(layer_bytes(layer, dtype)) for layer in layers)
