"""Products of 65 to 128 rows by weights in FP8 on Hopper: tiles whose k several programs share.

Floor: the bytes of W, or twice the tensor cores' 16-bit rate; at 128 rows both take about as long.
The library has tiles of 128 by 128 there, of which a weight with 4,096 rows has 32, for 132
multiprocessors. Here they are 64 wide, and programs share a tile's k until all multiprocessors have
one; whoever is last adds the parts up, in their order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from quire.kernels.operands import Fp8Rows
from quire.kernels.triton.sharing import arrive
from quire.kernels.triton.tuning import SplitConfig
from quire.kernels.triton.workspace import NUM_COUNTERS, NUM_PARTIALS, workspace

BLOCK_K = 128  # bytes: what the copy engine fetches at once


def split_gemm(
    x: Fp8Rows, codes: Tensor, scale: Tensor, bias: Tensor | None, way: SplitConfig
) -> Tensor:
    """x [T, K] by codes [N, K], both with a scale for each row → bfloat16 [T, N]."""
    (m, k), n = x.codes.shape, len(codes)
    rows, tiles = triton.cdiv(m, way.block_m), triton.cdiv(n, way.block_n)
    space = workspace(codes.device)
    assert rows * tiles <= NUM_COUNTERS
    assert rows * tiles * way.split * way.block_m * way.block_n <= NUM_PARTIALS
    out = torch.empty(m, n, dtype=torch.bfloat16, device=codes.device)
    split_gemm_kernel[(tiles * way.split, rows)](
        TensorDescriptor.from_tensor(x.codes, [way.block_m, BLOCK_K]),
        TensorDescriptor.from_tensor(codes, [way.block_n, BLOCK_K]),
        x.scale, scale, bias, out, space.partials, space.counters, m, n, k,
        BLOCK_M=way.block_m, BLOCK_N=way.block_n, BLOCK_K=BLOCK_K, SPLIT=way.split,
        STAGES=way.stages, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["m"])
def split_gemm_kernel(
    x_desc, w_desc, x_scale_ptr, w_scale_ptr, bias_ptr, out_ptr, partial_ptr, counter_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """x [m, k], w [n, k] → out [m, n]; programs (tiles of w · SPLIT, tiles of x)."""
    column, part, row = tl.program_id(0) // SPLIT, tl.program_id(0) % SPLIT, tl.program_id(1)
    steps = tl.cdiv(k, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in tl.range(part * steps // SPLIT, (part + 1) * steps // SPLIT, num_stages=STAGES):
        x = x_desc.load([row * BLOCK_M, step * BLOCK_K])
        acc = tl.dot(x, w_desc.load([column * BLOCK_N, step * BLOCK_K]).T, acc)
    is_last = True
    if SPLIT > 1:
        tile = row * (tl.num_programs(0) // SPLIT) + column
        inner = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        parts_ptr = partial_ptr + tile * (SPLIT * BLOCK_M * BLOCK_N) + inner
        tl.store(parts_ptr + part * (BLOCK_M * BLOCK_N), acc)
        is_last = arrive(counter_ptr + tile, SPLIT)
        if is_last:
            acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            for each in tl.static_range(SPLIT):
                acc += tl.load(parts_ptr + each * (BLOCK_M * BLOCK_N), cache_modifier=".cg")
    if is_last:
        i = row * BLOCK_M + tl.arange(0, BLOCK_M)
        j = column * BLOCK_N + tl.arange(0, BLOCK_N)
        acc *= tl.load(x_scale_ptr + i, mask=i < m, other=0.0)[:, None]
        acc *= tl.load(w_scale_ptr + j, mask=j < n, other=0.0)[None, :]
        if bias_ptr is not None:
            acc += tl.load(bias_ptr + j, mask=j < n, other=0.0).to(tl.float32)[None, :]
        inside = (i < m)[:, None] & (j < n)[None, :]
        tl.store(out_ptr + i[:, None] * n + j[None, :], acc.to(tl.bfloat16), mask=inside)
