"""Batch-invariant GEMM: results do not depend on the number of rows, bit for bit.

One program adds each result's terms in the order of k, as a tensor core adds them: 16 at a time, or
32 in eight bits, whatever the tile and whichever operand is which. So the kernel may be chosen by
the number of rows: Hopper has one for few rows, bound by loading W, and one for many. Other GPUs
and shapes use `tile_gemm_kernel`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.kernels.triton.gemm.skinny_gemm_kernel import fp8_to_float
from quire.kernels.triton.launch.gemm_operands import GemmOperands
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile sizes and pipeline stages of a batch-invariant GEMM.

    They do not change the order in which a result's terms are added.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int


_STEP = 128  # bytes of a row of x; float32 has 256
_FLOAT32 = Tile(32, 64, 4, 2)  # without tensor cores, so sums take more registers
_BY_ROWS = {64: Tile(64, 64, 4, 5), 512: Tile(128, 128, 8, 3)}  # by the largest number of rows
_MANY = Tile(128, 256, 8, 3)
_TILES_IN_LINE = 8  # tiles of rows that share W's columns in the L2 cache
_FEW = 128  # rows, up to which Hopper is bound by loading W


def invariant_gemm(
    x: Tensor,
    x_scale: Tensor | None,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """x [T, K] · weight [N, K]ᵀ + bias → [T, N] of dtype.

    x_scale float32 [T, 1], scale float32 [N]: of operands in eight bits, else None. A weight in
    uint8 is FP8 that the GPU's tensor cores do not know.
    """
    out = torch.empty(len(x), len(weight), dtype=dtype, device=x.device)
    assert x.stride(1) == weight.stride(1) == 1
    if len(x) == 0:
        return out
    operands = GemmOperands(x, x_scale, weight, scale, bias, out)
    if _hopper_serves(x, weight, out):
        _by_hopper(operands)
    else:
        _by_tiles(operands)
    return out


def _hopper_serves(x: Tensor, weight: Tensor, out: Tensor) -> bool:
    """Whether Hopper's kernels serve these operands, whatever the number of rows."""
    steps = (weight.stride(0) * weight.itemsize | len(weight) * out.itemsize) % 16 == 0
    same = x.dtype == weight.dtype and x.itemsize <= out.itemsize == 2
    return same and steps and weight.data_ptr() % 16 == 0 and has_hopper_gpu(x.device)


def _by_hopper(operands: GemmOperands) -> None:
    from quire.kernels.triton.hopper.hopper_fp8_gemm import multiply_few
    from quire.kernels.triton.hopper.hopper_ordered_gemm import multiply_many

    x = operands.x
    if (x.stride(0) * x.itemsize | x.data_ptr()) % 16:  # TMA needs 16-byte alignment
        operands = operands._replace(x=x.clone(memory_format=torch.contiguous_format))
    multiply = multiply_few if len(x) <= _FEW else multiply_many
    multiply(operands)


def _by_tiles(operands: GemmOperands) -> None:
    x, x_scale, weight, scale, bias, out = operands
    (num_rows, k), n = x.shape, len(weight)
    tile = _tile(x)
    block_k = max(64, _STEP // x.itemsize)
    tiles = triton.cdiv(num_rows, tile.block_m) * triton.cdiv(n, tile.block_n)
    tile_gemm_kernel[(tiles,)](
        *operands, num_rows, n, k,
        x.stride(0), weight.stride(0), out.stride(0),
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=block_k, IN_LINE=_TILES_IN_LINE,
        EVEN_K=k % block_k == 0, HAS_BIAS=bias is not None,
        X_SCALED=x_scale is not None, W_SCALED=scale is not None,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip


def _tile(x: Tensor) -> Tile:
    """The tile for x's rows, with as many stages as fit in shared memory."""
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
    """x [M, K] · w [N, K]ᵀ → out [M, N]; one program for each tile, over all of K.

    X_SCALED, W_SCALED: whether x and w are in eight bits. If only w is, it becomes x's dtype. w in
    uint8 is FP8 that the GPU does not know.
    """
    m_tile, n_tile = _tile_of_program(
        tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), IN_LINE
    )
    rows = m_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + (rows % M).to(tl.int64)[:, None] * stride_x + ks[None, :]
    w_ptrs = w_ptr + (columns % N).to(tl.int64)[:, None] * stride_w + ks[None, :]
    BYTES: tl.constexpr = x_ptr.dtype.element_ty == tl.int8
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if BYTES else tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        if EVEN_K:
            x, w = tl.load(x_ptrs + start), tl.load(w_ptrs + start)
        else:
            inside = (ks < K - start)[None, :]
            x = tl.load(x_ptrs + start, mask=inside, other=0.0)
            w = tl.load(w_ptrs + start, mask=inside, other=0.0)
        if w.dtype == tl.uint8:
            w = fp8_to_float(w, x.dtype)
        elif W_SCALED and not X_SCALED:
            w = w.to(x.dtype)
        acc = tl.dot(x, tl.trans(w), acc, input_precision=PRECISION, out_dtype=acc.dtype)
    acc = acc.to(tl.float32)
    if X_SCALED:
        acc *= tl.load(x_scale_ptr + rows, mask=rows < M, other=0.0)[:, None]
    if W_SCALED:
        by = tl.load(w_scale_ptr + columns, mask=columns < N, other=0.0)
        acc *= (by * 256.0 if w_ptr.dtype.element_ty == tl.uint8 else by)[None, :]
    if HAS_BIAS:
        acc += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    offset = rows.to(tl.int64)[:, None] * stride_out + columns[None, :]
    there = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(out_ptr + offset, acc.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def _tile_of_program(program, m_tiles, n_tiles, IN_LINE: tl.constexpr):
    """A program's tile (row, column); adjacent programs share rows of x and of W."""
    line = program // (IN_LINE * n_tiles)
    height = tl.minimum(m_tiles - line * IN_LINE, IN_LINE)
    rest = program % (IN_LINE * n_tiles)
    return line * IN_LINE + rest % height, rest // height
