"""The operations that run in Triton on a GPU, by the names of `dispatch`'s table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.triton.attention import attention
from quire.kernels.triton.elementwise import rms_norm, rms_norm_residual, silu_and_mul
from quire.kernels.triton.rotary import rotary, write_kv
from quire.kernels.triton.skinny_gemm import MAX_ROWS, skinny_gemm


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear`: few rows by `skinny_gemm`, others and float32 by the library."""
    if 0 < len(x) <= MAX_ROWS and x.dtype in (torch.bfloat16, torch.float16) and x.stride(1) == 1:
        return skinny_gemm(x, weight, bias=bias)
    return reference.linear(x, weight, bias)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "rms_norm": rms_norm,
    "rms_norm_residual": rms_norm_residual,
    "silu_and_mul": silu_and_mul,
    "rotary": rotary,
    "write_kv": write_kv,
    "attention": attention,
    "linear": linear,
}
