"""The kernel behind `skinny_gemm`: out = x · Wᵀ for a few rows of x, bound by the reading of W.

Tokens are too few to fill a tensor core's 64 rows, so the weight takes that side: each program
multiplies tiles [BLOCK_N, BLOCK_K] of W by xᵀ [BLOCK_K, BLOCK_M], and W is read once and in one
stream. Units of work are the k-steps of W's tiles, partitioned as in launch/work_partition.py.

W may be FP8 or INT8 with a scale for each of its rows (WEIGHT_FORMAT "codes"). Each k-step then
rounds its part of x to W's type with scales of its own, so that nothing has to read x beforehand,
and tensor cores multiply codes by codes. Their sums (of FP8 they have few digits) are scaled and
added in float32 after each step. Where tensor cores have no FP8, W comes as bytes (WEIGHT_FORMAT
"bytes") and is converted, and x stays as it is. Four-bit codes with scales of groups (WEIGHT_FORMAT
"words") become numbers of x's type as well, see word_gemm.py.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire.kernels.triton.gemm.rope_epilogue import load_angles, store_rope_heads
from quire.kernels.triton.gemm.word_gemm import multiply_words
from quire.kernels.triton.launch.work_partition import arrive, owner, run_begin, slot
from quire.kernels.triton.step.row_rounding import to_codes


@triton.jit(do_not_specialize=["M", "num_squares"])
def skinny_gemm_kernel(
    x_ptr, w_ptr, w_desc, w_scale_ptr, group_scale_ptr, zero_ptr, table_ptr,
    out_ptr, bias_ptr, residual_ptr,
    norm_ptr, normalized_ptr, squares_out_ptr, squares_ptr,
    cos_ptr, sin_ptr, query_norm_ptr, key_norm_ptr, k_cache_ptr, v_cache_ptr,
    k_scale_ptr, v_scale_ptr, slots_ptr, partial_ptr, counter_ptr,
    M, N, K, num_squares, eps,
    head_eps, stride_angles, stride_block, stride_slot, stride_kv_head,
    stride_x, stride_w, stride_out,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, SPLIT: tl.constexpr, MAX_PARTS: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_NORM: tl.constexpr,
    HAS_SQUARES: tl.constexpr, SILU: tl.constexpr, PRECISION: tl.constexpr,
    TMA: tl.constexpr, PDL: tl.constexpr, WEIGHT_FORMAT: tl.constexpr, GROUP: tl.constexpr,
    ONE_ROW: tl.constexpr, HEAD_DIM: tl.constexpr, KV_HEADS: tl.constexpr,
    CACHE_BLOCK: tl.constexpr,
):  # fmt: skip
    """x [M, K], w [N, K] → out [M, N], or [M, N / 2] with SILU. See `skinny_gemm`.

    SPLIT: so many programs share each tile; 0 where runs end anywhere. HEAD_DIM > 0: the results
    are heads; out gets the queries and the caches the rest, see `store_rope_heads`.
    """
    EARLY: tl.constexpr = BLOCK_M <= 16  # else the epilogue's operands take too many registers
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    k_tiles = tl.cdiv(K, BLOCK_K)
    num_units = tl.cdiv(N, BLOCK_N) * k_tiles
    if SPLIT > 0:  # without divisions, which take as long as a load
        begin, end = program * k_tiles // SPLIT, (program + 1) * k_tiles // SPLIT
        first_tile = program // SPLIT
        last_tile = first_tile
    else:
        begin = run_begin(program, num_programs, num_units)
        end = run_begin(program + 1, num_programs, num_units)
        first_tile, last_tile = begin // k_tiles, (end - 1) // k_tiles
    if PDL:  # from here on results of the previous kernel are read
        gdc_wait()
    for tile in range(first_tile, last_tile + 1):
        first_unit = tile * k_tiles
        if EARLY:
            operands = _load_epilogue_operands(
                tile, w_scale_ptr, bias_ptr, residual_ptr, norm_ptr, squares_ptr, num_squares,
                cos_ptr, sin_ptr, slots_ptr, M, N, stride_out, stride_angles, BLOCK_M, BLOCK_N,
                HAS_BIAS, HAS_RESIDUAL, HAS_NORM, HAS_SQUARES, SILU, HEAD_DIM, KV_HEADS,
            )  # fmt: skip
        k_begin, k_end = tl.maximum(begin - first_unit, 0), tl.minimum(end - first_unit, k_tiles)
        if WEIGHT_FORMAT == "words":
            acc = multiply_words(
                x_ptr, w_ptr, group_scale_ptr, zero_ptr, table_ptr, tile, k_begin, k_end, M, N, K,
                stride_x, stride_w, BLOCK_M, BLOCK_N, STAGES, EVEN_N, EVEN_K, GROUP, ONE_ROW,
            )  # fmt: skip
        else:
            acc = _multiply(
                x_ptr, w_ptr, w_desc, tile, k_begin, k_end, M, N, K, stride_x, stride_w, BLOCK_M,
                BLOCK_N, BLOCK_K, STAGES, EVEN_N, EVEN_K, PRECISION, TMA, WEIGHT_FORMAT,
            )  # fmt: skip
        if PDL:
            if first_unit + k_tiles >= end:  # only the epilogue is left
                gdc_launch_dependents()
        if SPLIT > 0:
            first, last = tile * SPLIT, tile * SPLIT + SPLIT - 1
        else:
            first = owner(first_unit, num_programs, num_units)
            last = owner(first_unit + k_tiles - 1, num_programs, num_units)
        complete = first == last
        if MAX_PARTS > 1:
            if first != last:
                mine = slot(program, first) * (BLOCK_N * BLOCK_M)
                tl.store(partial_ptr + mine + _tile_offsets(BLOCK_N, BLOCK_M), acc)
                complete = arrive(counter_ptr + tile, last - first + 1)
                if complete:
                    acc = _sum_parts(partial_ptr, first, last, BLOCK_N, BLOCK_M, MAX_PARTS)
        if complete:
            if not EARLY:
                operands = _load_epilogue_operands(
                    tile, w_scale_ptr, bias_ptr, residual_ptr, norm_ptr, squares_ptr, num_squares,
                    cos_ptr, sin_ptr, slots_ptr, M, N, stride_out, stride_angles, BLOCK_M, BLOCK_N,
                    HAS_BIAS, HAS_RESIDUAL, HAS_NORM, HAS_SQUARES, SILU, HEAD_DIM, KV_HEADS,
                )  # fmt: skip
            if HAS_SQUARES:
                by_row = _row_scale(operands[4], squares_ptr, num_squares, M, K, eps, BLOCK_M)
                acc *= by_row[None, :]
            acc = _scaled(acc, operands, HAS_BIAS, WEIGHT_FORMAT)
            if HEAD_DIM > 0:
                store_rope_heads(
                    tl.trans(acc), tile, operands[5], out_ptr, query_norm_ptr, key_norm_ptr,
                    k_cache_ptr, v_cache_ptr, k_scale_ptr, v_scale_ptr, M, N, head_eps,
                    stride_out, stride_block, stride_slot, stride_kv_head, HEAD_DIM, KV_HEADS,
                    CACHE_BLOCK,
                )  # fmt: skip
            else:
                _finish(
                    acc, tile, operands, out_ptr, normalized_ptr, squares_out_ptr, M, N, stride_out,
                    BLOCK_M, BLOCK_N, HAS_RESIDUAL, HAS_NORM, SILU,
                )  # fmt: skip


@triton.jit
def _multiply(
    x_ptr, w_ptr, w_desc, tile, k_begin, k_end, M, N, K, stride_x, stride_w,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
    TMA: tl.constexpr, WEIGHT_FORMAT: tl.constexpr,
):  # fmt: skip
    """Some k-steps of one tile: W [BLOCK_N, k] · xᵀ [k, BLOCK_M], float32."""
    rows = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    if not EVEN_N:
        rows = rows % N  # rows beyond N wrap: never stored
    tokens = tl.arange(0, BLOCK_M)
    ks = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + tokens[:, None] * stride_x + ks[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for k_tile in tl.range(k_begin, k_end, num_stages=STAGES):
        start = k_tile * BLOCK_K
        inside = (ks < K - start)[None, :]
        if TMA:  # gives zeros beyond K
            w = w_desc.load([tile * BLOCK_N, start])
        else:
            w_ptrs = w_ptr + rows.to(tl.int64)[:, None] * stride_w + ks[None, :] + start
            if EVEN_K:
                w = tl.load(w_ptrs, eviction_policy="evict_first")
            else:
                w = tl.load(w_ptrs, mask=inside, other=0.0, eviction_policy="evict_first")
        is_read = (tokens < M)[:, None]
        if not EVEN_K:
            is_read = is_read & inside
        x = tl.load(x_ptrs + start, mask=is_read, other=0.0)
        if WEIGHT_FORMAT == "codes":
            codes, scale = to_codes(x, w.dtype)
            acc += tl.dot(w, tl.trans(codes)).to(tl.float32) * scale[None, :]
        else:
            if WEIGHT_FORMAT == "bytes":
                w = fp8_to_float(w, x.dtype)
            acc = tl.dot(w, tl.trans(x), acc, input_precision=PRECISION)
    return acc


@triton.jit
def fp8_to_float(w, dtype: tl.constexpr):
    """Bytes of FP8 as 16-bit numbers, 256 times too small: the exponent's bias is 7, not 15.

    The carry of 0x7F + 1 fills the exponent, which makes that code NaN.
    """
    low = w & 0x7F
    low |= (low + 1) & 0x80
    bits = ((w & 0x80).to(tl.uint16) << 8) | (low.to(tl.uint16) << 7)
    return bits.to(tl.float16, bitcast=True).to(dtype)


@triton.jit
def _tile_offsets(BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr):
    return tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]


@triton.jit
def _sum_parts(
    partial_ptr, first, last,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, MAX_PARTS: tl.constexpr,
):  # fmt: skip
    """Sum of a tile's parts in the order of k, whichever program came last."""
    offsets = _tile_offsets(BLOCK_N, BLOCK_M)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for part in tl.static_range(MAX_PARTS):  # unrolled: the loads do not wait for each other
        source = partial_ptr + slot(first + part, first) * (BLOCK_N * BLOCK_M) + offsets
        there = tl.full([BLOCK_N, BLOCK_M], 1, tl.int1) & (first + part <= last)
        acc += tl.load(source, mask=there, other=0.0, cache_modifier=".cg")
    return acc


@triton.jit
def _load_squares(squares_ptr, start, num_squares, M, BLOCK_M: tl.constexpr):
    """64 of the sums of squares [num_squares, M], from row `start`."""
    tokens = tl.arange(0, BLOCK_M)
    stretch = start + tl.arange(0, 64)
    there = (stretch < num_squares)[:, None] & (tokens < M)[None, :]
    return tl.load(squares_ptr + stretch[:, None] * M + tokens[None, :], mask=there, other=0.0)


@triton.jit
def _row_scale(first, squares_ptr, num_squares, M, K, eps, BLOCK_M: tl.constexpr):
    """1 / rms of each row of x from its sums of squares, of which the first 64 are given."""
    total = tl.sum(first, axis=0)
    for start in range(64, num_squares, 64):
        total += tl.sum(_load_squares(squares_ptr, start, num_squares, M, BLOCK_M), axis=0)
    return tl.rsqrt(total / K + eps)


@triton.jit
def _load_epilogue_operands(
    tile, w_scale_ptr, bias_ptr, residual_ptr, norm_ptr, squares_ptr, num_squares,
    cos_ptr, sin_ptr, slots_ptr, M, N, stride_out, stride_angles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_NORM: tl.constexpr, HAS_SQUARES: tl.constexpr,
    SILU: tl.constexpr, HEAD_DIM: tl.constexpr, KV_HEADS: tl.constexpr,
):  # fmt: skip
    """Operands of a tile's epilogue: W's scales and bias, residual, norm's weight, x's squares, and
    what `load_angles` returns."""
    rows = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    by, bias = tl.full([BLOCK_N], 1.0, tl.float32), tl.zeros([BLOCK_N], tl.float32)
    if w_scale_ptr is not None:
        by = tl.load(w_scale_ptr + rows, mask=rows < N, other=0.0)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + rows, mask=rows < N, other=0.0)
    columns, offsets, inside = _outputs(tile, M, N, stride_out, BLOCK_M, BLOCK_N, SILU)
    residual = tl.zeros([1, 1], tl.float32)
    weight, squares, angles = residual, residual, residual
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + offsets, mask=inside, other=0.0)
    if HAS_NORM:
        weight = tl.load(norm_ptr + columns, mask=columns < N, other=0.0)[None, :]
    if HAS_SQUARES:
        squares = _load_squares(squares_ptr, 0, num_squares, M, BLOCK_M)
    if HEAD_DIM > 0:
        angles = load_angles(
            tile, cos_ptr, sin_ptr, slots_ptr, M, N, stride_angles, BLOCK_M, BLOCK_N, HEAD_DIM,
            KV_HEADS,
        )  # fmt: skip
    return by, bias, residual, weight, squares, angles


@triton.jit
def _outputs(
    tile, M, N, stride_out, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SILU: tl.constexpr
):
    """(columns, offsets in out, mask) of a tile's results."""
    WIDTH: tl.constexpr = BLOCK_N // 2 if SILU else BLOCK_N
    tokens = tl.arange(0, BLOCK_M)
    columns = tile * WIDTH + tl.arange(0, WIDTH)
    inside = (tokens < M)[:, None] & (columns < (N // 2 if SILU else N))[None, :]
    return columns, tokens[:, None] * stride_out + columns[None, :], inside


@triton.jit
def _scaled(acc, operands, HAS_BIAS: tl.constexpr, WEIGHT_FORMAT: tl.constexpr):
    """A tile's sums times the scales of W's rows, plus bias."""
    by, bias, _, _, _, _ = operands
    if WEIGHT_FORMAT != "plain":
        acc = acc * (by * 256.0 if WEIGHT_FORMAT == "bytes" else by)[:, None]
    if HAS_BIAS:
        acc += bias.to(tl.float32)[:, None]
    return acc


@triton.jit
def _finish(
    acc, tile, operands, out_ptr, normalized_ptr, squares_out_ptr, M, N, stride_out,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_NORM: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """Epilogue of a tile, acc [BLOCK_N, BLOCK_M]: SiLU, residual, norm; stores the results."""
    _, _, residual, weight, _, _ = operands
    out = tl.trans(acc)  # [BLOCK_M, BLOCK_N]
    if SILU:
        gate, up = tl.split(tl.reshape(out, [BLOCK_M, BLOCK_N // 2, 2]))
        out = gate * tl.sigmoid(gate) * up
    _, offsets, inside = _outputs(tile, M, N, stride_out, BLOCK_M, BLOCK_N, SILU)
    if HAS_RESIDUAL:
        out += residual.to(tl.float32)
    stored = out.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offsets, stored, mask=inside)
    if HAS_NORM:
        tl.store(normalized_ptr + offsets, stored * weight, mask=inside)
        squares = tl.where(inside, stored.to(tl.float32) * stored.to(tl.float32), 0.0)
        tokens = tl.arange(0, BLOCK_M)
        tl.store(squares_out_ptr + tile * M + tokens, tl.sum(squares, axis=1), mask=tokens < M)
