"""GEMM of more than 64 rows in FP8 with weights of four bits on Hopper.

Floor: twice the tensor cores' 16-bit rate; the bytes that pass through shared memory, where codes
are written and read again beside x, take some 30 % longer. A warpgroup unpacks codes to e4m3 into a
ring in shared memory, others multiply 64 outputs each by the columns of x beside them: unpacking
costs no time unless it takes longer than multiplying. Each program does several work items (tiles,
or parts of their k), so that it unpacks for the next one while one is stored. Tiles of 192, 320
and 384 rows are multiplied in two parts, since sizes are powers of two.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents

from quire.kernels.operands import Int4Words, RoundedRows
from quire.kernels.triton.gemm.int4_rows_config import Int4RowsConfig
from quire.kernels.triton.hopper.hopper_barriers import barriers, invalidate
from quire.kernels.triton.hopper.hopper_gemm import tile_layout, tiles_of
from quire.kernels.triton.hopper.hopper_gemm_ring import ring_of
from quire.kernels.triton.hopper.hopper_int4_multiply import multiply_items
from quire.kernels.triton.hopper.hopper_int4_ring import group_boxes, word_boxes
from quire.kernels.triton.hopper.hopper_int4_unpack import WORD_STAGES, unpack_items
from quire.kernels.triton.launch.row_memory import whole_boxes
from quire.kernels.triton.launch.workspace import NUM_COUNTERS, NUM_PARTIALS, workspace


def multiply_rows_int4(
    x: RoundedRows, weight: Int4Words, bias: Tensor | None, config: Int4RowsConfig,
    codebook: str | None = None,
) -> Tensor:  # fmt: skip
    """x [T, K] · weight [N, K]ᵀ → bfloat16 [T, N]. N and K: multiples of 16, as TMA requires.

    codebook: `byte_tables` of the weight's, in float16.
    """
    assert (codebook is None) == (weight.codebook is None)
    m, n, block_m, block_n = len(x.codes), len(weight.words), config.block_m, config.block_n
    tiles, space = triton.cdiv(n, block_n) * triton.cdiv(m, block_m), workspace(x.codes.device)
    assert config.split == 1 or 2 * tiles <= NUM_COUNTERS
    assert config.split == 1 or tiles * config.split * block_n * block_m <= NUM_PARTIALS
    codes, rest = whole_boxes(x.codes, block_m), config.rest
    shares = config.shares(m, space.num_sms)
    chunk = min(64, (rest or block_m) // shares)  # rows that are stored at a time
    out = torch.empty(m, n, dtype=torch.bfloat16, device=codes.device)
    hopper_int4_rows_kernel[(min(tiles * config.split, space.num_sms),)](
        tiles_of(codes, block_m - rest), tiles_of(codes, rest) if rest else None,
        word_boxes(weight.words, 1, block_n),
        group_boxes(weight.scale, 256 // weight.group, block_n),
        group_boxes(weight.zeros, 256 // weight.group, block_n),
        TensorDescriptor.from_tensor(out, [chunk, block_n], tile_layout(2)),
        x.scale, weight.row_scale, bias, space.partials, space.arrivals, m, n, weight.inputs,
        STAGES=config.stages, SPLIT=config.split, SHARES=shares, CODEBOOK=codebook,
        num_warps=config.warps, launch_pdl=True,
    )  # fmt: skip
    return out


@gluon.jit(do_not_specialize=["M"])
def hopper_int4_rows_kernel(
    x_desc, rest_desc, w_desc, scale_desc, zero_desc, out_desc, x_scale_ptr, row_scale_ptr,
    bias_ptr, partial_ptr, arrival_ptr, M, N, K, STAGES: gl.constexpr, SPLIT: gl.constexpr,
    SHARES: gl.constexpr, CODEBOOK: gl.constexpr,
):  # fmt: skip
    """x [M, K], words [N, K / 8] → out [M, N]. SPLIT work items share a tile's steps.

    W, its scales and the bias must not be written by the previous kernel. rest_desc: boxes of the
    tile's rows beyond a power of two, or None.
    """
    BLOCK_N: gl.constexpr = w_desc.block_type.shape[1]
    ROWS: gl.constexpr = x_desc.block_type.shape[0] + (
        0 if rest_desc is None else rest_desc.block_type.shape[0]
    )
    x_descs = _and((x_desc,), rest_desc)
    w_descs = _and((w_desc, scale_desc), zero_desc)
    xs, words, outs = _rings(x_descs, STAGES), _rings(w_descs, WORD_STAGES), ring_of(out_desc, 2)
    codes = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BLOCK_N, 128], x_desc.layout)
    full, empty = barriers(STAGES, 2), barriers(STAGES, 1)
    words_full = barriers(WORD_STAGES, 1)
    fence_async_shared()
    gdc_launch_dependents()
    ring, sizes = (codes, xs, full, empty), (M, N, K, ROWS, BLOCK_N, SPLIT)
    results = (out_desc, outs, x_scale_ptr, row_scale_ptr, bias_ptr, M, N)
    gl.warp_specialize(
        [
            (
                multiply_items,
                (ring, x_descs, results, partial_ptr, arrival_ptr, sizes, SPLIT, SHARES),
            ),
            (unpack_items, (ring, w_descs, words, words_full, row_scale_ptr, sizes, CODEBOOK)),
        ],
        [4],
        [112],  # registers of an unpacking thread
    )  # fmt: skip
    invalidate(words_full)
    invalidate(full)
    invalidate(empty)


@gluon.jit
def _and(parts, part):
    """Parts, and another one if it is there."""
    if part is None:
        return parts
    else:
        return parts + (part,)  # noqa: RUF005, gluon knows no other way


@gluon.jit
def _rings(descs, SLOTS: gl.constexpr):
    if len(descs) == 1:
        return (ring_of(descs[0], SLOTS),)
    elif len(descs) == 2:
        return ring_of(descs[0], SLOTS), ring_of(descs[1], SLOTS)
    else:
        return ring_of(descs[0], SLOTS), ring_of(descs[1], SLOTS), ring_of(descs[2], SLOTS)
