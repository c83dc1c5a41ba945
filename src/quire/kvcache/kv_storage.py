"""Tensors of the KV cache. Owns their allocation, not who holds which block."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from quire.core.layer_spec import KVLayerSpec
from quire.kernels.torch_dtypes import dtype_name, torch_dtype
from quire.kvcache.host_kv_cache import zero_pages
from quire.kvcache.kv_sizes import kv_name, row_bytes


def kv_dtype(setting: str, dtype: torch.dtype) -> torch.dtype:
    """The type of keys and values by the setting `kv_cache_dtype`; dtype: the model's."""
    return torch_dtype(kv_name(setting, dtype_name(dtype)))


def row_size(dim: int, dtype: torch.dtype) -> int:
    """Numbers of the type that a head's row takes: in int8 it ends with a scale of two bytes."""
    return row_bytes(dim, dtype_name(dtype)) // dtype.itemsize


def allocate_kv(
    layers: Sequence[KVLayerSpec],
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> list[tuple[Tensor, Tensor]]:
    """One (keys, values) pair a layer, each zeros [num_blocks, block_size, num_heads, row_size].

    Zeros, because a kernel may read a slot that it then masks, and stray NaNs pass through masks.
    """

    def zeros(layer: KVLayerSpec, dim: int) -> Tensor:
        shape = (num_blocks, block_size, layer.num_heads, row_size(dim, dtype))
        return _zeros(shape, dtype, device)

    return [(zeros(layer, layer.key_dim), zeros(layer, layer.value_dim)) for layer in layers]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = zero_pages(math.prod(shape) * dtype.itemsize)
    return torch.from_numpy(pages).view(dtype).view(shape)
