"""TMA descriptors of a cache of keys or values: boxes of some slots of one head."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


def cache_boxes(cache: Tensor, tile: int) -> TensorDescriptor:
    """A descriptor of cache [blocks, block size, Hkv, D] as [slots, Hkv · D].

    Boxes are [min(block size, tile), D].
    """
    num_blocks, block_size, num_kv_heads, head_dim = cache.shape
    rows, columns = num_blocks * block_size, num_kv_heads * head_dim
    return _boxes(cache.data_ptr(), cache.dtype, rows, columns, min(block_size, tile), head_dim)


@functools.lru_cache(maxsize=1024)
def _boxes(
    address: int, dtype: torch.dtype, rows: int, columns: int, box: int, head_dim: int
) -> TensorDescriptor:
    """Cached, since creating a descriptor takes longer than a launch."""
    return TensorDescriptor(
        _Address(address, dtype), [rows, columns], [columns, 1], [box, head_dim],
        gl.NVMMASharedLayout(min(128, head_dim * dtype.itemsize), 8 * dtype.itemsize, 2),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Address:
    """The part of a tensor that a descriptor reads, without a reference to its memory."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        """The address, under the name that tensors give it."""
        return self.address
