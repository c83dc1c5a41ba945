"""Memory for whole tiles of rows of x: TMA is slow to load rows that do not exist.

For 300 rows in tiles of 256 a GEMM with weights of a byte each takes a third longer without.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor


def empty_rows(rows: int, *sizes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialised [rows, *sizes], with memory behind it: a power of two, or 256s above 64."""
    whole = triton.next_power_of_2(rows) if rows <= 64 else triton.cdiv(rows, 256) * 256
    return torch.empty(whole, *sizes, dtype=dtype, device=device)[:rows]


def whole_boxes(x: Tensor, block_m: int) -> Tensor:
    """Rows of x [M, K] with what lies behind them in their memory, up to whole tiles.

    What is computed from these must not be stored.
    """
    numbers = x.untyped_storage().nbytes() // x.itemsize - x.storage_offset()
    there = (numbers - x.shape[1]) // x.stride(0) + 1  # x may be columns of wider rows
    rows = min(triton.cdiv(len(x), block_m) * block_m, there)
    return x.as_strided((rows, x.shape[1]), x.stride())
