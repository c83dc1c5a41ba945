"""Tensors of a safetensors file where its bytes are mapped, as arrays or as PyTorch's.

Owns the mapping, and that pages which have been read do not count as this process's memory.
Importing this module does not import torch.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quire.array_types import Array
from quire.dtypes import SAFETENSORS
from quire.models.checkpoints.large_pages import ask_for_large_pages
from quire.models.checkpoints.safetensors_header import TensorEntry

if TYPE_CHECKING:
    from torch import Tensor


class MappedFile:
    """A file whose header has been checked. Raises OSError if it cannot be opened.

    large: of how many bytes, from its begin, large pages are asked for.
    """

    def __init__(self, path: Path, large: int = 0) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        ask_for_large_pages(self._map, min(large, len(self._map)))

    def array(self, entry: TensorEntry) -> Array:
        """A view, which keeps the mapping; what is written to it stays in this process."""
        dtype = np.dtype(SAFETENSORS[entry.dtype].array)
        if entry.num_items == 0:
            return np.empty(entry.shape, dtype)
        flat = np.frombuffer(self._map, dtype, entry.num_items, entry.offset)
        return flat.reshape(entry.shape)

    def tensor(self, entry: TensorEntry) -> Tensor:
        """A tensor of the file as a PyTorch tensor over the mapping."""
        import torch

        from quire.kernels.torch_dtypes import torch_dtype

        dtype = torch_dtype(SAFETENSORS[entry.dtype].name)
        return torch.from_numpy(self.array(entry)).view(dtype)

    def forget(self, entry: TensorEntry) -> None:
        """Give the pages of a tensor back; they are read again if it is used again."""
        start = -(-entry.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (entry.offset + entry.num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
        if length > 0:
            self._map.madvise(mmap.MADV_DONTNEED, start, length)
