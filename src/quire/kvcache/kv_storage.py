"""Tensors of the KV cache. Owns their allocation, not who holds which block."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from quire.core.layer_spec import KVLayerSpec
from quire.kernels.torch_dtypes import dtype_name, torch_dtype
from quire.kvcache.host_kv_cache import zero_pages
from quire.kvcache.kv_sizes import row_bytes

# types of devices whose kernels read a row in int8 and its scale from one piece of memory
_WITH_SCALES_IN_ROWS = frozenset({"cpu"})


def allocate_kv(
    layers: Sequence[KVLayerSpec],
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> list[tuple[Tensor, ...]]:
    """Keys and values of each layer, each zeros [num_blocks, block_size, num_heads, head_dim].

    dtype: of layers that have none of their own.

    In int8 each row of a head has a scale: on a CPU its last two bytes, elsewhere in a tensor of
    its own, bfloat16 [num_blocks, block_size, num_heads], for keys and for values after both.

    Zeros, because a kernel may read a slot that it then masks, and stray NaNs pass through masks.
    """

    def cache_of(layer: KVLayerSpec) -> tuple[Tensor, ...]:
        own = dtype if layer.dtype is None else torch_dtype(layer.dtype)
        beside = own == torch.int8 and torch.device(device).type not in _WITH_SCALES_IN_ROWS
        slots, rows = (num_blocks, block_size, layer.num_heads), list[int]()
        for dim in (layer.key_dim, layer.value_dim):
            rows.append(dim if beside else row_bytes(dim, dtype_name(own)) // own.itemsize)
        found = [_zeros((*slots, row), own, device) for row in rows]
        return (*found, *(_zeros(slots, torch.bfloat16, device) for _ in range(2 * beside)))

    return [cache_of(layer) for layer in layers]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = zero_pages(math.prod(shape) * dtype.itemsize)
    return torch.from_numpy(pages).view(dtype).view(shape)
