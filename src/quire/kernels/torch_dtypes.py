"""The names of `quire.dtypes` as PyTorch's data types, and back."""

from __future__ import annotations

import torch


def torch_dtype(name: str) -> torch.dtype:
    """The PyTorch data type of a name such as "bfloat16"."""
    found: torch.dtype = getattr(torch, name)
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a PyTorch data type in `quire.dtypes.DTYPES`."""
    return str(dtype).removeprefix("torch.")
