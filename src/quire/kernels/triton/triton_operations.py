"""The table of operations that run in Triton on a GPU, by the field names of `dispatch.Kernels`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from quire.kernels.operands import ResidualState, RopeWriteKV, Rows
from quire.kernels.triton.ops.after_linear import add_norm, silu_rows
from quire.kernels.triton.ops.linear_table import GpuWeight, linear_of, pack, quantize
from quire.kernels.triton.ops.paged_attention import attention
from quire.kernels.triton.ops.rounded_rows import rows_for
from quire.kernels.triton.ops.skinny_gemm import (
    choose_rope_gemm_config,
    interleave_gate_up,
    skinny_gemm,
    skinny_gemm_norm,
    skinny_gemm_rope,
    skinny_gemm_silu,
)
from quire.kernels.triton.sampling.penalties import penalise
from quire.kernels.triton.step.elementwise import (
    embedding,
    gelu_and_mul,
    rms_norm,
    rms_norm_residual,
    silu_and_mul,
)
from quire.kernels.triton.step.rope_kernels import rope_angles, rope_write_kv
from quire.kernels.triton.step.step_kernels import build_inputs, finish_step, move

# Dtypes with float32's range: rows that are not yet divided by their rms may overflow float16.
_WIDE = {torch.bfloat16}
_ADDED = 512  # rows, from which on the library's GEMM adds to the residual, not the norm's kernel


def linear(x: Rows, weight: GpuWeight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear`: by the kernel that was measured to be faster."""
    return linear_of(weight).linear(x, weight, bias)


def normalized_rows(x: ResidualState) -> Tensor:
    """Twin of `reference.normalized_rows`."""
    if x.squares is None and isinstance(x.rows, Tensor):
        return x.rows
    return rms_norm(x.residual, x.weight, x.eps)


def rms_norm_linear(x: ResidualState, weight: GpuWeight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.rms_norm_linear`."""
    own = linear_of(weight)
    if x.squares is None:
        return own.linear(rows_for(x, own.rows_of(weight, len(x.residual))), weight, bias)
    if own.normalizes(x, weight):
        return skinny_gemm(x, weight, bias=bias)
    return own.linear(normalized_rows(x), weight, bias)


def qkv_rope_write_kv(
    x: ResidualState, weight: GpuWeight, bias: Tensor | None, rope: RopeWriteKV
) -> Tensor:
    """Twin of `reference.qkv_rope_write_kv`."""
    config = choose_rope_gemm_config(x, weight, rope)
    if config is not None:
        return skinny_gemm_rope(x, weight, rope, config, bias=bias)
    return rope_write_kv(*rope.operands(rms_norm_linear(x, weight, bias)))


def linear_silu(
    x: ResidualState, weight: GpuWeight, bias: Tensor | None, rounds: bool = True
) -> Rows:
    """Twin of `reference.linear_silu`, for interleaved gate and up rows."""
    own = linear_of(weight)
    rows = rows_for(x, own.rows_of(weight, len(x.residual)))
    if own.is_few(rows, weight):
        return skinny_gemm_silu(rows if x.squares is None else x, weight, bias=bias)
    out = rms_norm_linear(x, weight, bias)
    return silu_rows(out, rounds=own.rounds_next(out, weight) if rounds else None)


def linear_gelu(x: ResidualState, weight: GpuWeight, bias: Tensor | None) -> Rows:
    """Twin of `reference.linear_gelu`, for interleaved gate and up rows."""
    return gelu_and_mul(rms_norm_linear(x, weight, bias), interleaved=True)


def linear_add_norm(
    x: Rows,
    weight: GpuWeight,
    bias: Tensor | None,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
) -> ResidualState:
    """Twin of `reference.linear_add_norm`."""
    own = linear_of(weight)
    if own.is_few(x, weight) and x.dtype in _WIDE:
        return skinny_gemm_norm(x, weight, residual, norm_weight, eps, bias=bias)
    many = bias is None and len(residual) >= _ADDED
    if many and isinstance(x, Tensor) and isinstance(weight, Tensor):
        residual.addmm_(x, weight.t())  # saves the norm's kernel one tensor read and one written
        return ResidualState(residual, rms_norm(residual, norm_weight, eps), norm_weight, eps)
    out = own.linear(x, weight, bias)
    return add_norm(out, residual, norm_weight, eps, rounds=own.rounds_next(out, weight))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "rms_norm": rms_norm,
    "rms_norm_residual": rms_norm_residual,
    "silu_and_mul": silu_and_mul,
    "gelu_and_mul": gelu_and_mul,
    "embedding": embedding,
    "rope_angles": rope_angles,
    "rope_write_kv": rope_write_kv,
    "attention": attention,
    "quantize": quantize,
    "pack": pack,
    "linear": linear,
    "build_inputs": build_inputs,
    "finish_step": finish_step,
    "move": move,
    "penalise": penalise,
    "normalized_rows": normalized_rows,
    "order_gate_up": interleave_gate_up,
    "rms_norm_linear": rms_norm_linear,
    "qkv_rope_write_kv": qkv_rope_write_kv,
    "linear_silu": linear_silu,
    "linear_gelu": linear_gelu,
    "linear_add_norm": linear_add_norm,
}
