"""Operations whose results do not depend on what else is in the batch, bit for bit.

What depends on the batch elsewhere: the number of rows chooses a product's kernel and how its sums
are split, a step's load chooses how a request's keys are shared among programs, and a token has
another kernel as part of a prompt than as the last of an answer, which tells when a request was
preempted. Here every product adds its terms in the order of k, and every token, of a prompt or of
an answer, has the kernel of prompts. Norms, SiLU, rotation and sampling work row by row anyway.
(What makes results vary: H. He et al., "Defeating Nondeterminism in LLM Inference", 2025.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.kernels.layout import BatchLayout
from quire.kernels.operands import Rows
from quire.kernels.triton.attention import Plan, make_plan, prefill_attention
from quire.kernels.triton.attention_tuning import prefill_config
from quire.kernels.triton.elementwise import quantize_rows
from quire.kernels.triton.skinny_gemm import multiplies_fp8
from quire.kernels.triton.workspace import workspace


@dataclass(frozen=True, slots=True)
class Tile:
    """How a product is cut. None of it changes the order in which a result's terms are added."""

    block_m: int
    block_n: int
    warps: int
    stages: int


_STEP = 128  # bytes of a row of x; float32 has 256
_FLOAT32 = Tile(32, 64, 4, 2)  # multiplied without tensor cores, in as many registers
_BY_ROWS = {64: Tile(64, 64, 4, 5), 512: Tile(128, 128, 8, 3)}  # up to so many
_MANY = Tile(128, 256, 8, 3)
_TILES_IN_LINE = 8  # tiles of rows that share what of W is in the cache

# operations that treat each row, or the whole step, in one way
_BY_ROW = {
    "rms_norm", "rms_norm_residual", "silu_and_mul", "rotary_angles", "rotary_write_kv",
    "build_inputs", "finish_step",
}  # fmt: skip


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear`: x [T, K], weight [N, K] → [T, N].

    The tensor cores' products of 64 rows take their terms 16 at a time in the order of k, whatever
    the tile, so a tile may be chosen by the number of rows.
    """
    return _product(x, None, weight, None, bias, x.new_empty(len(x), len(weight)))


def linear_fp8(x: Rows, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear_fp8`: x [T, K], codes [N, K] → [T, N].

    Where the GPU multiplies FP8 by FP8, each row of x is rounded with a scale of its own, however
    many there are; else codes are widened.
    """
    assert isinstance(x, Tensor)  # nothing in front of a product rounds what it leaves
    out = x.new_empty(len(x), len(codes))
    if len(x) == 0 or x.dtype == torch.float32 or not multiplies_fp8(x.device):
        return _product(x, None, codes, scale, bias, out)
    rows = quantize_rows(x)
    return _product(rows.codes, rows.scale, codes, scale, bias, out)


def _product(
    x: Tensor,
    x_scale: Tensor | None,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
) -> Tensor:
    """The kernel. x_scale [T, 1], scale [N]: of what is FP8."""
    (num_rows, k), n = x.shape, len(weight)
    assert x.stride(1) == weight.stride(1) == 1
    if num_rows == 0:
        return out
    tile = _tile(x)
    block_k = max(64, _STEP // x.itemsize)
    tiles = triton.cdiv(num_rows, tile.block_m) * triton.cdiv(n, tile.block_n)
    tile_gemm_kernel[(tiles,)](
        x, x_scale, weight, scale, bias, out, num_rows, n, k,
        x.stride(0), weight.stride(0), out.stride(0),
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=block_k, IN_LINE=_TILES_IN_LINE,
        EVEN_K=k % block_k == 0, HAS_BIAS=bias is not None,
        X_SCALED=x_scale is not None, W_SCALED=scale is not None,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return out


def _tile(x: Tensor) -> Tile:
    """The choice for x's rows, with as many stages as shared memory holds."""
    if x.dtype == torch.float32:
        return _FLOAT32
    tile = next((tile for most, tile in _BY_ROWS.items() if len(x) <= most), _MANY)
    stage = (tile.block_m + tile.block_n) * _STEP
    return replace(tile, stages=min(tile.stages, workspace(x.device).shared_memory // stage))


@triton.jit(do_not_specialize=["M"])
def tile_gemm_kernel(
    x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, bias_ptr, out_ptr, M, N, K,
    stride_x, stride_w, stride_out,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IN_LINE: tl.constexpr,
    EVEN_K: tl.constexpr, HAS_BIAS: tl.constexpr, X_SCALED: tl.constexpr, W_SCALED: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """x [M, K], w [N, K] → out [M, N]; a program has one tile and all of K. X_SCALED, W_SCALED:
    which of them are FP8; w alone is widened."""
    m_tile, n_tile = _place(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), IN_LINE)
    rows = m_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + (rows % M).to(tl.int64)[:, None] * stride_x + ks[None, :]
    w_ptrs = w_ptr + (columns % N).to(tl.int64)[:, None] * stride_w + ks[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        if EVEN_K:
            x, w = tl.load(x_ptrs + start), tl.load(w_ptrs + start)
        else:
            inside = (ks < K - start)[None, :]
            x = tl.load(x_ptrs + start, mask=inside, other=0.0)
            w = tl.load(w_ptrs + start, mask=inside, other=0.0)
        if W_SCALED and not X_SCALED:
            w = w.to(x.dtype)
        acc = tl.dot(x, tl.trans(w), acc, input_precision=PRECISION)
    if X_SCALED:
        acc *= tl.load(x_scale_ptr + rows, mask=rows < M, other=0.0)[:, None]
    if W_SCALED:
        acc *= tl.load(w_scale_ptr + columns, mask=columns < N, other=0.0)[None, :]
    if HAS_BIAS:
        acc += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    place = rows.to(tl.int64)[:, None] * stride_out + columns[None, :]
    there = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def _place(program, m_tiles, n_tiles, IN_LINE: tl.constexpr):
    """Tiles in an order by which neighbours share rows of x and of W."""
    line = program // (IN_LINE * n_tiles)
    height = tl.minimum(m_tiles - line * IN_LINE, IN_LINE)
    rest = program % (IN_LINE * n_tiles)
    return line * IN_LINE + rest % height, rest // height


def attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    """Twin of `reference.attention`, with the kernel of prompts for every token."""
    config = prefill_config(k_cache, query.shape[1] // k_cache.shape[2])
    window = sliding_window or 0
    tile = config.rows // (query.shape[1] // k_cache.shape[2])

    def plan() -> Plan:
        return make_plan(layout, window, None, tile, k_cache.shape[2])

    out = torch.zeros_like(query)  # also of padding, so that nothing downstream meets a NaN
    shared = layout.once(("invariant attention", window, tile), plan)
    prefill_attention(query, k_cache, v_cache, layout, shared, scale, window, out, config)
    return out


def invariant(operations: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The operations of a device, without those that depend on the batch."""
    by_row = {op: function for op, function in operations.items() if op in _BY_ROW}
    return by_row | {"linear": linear, "linear_fp8": linear_fp8, "attention": attention}
