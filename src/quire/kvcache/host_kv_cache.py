"""Keys and values on the host, in memory that the system hands out as it is written. No torch."""

from __future__ import annotations

import contextlib
import mmap
import sys
from dataclasses import dataclass

import numpy as np

from quire.array_types import Bytes
from quire.kvcache.kv_sizes import row_bytes

# Of what is kept, by PyTorch's names: `Dtype` in quire_cpu.h.
_FORMS = {"float32": 0, "bfloat16": 1, "float8_e4m3fn": 2, "int8": 3}


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


@dataclass(frozen=True, slots=True)
class HostCache:
    """A KV cache for compiled code: of each layer the addresses of keys and of values.

    Both lie as [blocks, block_size, kv_heads, a row of numbers]. form: `Dtype` in quire_cpu.h.
    """

    layers: list[tuple[int, int]]
    block_size: int
    form: int
    pages: list[Bytes]  # the memory

    @classmethod
    def allocate(
        cls,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: str,
    ) -> HostCache:
        """Zeros: a kernel may read a slot that it then masks, and stray NaNs pass through masks.

        dtype: of what is kept, by PyTorch's name. Raises MemoryError.
        """
        num_bytes = num_blocks * block_size * num_kv_heads * row_bytes(head_dim, dtype)
        pages = [zero_pages(num_bytes) for _ in range(2 * num_layers)]
        places = [each.ctypes.data for each in pages]
        pairs = list(zip(places[::2], places[1::2], strict=True))
        return cls(pairs, block_size, _FORMS[dtype], pages)
