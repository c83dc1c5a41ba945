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
from quire.models.checkpoints.checkpoint import TensorEntry
from quire.models.checkpoints.large_pages import ask_for_large_pages

if TYPE_CHECKING:
    from torch import Tensor


# The format's names: an array's type, where NumPy has none that of its bits, and PyTorch's name.
_TYPES = {
    "F64": ("f8", "float64"), "F32": ("f4", "float32"), "F16": ("f2", "float16"),
    "BF16": ("u2", "bfloat16"), "I64": ("i8", "int64"), "I32": ("i4", "int32"),
    "I16": ("i2", "int16"), "I8": ("i1", "int8"), "U8": ("u1", "uint8"), "BOOL": ("?", "bool"),
    "F8_E4M3": ("u1", "float8_e4m3fn"),
}  # fmt: skip
FORMAT_NAMES = {theirs: name for name, (_, theirs) in _TYPES.items()}  # by PyTorch's


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
        dtype = np.dtype(_TYPES[entry.dtype][0])
        if entry.num_items == 0:
            return np.empty(entry.shape, dtype)
        flat = np.frombuffer(self._map, dtype, entry.num_items, entry.offset)
        return flat.reshape(entry.shape)

    def tensor(self, entry: TensorEntry) -> Tensor:
        """The same of PyTorch's."""
        import torch

        dtype: torch.dtype = getattr(torch, _TYPES[entry.dtype][1])
        return torch.from_numpy(self.array(entry)).view(dtype)

    def forget(self, entry: TensorEntry) -> None:
        """Give the pages of a tensor back; they are read again if it is used again."""
        start = -(-entry.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (entry.offset + entry.num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
        if length > 0:
            self._map.madvise(mmap.MADV_DONTNEED, start, length)
