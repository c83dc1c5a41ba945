"""Linear layers for few rows, with fused norm, bias, SiLU, residual or RoPE.

Few are up to 64, with four-bit weights up to 512.

Floor: the bytes of W over the memory bandwidth; x, out and partial results are a few percent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels.operands import ResidualState, RopeWriteKV
from quire.kernels.triton.ops.gpu_linear import Config
from quire.kernels.triton.ops.linear_table import GpuWeight, linear_of


def skinny_gemm(
    x: Tensor | ResidualState,
    weight: GpuWeight,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    config: Config | None = None,
    pdl: bool | None = None,
) -> Tensor:
    """x · weightᵀ + bias + residual: x [M, K], weight [N, K] → [M, N]; M <= 64, in 4 bits 512.

    With a weight in FP8 or INT8, x is rounded to it, too, where the GPU multiplies such codes. A
    `ResidualState` x with squares stands for its normalized rows. config: chosen by the shape if
    None. pdl: launch before the previous kernel has ended; None: where the GPU can.
    """
    method = linear_of(weight)
    return method.launch(x, weight, bias, residual=residual, config=config, pdl=pdl).out


def skinny_gemm_silu(
    x: Tensor | ResidualState,
    weight: GpuWeight,
    *,
    bias: Tensor | None = None,
    config: Config | None = None,
    pdl: bool | None = None,
) -> Tensor:
    """silu(gate) · up, with gate and up rows interleaved in W [N, K]: [M, N / 2]."""
    return linear_of(weight).launch(x, weight, bias, silu=True, config=config, pdl=pdl).out


def skinny_gemm_norm(
    x: Tensor | ResidualState,
    weight: GpuWeight,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
    *,
    bias: Tensor | None = None,
    config: Config | None = None,
    pdl: bool | None = None,
) -> ResidualState:
    """residual + x · weightᵀ with the norm that follows: residual [M, N], norm_weight [N].

    The kernel stores the sum, the sum times the norm's weight and, for each of its tiles of
    columns, the sums of squares. So the norm costs no launch and no pass over memory.
    """
    found = linear_of(weight).launch(
        x, weight, bias, residual=residual, norm_weight=norm_weight, eps=eps, config=config,
        pdl=pdl,
    )  # fmt: skip
    return ResidualState(found.out, found.normalized, norm_weight, eps, found.squares)


def skinny_gemm_rope(
    x: Tensor | ResidualState,
    weight: GpuWeight,
    rope: RopeWriteKV,
    config: Config,
    *,
    bias: Tensor | None = None,
    pdl: bool | None = None,
) -> Tensor:
    """QKV projection with RoPE and KV write: queries [M, Hq, D].

    config: one whose tiles contain whole heads, or pairs, as `choose_rope_gemm_config` returns.
    """
    out = linear_of(weight).launch(x, weight, bias, rope=rope, config=config, pdl=pdl).out
    return out.view(len(out), -1, rope.head_dim)


def interleave_gate_up(weight: Tensor, _: torch.dtype | None = None) -> Tensor:
    """W [2I, ...] of all gate rows, then all up rows, as gate, up, gate, up, ..."""
    gate, up = weight.chunk(2)
    return torch.stack([gate, up], dim=1).flatten(0, 1)


def choose_rope_gemm_config(
    x: ResidualState, weight: GpuWeight, rope: RopeWriteKV
) -> Config | None:
    """The config of `skinny_gemm_rope` for these operands, or None if it does not serve them."""
    rows = x.rows
    if x.squares is None or not isinstance(rows, Tensor) or len(rows) == 0:
        return None
    own = linear_of(weight)
    if rope.cos.shape[1] != rope.head_dim or not own.normalizes(x, weight):  # or partial RoPE
        return None
    return own.rope_config(x, weight, rope)
