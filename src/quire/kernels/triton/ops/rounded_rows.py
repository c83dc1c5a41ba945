"""Rows of eight bits on a GPU: whether it multiplies them, and which ones a weight takes."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from quire.dtypes import FP8_CAPABILITY
from quire.kernels.operands import ResidualState, RoundedRows, Rows
from quire.kernels.triton.step.elementwise import rms_norm


def rows_for(x: ResidualState, taken: type[RoundedRows] | None) -> Rows:
    """The normalised rows [T, K] of a residual as the next weight takes them.

    What rounds them does not know the next weight, which may have other codes, or none: then the
    norm is computed again, without rounding.
    """
    assert x.rows is not None  # None only on CPUs
    if isinstance(x.rows, RoundedRows) and type(x.rows) is not taken:
        return rms_norm(x.residual, x.weight, x.eps)
    return x.rows


@functools.cache
def multiplies_fp8(device: torch.device) -> bool:
    """Whether the device's tensor cores multiply FP8; Triton's interpreter does."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= FP8_CAPABILITY


def has_aligned_sizes(codes: Tensor) -> bool:
    """Whether both sizes are multiples of 16, as PyTorch's scaled matmul and TMA require."""
    n, k = codes.shape
    return n % 16 == k % 16 == 0
