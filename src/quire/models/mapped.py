"""Tensors of a safetensors file as views of its memory-mapped bytes.

Owns the mapping, and that pages which have been read do not count as this process's memory.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import torch
from torch import Tensor

from quire.models.checkpoint import TensorEntry
from quire.models.large_pages import ask_for_large_pages

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn,
}  # fmt: skip


class MappedFile:
    """A file whose header has been checked. Raises OSError if it cannot be opened.

    large: of how many bytes, from its begin, large pages are asked for.
    """

    def __init__(self, path: Path, large: int = 0) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        ask_for_large_pages(self._map, min(large, len(self._map)))

    def tensor(self, entry: TensorEntry) -> Tensor:
        """A view, which keeps the mapping; what is written to it stays in this process."""
        dtype = DTYPES[entry.dtype]
        if entry.num_items == 0:
            return torch.empty(entry.shape, dtype=dtype)
        flat = torch.frombuffer(self._map, dtype=dtype, count=entry.num_items, offset=entry.offset)
        return flat.view(entry.shape)

    def forget(self, entry: TensorEntry) -> None:
        """Give the pages of a tensor back; they are read again if it is used again."""
        start = -(-entry.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (entry.offset + entry.num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
        if length > 0:
            self._map.madvise(mmap.MADV_DONTNEED, start, length)
