"""Where the KV cache's bytes lie. Owns allocation and its arithmetic, not who holds which block."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys

import torch
from torch import Tensor


def kv_dtype(setting: str, dtype: torch.dtype) -> torch.dtype:
    """The type of keys and values by the setting `kv_cache_dtype`; dtype: the model's."""
    return {"auto": dtype, "int8": torch.int8}.get(setting, torch.float8_e4m3fn)


def row_size(head_dim: int, dtype: torch.dtype) -> int:
    """Numbers of the type that a head's row takes: in int8 it ends with a scale of two bytes."""
    return head_dim + 2 if dtype == torch.int8 else head_dim


def block_bytes(
    num_layers: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> int:
    """Bytes of one block: keys and values of block_size tokens in all layers."""
    row = row_size(head_dim, dtype) * dtype.itemsize
    return 2 * num_layers * block_size * num_kv_heads * row


def allocate_kv(
    num_layers: int,
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> list[tuple[Tensor, Tensor]]:
    """One (keys, values) pair a layer, each zeros [num_blocks, block_size, num_kv_heads, row_size].

    Zeros, because a kernel may read a slot that it then masks, and stray NaNs pass through masks.
    """
    shape = (num_blocks, block_size, num_kv_heads, row_size(head_dim, dtype))
    return [(_zeros(shape, dtype, device), _zeros(shape, dtype, device)) for _ in range(num_layers)]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Zeros; on the CPU as pages that the system only hands out when they are first written.

    Small pages: of huge ones, which NumPy asks for, each layer would take two with a first token.
    """
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{num_bytes} bytes of keys and values") from error
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a system without huge pages does not know of them
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype).view(shape)
