"""The operations that run in Triton on a GPU, by the names of `dispatch`'s table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.triton.attention import attention
from quire.kernels.triton.elementwise import rms_norm, rms_norm_residual, silu_and_mul
from quire.kernels.triton.fp8 import linear_fp8
from quire.kernels.triton.rotary import rotary_angles, rotary_write_kv
from quire.kernels.triton.skinny_gemm import MAX_ROWS, skinny_gemm
from quire.kernels.triton.step import build_inputs, finish_step
from quire.kernels.triton.tuning import library_is_faster
from quire.kernels.triton.workspace import workspace


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear`: by `skinny_gemm` where that was measured to be faster."""
    few = 0 < len(x) <= MAX_ROWS
    if not few or x.dtype not in (torch.bfloat16, torch.float16) or x.stride(1) != 1:
        return reference.linear(x, weight, bias)
    n, k = weight.shape
    if library_is_faster(len(x), n, k, weight.dtype.itemsize, workspace(x.device).num_sms):
        return reference.linear(x, weight, bias)
    return skinny_gemm(x, weight, bias=bias)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "rms_norm": rms_norm,
    "rms_norm_residual": rms_norm_residual,
    "silu_and_mul": silu_and_mul,
    "rotary_angles": rotary_angles,
    "rotary_write_kv": rotary_write_kv,
    "attention": attention,
    "linear": linear,
    "linear_fp8": linear_fp8,
    "build_inputs": build_inputs,
    "finish_step": finish_step,
}
