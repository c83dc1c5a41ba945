"""GEMM of few rows for Hopper: W is loaded through a ring that fills before x is there.

Twin of `skinny_gemm_kernel`, with a fixed number of programs for each tile. TMA loads W into a ring
of tiles in shared memory, beginning while the previous kernel still computes x. If x has W's dtype,
its tiles are loaded the same way. With only W in eight bits a program rounds its columns of x, a
chunk at a time, with a scale for each token and chunk. W, its scales, the bias and the norm's
weight must not be written by the previous kernel: they are read before it has ended.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire.kernels.triton.hopper.hopper_barriers import barriers, invalidate
from quire.kernels.triton.hopper.hopper_codebooks import is_byte, store_pairs
from quire.kernels.triton.hopper.hopper_gemm_ring import (
    ask_rows,
    ask_weight,
    multiply_rounding,
    multiply_tiles,
    ring_of,
)
from quire.kernels.triton.hopper.hopper_int4_numbers import lifts, multiply_numbers
from quire.kernels.triton.hopper.hopper_int4_ring import (
    STEP,
    ask_columns,
    ask_words,
    load_groups,
    outputs_of,
    read_groups,
)
from quire.kernels.triton.hopper.hopper_rope_epilogue import by_pair, load_angles, store_rope_heads
from quire.kernels.triton.hopper.hopper_split_k import meet
from quire.kernels.triton.hopper.hopper_word_codes import multiply_codes
from quire.kernels.triton.launch.gluon_compat import barrier
from quire.kernels.triton.launch.workspace import NUM_COUNTERS

_ARRIVALS = gl.constexpr(NUM_COUNTERS)  # where they begin, behind the counters


def tile_layout(itemsize: int) -> gl.NVMMASharedLayout:
    """The shared memory layout of tiles, by the item size."""
    return gl.NVMMASharedLayout(128, 8 * itemsize)


def tiles_of(matrix: Tensor, rows: int) -> TensorDescriptor:
    """A TMA descriptor of a matrix, with tiles of `rows` rows of 128 bytes."""
    block = [rows, 128 // matrix.itemsize]
    return TensorDescriptor.from_tensor(matrix, block, tile_layout(matrix.itemsize))


def chunk_steps(block_m: int, warps: int, step_columns: int) -> int:
    """Steps whose columns of x a program rounds at once: up to 64 numbers for each thread."""
    return max(1, min(8, 64 * 32 * warps // (block_m * step_columns)))


@gluon.jit(do_not_specialize=["M", "num_squares"])
def hopper_gemm_kernel(
    x_ptr, x_desc, w_desc, w_scale_ptr, group_scale_ptr, zero_ptr,
    out_ptr, bias_ptr, residual_ptr, norm_ptr, normalized_ptr, squares_out_ptr, squares_ptr,
    cos_ptr, sin_ptr, query_norm_ptr, key_norm_ptr, k_cache_ptr, v_cache_ptr,
    k_scale_ptr, v_scale_ptr, slots_ptr, partial_ptr, counter_ptr,
    M, N, K, num_squares, eps,
    head_eps, stride_angles, stride_block, stride_slot, stride_kv_head,
    stride_x, stride_out,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    TILES: gl.constexpr, CHUNK: gl.constexpr, SPLIT: gl.constexpr,
    HAS_BIAS: gl.constexpr, HAS_RESIDUAL: gl.constexpr, HAS_NORM: gl.constexpr,
    HAS_SQUARES: gl.constexpr, SILU: gl.constexpr, PDL: gl.constexpr,
    HEAD_DIM: gl.constexpr, KV_HEADS: gl.constexpr, CACHE_BLOCK: gl.constexpr,
    GROUP: gl.constexpr, SCALED: gl.constexpr, GROUP_ROWS: gl.constexpr, CODEBOOK: gl.constexpr,
    SCALES_FIRST: gl.constexpr, SHARES: gl.constexpr,
):  # fmt: skip
    """x [M, K], w [N, K] → out [M, N], or [M, N / 2] with SILU, which excludes residual and norm.

    A step is TILES tiles of W; SPLIT programs share the steps of a tile's rows. x comes by x_desc,
    or by x_ptr and is rounded, CHUNK steps at a time. The next kernel may be launched once all
    loads of W are issued, or at once if W has 16 bits: both as measured. HEAD_DIM: 0, or out are
    the queries of [M, N] and the rest goes to the caches.

    GROUP: inputs that share a scale of weights in words, which w_desc has; 0 for others. CODEBOOK:
    of four bits None, "e2m1", or `byte_tables` of the numbers that codes stand for; of eight, "s8"
    or "e4m3". Without group_scale_ptr they have w_scale_ptr alone, and SCALED is true. With words
    TILES are parts of k, see `hopper_int4_ring`, and programs of the same W lie side by side, each
    with BLOCK_M rows of x. SCALED: scales multiply numbers, in bfloat16; else sums, see
    `multiply_codes`. SCALES_FIRST: they are asked for before words, as all programs' words together
    would hold them up. SHARES: SPLIT if each program adds up
    the sums of a share of its tile's tokens, see `hopper_split_k`; else 1.
    """
    WIDTH: gl.constexpr = BLOCK_M // SHARES  # tokens that this program stores
    EARLY: gl.constexpr = WIDTH <= 16  # of more rows, what lies beside takes too many registers
    BLOCK_K: gl.constexpr = 1024 // w_desc.dtype.primitive_bitwidth  # of 128 bytes
    LETS_IN: gl.constexpr = PDL and (w_desc.dtype.primitive_bitwidth == 16 or GROUP > 0)
    COLUMNS: gl.constexpr = STEP * TILES if GROUP > 0 else TILES * BLOCK_K
    SLOTS: gl.constexpr = STAGES if GROUP > 0 else STAGES * TILES
    AS_NUMBERS: gl.constexpr = GROUP > 0 and SCALED and not is_byte(CODEBOOK)
    m_tiles = gl.cdiv(M, BLOCK_M) if GROUP > 0 else 1
    program, first = gl.program_id(0) // m_tiles, gl.program_id(0) % m_tiles * BLOCK_M
    steps = gl.cdiv(K, COLUMNS)
    tile, part = program // SPLIT, program % SPLIT
    begin, end = part * steps // SPLIT, (part + 1) * steps // SPLIT
    row = tile * BLOCK_N
    ring, x_ring = ring_of(w_desc, SLOTS), None
    given, scales, zeros, pairs = None, None, None, 0
    if SCALES_FIRST:
        given = read_groups(
            group_scale_ptr, row, begin, end, N, K, TILES, BLOCK_N, GROUP, GROUP_ROWS, HEAD_DIM
        )
    full = barriers(STAGES, 1)
    fence_async_shared()
    for stage in gl.static_range(STAGES):
        if GROUP > 0:
            ask_words(w_desc, x_desc, ring, full, row, begin, end, stage, HEAD_DIM)
        else:
            ask_weight(w_desc, x_desc, ring, full, row, begin, end, stage)
    layout: gl.constexpr = _layout_out(BLOCK_N, HEAD_DIM, gl.num_warps())
    rows = gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
    rows = outputs_of(rows, row, BLOCK_N, HEAD_DIM)
    begin_token = first
    if SHARES > 1:
        begin_token += part * WIDTH
    tokens = begin_token + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    by, bias, weight = _load_weights(w_scale_ptr, bias_ptr, norm_ptr, rows, N, HAS_BIAS, HAS_NORM)
    if LETS_IN:
        gdc_launch_dependents()
    if group_scale_ptr is not None:
        scales = load_groups(
            group_scale_ptr, row, begin, end, N, K, TILES, BLOCK_N, GROUP, GROUP_ROWS,
            lifts(CODEBOOK)[0] if AS_NUMBERS else None, HEAD_DIM, given,
        )  # fmt: skip
    if zero_ptr is not None:
        zeros = load_groups(
            zero_ptr, row, begin, end, N, K, TILES, BLOCK_N, GROUP, GROUP_ROWS,
            0 if CODEBOOK is None else None, HEAD_DIM,
        )  # fmt: skip
    if GROUP > 0 and not (AS_NUMBERS or is_byte(CODEBOOK)):
        pairs = store_pairs(CODEBOOK)
    if PDL:  # results of the previous kernel are read from here on
        gdc_wait()
    if x_desc is not None:
        x_ring = ring_of(x_desc, SLOTS)
        for stage in gl.static_range(STAGES):
            if GROUP > 0:
                ask_columns(x_desc, x_ring, full, first, begin, end, stage)
            else:
                ask_rows(x_desc, x_ring, full, begin, end, stage)
    inside = (tokens < M)[None, :] & (rows < N)[:, None]
    offsets = tokens[None, :] * stride_out + rows[:, None]
    residual = gl.zeros([1, 1], gl.float32, layout)
    if HAS_RESIDUAL and EARLY:
        residual = gl.load(residual_ptr + offsets, mask=inside, other=0.0)
    if HEAD_DIM > 0 and EARLY:
        angles = load_angles(
            rows, tokens, cos_ptr, sin_ptr, slots_ptr, M, N, stride_angles, HEAD_DIM, KV_HEADS
        )  # fmt: skip
    divisor = gl.full([WIDTH], 1.0, gl.float32, gl.SliceLayout(0, layout))
    if HAS_SQUARES:
        divisor = _divisor(squares_ptr, num_squares, tokens, M, K, eps)
    acc = _multiply(
        x_ptr, x_desc, w_desc, ring, x_ring, scales, zeros, pairs, full, row, first, begin, end,
        M, K, stride_x, BLOCK_M, CHUNK, PDL, GROUP, SCALED, AS_NUMBERS, CODEBOOK, HEAD_DIM,
    )  # fmt: skip
    invalidate(full)
    acc = gl.convert_layout(acc, layout)
    complete, position = True, tile * m_tiles + first // BLOCK_M
    if SHARES > 1:
        acc = _share_parts(
            acc, position, part, M - first, partial_ptr, counter_ptr + _ARRIVALS, SPLIT
        )
    elif SPLIT > 1:
        complete, acc = _reduce_parts(
            acc, position, part, tokens < M, partial_ptr, counter_ptr, SPLIT
        )
    if complete:
        acc = acc * by[:, None] * divisor[None, :] + bias[:, None]
        if HEAD_DIM > 0:
            if not EARLY:
                angles = load_angles(
                    rows, tokens, cos_ptr, sin_ptr, slots_ptr, M, N, stride_angles,
                    HEAD_DIM, KV_HEADS,
                )  # fmt: skip
            store_rope_heads(
                acc, tile, rows, tokens, angles, out_ptr, query_norm_ptr, key_norm_ptr,
                k_cache_ptr, v_cache_ptr, k_scale_ptr, v_scale_ptr, M, N, head_eps, stride_out,
                stride_block, stride_slot, stride_kv_head, HEAD_DIM, KV_HEADS, CACHE_BLOCK,
            )  # fmt: skip
        elif SILU:
            _store_silu(acc, tile, begin_token, out_ptr, M, N, stride_out)
        else:
            if HAS_RESIDUAL and not EARLY:
                acc += gl.load(residual_ptr + offsets, mask=inside, other=0.0).to(gl.float32)
            _store_sums(
                acc + residual.to(gl.float32), offsets, inside, tokens, tile, weight, out_ptr,
                normalized_ptr, squares_out_ptr, M, HAS_NORM,
            )  # fmt: skip


@gluon.constexpr_function
def _by_token(rows, num_warps):
    """A layout of [rows, tokens]: a token's rows in one warp, adjacent ones in one thread."""
    each = max(2, rows // 32)  # gate and up are adjacent
    lanes = min(32, rows // each)
    return gl.BlockedLayout([each, 1], [lanes, 32 // lanes], [1, num_warps], [0, 1])


@gluon.constexpr_function
def _blocked_squares(tokens, num_warps):
    """Threads of [64, tokens]: few tokens in a warp each, more of them side by side in lanes."""
    if tokens <= 4:
        return _by_token(64, num_warps)
    lanes = min(32, tokens)
    return gl.BlockedLayout([1, 1], [32 // lanes, lanes], [num_warps, 1], [1, 0])


@gluon.constexpr_function
def _layout_out(rows, head_dim, num_warps):
    return by_pair(min(head_dim, rows), num_warps) if head_dim else _by_token(rows, num_warps)


@gluon.jit
def _load_weights(
    w_scale_ptr, bias_ptr, norm_ptr, rows, N, HAS_BIAS: gl.constexpr, HAS_NORM: gl.constexpr
):
    """Load the epilogue's constant inputs: W's scales, bias, the norm's weight."""
    by = gl.full([rows.shape[0]], 1.0, gl.float32, rows.type.layout)
    bias = gl.full([rows.shape[0]], 0.0, gl.float32, rows.type.layout)
    weight = by
    if w_scale_ptr is not None:
        by = gl.load(w_scale_ptr + rows, mask=rows < N, other=0.0)
    if HAS_BIAS:
        bias = gl.load(bias_ptr + rows, mask=rows < N, other=0.0).to(gl.float32)
    if HAS_NORM:
        weight = gl.load(norm_ptr + rows, mask=rows < N, other=0.0)
    return by, bias, weight


@gluon.jit
def _reduce_parts(acc, position, part, seen, partial_ptr, counter_ptr, SPLIT: gl.constexpr):
    """Store this program's partial sums; the last program returns the sum of all in order of k."""
    layout: gl.constexpr = acc.type.layout
    BLOCK_N: gl.constexpr = acc.shape[0]
    BLOCK_M: gl.constexpr = acc.shape[1]
    size: gl.constexpr = BLOCK_N * BLOCK_M
    TOGETHER: gl.constexpr = max(1, min(SPLIT, 64 * 32 * gl.num_warps() // size))
    rows = gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
    tokens = gl.arange(0, BLOCK_M, gl.SliceLayout(0, layout))
    parts = partial_ptr + position * SPLIT * size + tokens[None, :] * BLOCK_N + rows[:, None]
    there = gl.full([BLOCK_N, BLOCK_M], True, gl.int1, layout) & seen[None, :]
    gl.store(parts + part * size, acc, mask=there)
    barrier()
    ticket = gl.atomic_add(counter_ptr + position, 1, sem="acq_rel", scope="gpu")
    complete = ticket == SPLIT - 1
    if complete:
        gl.store(counter_ptr + position, 0)
        acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, layout)
        for first in range(0, SPLIT, TOGETHER):
            for i in gl.static_range(TOGETHER):  # unrolled: the loads do not wait for each other
                other = first + i
                taken = there & (other < SPLIT)
                acc += gl.load(parts + other * size, mask=taken, other=0.0, cache_modifier=".cg")
    return complete, acc


@gluon.jit
def _share_parts(acc, position, part, num_tokens, partial_ptr, arrival_ptr, SPLIT: gl.constexpr):
    """Store this program's partial sums; returns the sum of all in order of k, of its tokens."""
    layout: gl.constexpr = acc.type.layout
    BLOCK_N: gl.constexpr = acc.shape[0]
    WIDTH: gl.constexpr = acc.shape[1] // SPLIT
    size: gl.constexpr = acc.shape[0] * acc.shape[1]
    rows = gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
    tokens = gl.arange(0, acc.shape[1], gl.SliceLayout(0, layout))
    parts = partial_ptr + position * SPLIT * size + rows[:, None]
    there = gl.full([BLOCK_N, acc.shape[1]], True, gl.int1, layout)
    there &= (tokens < num_tokens)[None, :]
    gl.store(parts + part * size + tokens[None, :] * BLOCK_N, acc, mask=there)
    meet(arrival_ptr + position, SPLIT)
    own = part * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    seen = gl.full([BLOCK_N, WIDTH], True, gl.int1, layout) & (own < num_tokens)[None, :]
    total = gl.zeros([BLOCK_N, WIDTH], gl.float32, layout)
    for other in gl.static_range(SPLIT):
        ptrs = parts + other * size + own[None, :] * BLOCK_N
        total += gl.load(ptrs, mask=seen, other=0.0, cache_modifier=".cg")
    return total


@gluon.jit
def _divisor(squares_ptr, num_squares, tokens, M, K, eps):
    """1 / rms of each row of x, from the sums of squares of its tiles [num_squares, M]."""
    layout: gl.constexpr = _blocked_squares(tokens.shape[0], gl.num_warps())
    given: gl.constexpr = tokens.type.layout
    total = gl.zeros([tokens.shape[0]], gl.float32, gl.SliceLayout(0, layout))
    tokens = gl.convert_layout(tokens, gl.SliceLayout(0, layout))
    for start in range(0, num_squares, 64):
        stretch = start + gl.arange(0, 64, gl.SliceLayout(1, layout))
        there = (stretch < num_squares)[:, None] & (tokens < M)[None, :]
        pointers = squares_ptr + stretch[:, None] * M + tokens[None, :]
        total += gl.sum(gl.load(pointers, mask=there, other=0.0), axis=0)
    return gl.convert_layout(gl.rsqrt(total / K + eps), given)


@gluon.jit
def _multiply(
    x_ptr, x_desc, w_desc, ring, x_ring, scales, zeros, pairs, full, row, first, begin, end, M, K,
    stride_x, BLOCK_M: gl.constexpr, CHUNK: gl.constexpr, PDL: gl.constexpr, GROUP: gl.constexpr,
    SCALED: gl.constexpr, AS_NUMBERS: gl.constexpr, CODEBOOK: gl.constexpr, HEAD_DIM: gl.constexpr,
):  # fmt: skip
    """The main loop for W's type: a program's steps of its tile, [BLOCK_N, BLOCK_M]."""
    if AS_NUMBERS:
        return multiply_numbers(
            x_desc, w_desc, ring, x_ring, scales, zeros, full, row, first, begin, end, GROUP,
            CODEBOOK, HEAD_DIM,
        )  # fmt: skip
    elif GROUP > 0:
        return multiply_codes(
            x_desc, w_desc, ring, x_ring, scales, zeros, pairs, full, row, first, begin, end, GROUP,
            SCALED, CODEBOOK,
        )  # fmt: skip
    elif x_desc is not None:
        return multiply_tiles(x_desc, w_desc, ring, x_ring, full, row, begin, end)
    else:
        return multiply_rounding(
            x_ptr, w_desc, ring, full, row, begin, end, M, K, stride_x, BLOCK_M, CHUNK, PDL
        )


@gluon.jit
def _store_sums(
    acc, offsets, inside, tokens, tile, weight, out_ptr, normalized_ptr, squares_out_ptr, M,
    HAS_NORM: gl.constexpr,
):  # fmt: skip
    """Store a tile; with a norm also times its weight, and sums of squares of the tile's rows."""
    stored = acc.to(out_ptr.dtype.element_ty)
    gl.store(out_ptr + offsets, stored, mask=inside)
    if HAS_NORM:
        normalized = (stored * weight[:, None]).to(normalized_ptr.dtype.element_ty)
        gl.store(normalized_ptr + offsets, normalized, mask=inside)
        wide = gl.where(inside, stored.to(gl.float32), 0.0)
        gl.store(squares_out_ptr + tile * M + tokens, gl.sum(wide * wide, axis=0), mask=tokens < M)


@gluon.jit
def _store_silu(acc, tile, first, out_ptr, M, N, stride_out):
    """Store silu(gate) · up of a tile whose gate and up rows are interleaved."""
    BLOCK_M: gl.constexpr = acc.shape[1]
    WIDTH: gl.constexpr = acc.shape[0] // 2
    gate, up = gl.split(acc.reshape([WIDTH, 2, BLOCK_M]).permute(0, 2, 1))
    out = gate / (1.0 + gl.exp(-gate)) * up
    layout: gl.constexpr = out.type.layout
    columns = tile * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(1, layout))
    tokens = first + gl.arange(0, BLOCK_M, gl.SliceLayout(0, layout))
    inside = (tokens < M)[None, :] & (columns < N // 2)[:, None]
    offsets = tokens[None, :] * stride_out + columns[:, None]
    gl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=inside)
