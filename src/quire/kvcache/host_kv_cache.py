"""Keys and values on the host, in memory that the system hands out as it is written. No torch."""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Sequence

import msgspec
import numpy as np

from quire.array_types import Bytes
from quire.core.layer_spec import KVLayerSpec
from quire.dtypes import NATIVE_DTYPES
from quire.kvcache.kv_sizes import layer_bytes


def zero_pages(num_bytes: int) -> Bytes:
    """Zeros as pages that the system only hands out when they are first written.

    Small pages: of huge ones, which NumPy asks for, each layer would take two with a first token.
    Raises MemoryError.
    """
    try:
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{num_bytes} bytes of keys and values") from error
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a system without huge pages does not know of them
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.uint8)


class HostCache(msgspec.Struct, frozen=True):
    """A KV cache for compiled code: of each layer the addresses of keys and of values.

    Both lie as [blocks, block_size, kv_heads, a row of numbers]. dtype: `Dtype` in quire_cpu.h.
    """

    layers: list[tuple[int, int]]
    block_size: int
    dtype: int
    pages: list[Bytes]  # the memory

    @classmethod
    def allocate(
        cls, layers: Sequence[KVLayerSpec], num_blocks: int, block_size: int, dtype: str
    ) -> HostCache:
        """Zeros: a kernel may read a slot that it then masks, and stray NaNs pass through masks.

        dtype: of the stored numbers, by PyTorch's name. Raises MemoryError.
        """
        num_slots = num_blocks * block_size
        pages = [
            zero_pages(num_slots * num_bytes)
            for layer in layers
            for num_bytes in layer_bytes(layer, dtype)
        ]
        addresses = [each.ctypes.data for each in pages]
        pairs = list(zip(addresses[::2], addresses[1::2], strict=True))
        return cls(pairs, block_size, NATIVE_DTYPES[dtype], pages)
