"""The product of a few rows for Hopper: W comes through a ring that fills before x is there.

Same results as `skinny_kernel`, for tiles that a fixed number of programs share. The copy engine
fetches W into a ring of tiles in shared memory, and begins while the kernel in front still computes
x. Then a program takes its columns of x, a chunk at a time; with W in FP8 it rounds them to FP8
once, each token by a scale of its own for each chunk. What is left in the loop is to wait for a
tile, to multiply, and to ask for another one. Written in Gluon, where a kernel says where its
values lie. What W, its scales, the bias and the norm's weight hold must not come from the kernel in
front: they are read before that has ended.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire.kernels.triton.gluon_names import barrier, fetch_box, seen_as
from quire.kernels.triton.hopper_heads import by_pair, load_angles, store_turned


def weight_layout(itemsize: int) -> gl.NVMMASharedLayout:
    """How tiles of W lie in shared memory, by the bytes of its elements."""
    return gl.NVMMASharedLayout(128, 8 * itemsize)


def tiles_of(weight: Tensor, block_n: int) -> TensorDescriptor:
    """W [N, K] as the copy engine sees it: tiles of so many rows, of 128 bytes each."""
    block = [block_n, 128 // weight.itemsize]
    return TensorDescriptor.from_tensor(weight, block, weight_layout(weight.itemsize))


def chunk_steps(block_m: int, warps: int, step_columns: int) -> int:
    """How many steps' columns of x a program takes at once: up to 64 numbers a thread."""
    return max(1, min(8, 64 * 32 * warps // (block_m * step_columns)))


@gluon.jit(do_not_specialize=["M", "num_squares"])
def hopper_gemm_kernel(
    x_ptr, w_desc, w_scale_ptr, out_ptr, bias_ptr, residual_ptr,
    norm_ptr, normed_ptr, squares_out_ptr, squares_ptr,
    cos_ptr, sin_ptr, query_norm_ptr, key_norm_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    partial_ptr, counter_ptr,
    M, N, K, num_squares, eps,
    head_eps, stride_angles, stride_block, stride_slot, stride_kv_head,
    stride_x, stride_out,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    TILES: gl.constexpr, CHUNK: gl.constexpr, SPLIT: gl.constexpr,
    HAS_BIAS: gl.constexpr, HAS_RESIDUAL: gl.constexpr, HAS_NORM: gl.constexpr,
    HAS_SQUARES: gl.constexpr, SILU: gl.constexpr, PDL: gl.constexpr,
    HEAD_DIM: gl.constexpr, KV_HEADS: gl.constexpr, CACHE_BLOCK: gl.constexpr,
):  # fmt: skip
    """x [M, K], w [N, K] → out [M, N], or [M, N / 2] with SILU, which excludes residual and norm.

    A step is TILES times 128 bytes of W's rows; SPLIT programs share the steps of a tile. CHUNK:
    steps of x at a time. The next kernel may be launched once all of W has been asked for.
    HEAD_DIM: 0, or out is the queries of [M, N] and the rest goes to the caches.
    """
    BLOCK_K: gl.constexpr = 1024 // w_desc.dtype.primitive_bitwidth  # of 128 bytes
    program = gl.program_id(0)
    steps = gl.cdiv(K, TILES * BLOCK_K)
    tile, part = program // SPLIT, program % SPLIT
    begin, end = part * steps // SPLIT, (part + 1) * steps // SPLIT
    ring = gl.allocate_shared_memory(
        w_desc.dtype, [STAGES * TILES, BLOCK_N, BLOCK_K], w_desc.layout
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    for stage in gl.static_range(STAGES):
        _ask(w_desc, ring, full, tile * BLOCK_N, begin, end, stage)
    layout: gl.constexpr = _layout_out(BLOCK_N, HEAD_DIM, gl.num_warps())
    rows = tile * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
    tokens = gl.arange(0, BLOCK_M, gl.SliceLayout(0, layout))
    by, bias, weight = _load_weights(w_scale_ptr, bias_ptr, norm_ptr, rows, N, HAS_BIAS, HAS_NORM)
    if PDL:  # from here on what the kernel in front leaves must be there
        gdc_wait()
    inside = (tokens < M)[None, :] & (rows < N)[:, None]
    place = tokens[None, :] * stride_out + rows[:, None]
    residual = gl.zeros([1, 1], gl.float32, layout)
    if HAS_RESIDUAL:
        residual = gl.load(residual_ptr + place, mask=inside, other=0.0)
    if HEAD_DIM > 0 and BLOCK_M <= 16:  # more would take too many registers
        angles = load_angles(
            rows, tokens, cos_ptr, sin_ptr, slots_ptr, M, N, stride_angles, HEAD_DIM, KV_HEADS
        )  # fmt: skip
    divisor = gl.full([BLOCK_M], 1.0, gl.float32, gl.SliceLayout(0, layout))
    acc = _multiply(
        x_ptr, w_desc, ring, full, tile * BLOCK_N, begin, end, M, K, stride_x,
        BLOCK_M, BLOCK_N, BLOCK_K, STAGES, TILES, CHUNK, PDL,
    )  # fmt: skip
    acc = gl.convert_layout(acc, layout)
    complete = True
    if SPLIT > 1:
        complete, acc = _exchange(acc, tile, part, tokens < M, partial_ptr, counter_ptr, SPLIT)
    if complete:
        if HAS_SQUARES:
            divisor = _divisor(squares_ptr, num_squares, tokens, M, K, eps)
        acc = acc * by[:, None] * divisor[None, :] + bias[:, None]
        if HEAD_DIM > 0:
            if BLOCK_M > 16:
                angles = load_angles(
                    rows, tokens, cos_ptr, sin_ptr, slots_ptr, M, N, stride_angles,
                    HEAD_DIM, KV_HEADS,
                )  # fmt: skip
            store_turned(
                acc, tile, rows, tokens, angles, out_ptr, query_norm_ptr, key_norm_ptr,
                k_cache_ptr, v_cache_ptr, M, N, head_eps, stride_out, stride_block, stride_slot,
                stride_kv_head, HEAD_DIM, KV_HEADS, CACHE_BLOCK,
            )  # fmt: skip
        elif SILU:
            _store_silu(acc, tile, out_ptr, M, N, stride_out)
        else:
            stored = (acc + residual.to(gl.float32)).to(out_ptr.dtype.element_ty)
            gl.store(out_ptr + place, stored, mask=inside)
            if HAS_NORM:
                gl.store(normed_ptr + place, stored * weight[:, None], mask=inside)
                wide = gl.where(inside, stored.to(gl.float32), 0.0)
                squares = gl.sum(wide * wide, axis=0)
                gl.store(squares_out_ptr + tile * M + tokens, squares, mask=tokens < M)


@gluon.jit
def _ask(w_desc, ring, full, row, begin, end, step):
    """Have a step's tiles of W fetched, if there is such a step."""
    STAGES: gl.constexpr = full.shape[0]
    TILES: gl.constexpr = ring.shape[0] // STAGES
    BLOCK_K: gl.constexpr = ring.shape[2]
    stage = step % STAGES
    there = begin + step < end
    mbarrier.expect(full.index(stage), TILES * w_desc.block_type.nbytes, pred=there)
    for i in gl.static_range(TILES):
        start = ((begin + step) * TILES + i) * BLOCK_K
        place = ring.index(stage * TILES + i)
        fetch_box(w_desc, [row, start], full.index(stage), place, there)


@gluon.constexpr_function
def _by_token(rows, num_warps):
    """A layout of [rows, tokens]: a warp holds all of a token's, neighbours in a thread."""
    return gl.BlockedLayout([max(1, rows // 32), 1], [32, 1], [1, num_warps], [0, 1])


@gluon.constexpr_function
def _layout_out(rows, head_dim, num_warps):
    return by_pair(head_dim, num_warps) if head_dim else _by_token(rows, num_warps)


@gluon.jit
def _load_weights(
    w_scale_ptr, bias_ptr, norm_ptr, rows, N, HAS_BIAS: gl.constexpr, HAS_NORM: gl.constexpr
):
    """What a tile's epilogue reads that no kernel writes: W's scales, bias, norm's weight."""
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
def _multiply(
    x_ptr, w_desc, ring, full, row, begin, end, M, K, stride_x,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, TILES: gl.constexpr, CHUNK: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """A program's steps of its tile: W [BLOCK_N, k] · xᵀ [k, BLOCK_M], float32."""
    PIECES: gl.constexpr = CHUNK * TILES
    kind: gl.constexpr = w_desc.dtype
    FP8: gl.constexpr = kind.primitive_bitwidth == 8
    warps: gl.constexpr = gl.num_warps()
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [warps, 1], [16, BLOCK_M, 256 // kind.primitive_bitwidth]
    )
    across: gl.constexpr = BLOCK_K // 8  # threads that share a token's columns of a step
    x_layout: gl.constexpr = gl.BlockedLayout(
        [1, 1, 8], [1, 32 // across, across], [1, warps, 1], [2, 1, 0]
    )
    x_shared: gl.constexpr = gl.NVMMASharedLayout(128, kind.primitive_bitwidth)
    xs = gl.allocate_shared_memory(kind, [PIECES * BLOCK_M, BLOCK_K], x_shared)
    operands = seen_as(xs, kind, [PIECES, BLOCK_M, BLOCK_K], x_shared)
    pieces = gl.arange(0, PIECES, gl.SliceLayout(1, gl.SliceLayout(2, x_layout)))[:, None, None]
    tokens = gl.arange(0, BLOCK_M, gl.SliceLayout(0, gl.SliceLayout(2, x_layout)))[None, :, None]
    ks = gl.arange(0, BLOCK_K, gl.SliceLayout(0, gl.SliceLayout(1, x_layout)))[None, None, :]
    columns = pieces * BLOCK_K + ks
    x_ptrs = x_ptr + tokens * stride_x + columns
    num_columns = gl.minimum(K, end * (TILES * BLOCK_K))

    acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, layout)
    total = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, layout)
    step = 0
    start = begin * (TILES * BLOCK_K)
    x = gl.load(x_ptrs + start, mask=(tokens < M) & (columns < num_columns - start), other=0.0)
    for first in range(begin, end, CHUNK):
        scale = gl.full([BLOCK_M], 1.0, gl.float32, gl.SliceLayout(0, layout))
        if FP8:
            wide = x.to(gl.float32)
            largest = _fp8_scale(gl.max(gl.max(gl.abs(wide), axis=0), axis=1))
            taken = (wide * (1.0 / largest)[:, None][None, :, :]).to(kind)
            scale = gl.convert_layout(largest, gl.SliceLayout(0, layout))
        else:
            taken = x
        xs.store(taken.reshape([PIECES * BLOCK_M, BLOCK_K]))
        fence_async_shared()
        barrier()
        start = (first + CHUNK) * (TILES * BLOCK_K)  # the next chunk is on its way meanwhile
        x = gl.load(x_ptrs + start, mask=(tokens < M) & (columns < num_columns - start), other=0.0)
        for i in range(gl.minimum(CHUNK, end - first)):
            mbarrier.wait(full.index(step % STAGES), (step // STAGES) & 1)
            for j in gl.static_range(TILES):
                acc = warpgroup_mma(
                    ring.index(step % STAGES * TILES + j),
                    operands.index(i * TILES + j).permute((1, 0)), acc,
                    use_acc=(i + j > 0) if FP8 else True, is_async=True,
                )  # fmt: skip
            acc = warpgroup_mma_wait(TILES, deps=[acc])
            barrier()  # everybody is behind the step before, whose place in the ring is free
            if step > 0:
                _ask(w_desc, ring, full, row, begin, end, step - 1 + STAGES)
            if PDL:
                if begin + step + STAGES == end:
                    gdc_launch_dependents()
            step += 1
        acc = warpgroup_mma_wait(0, deps=[acc])
        if FP8:  # tensor cores keep their sums in few digits
            total += acc * scale[None, :]
        barrier()
    if PDL:
        gdc_launch_dependents()
    return total if FP8 else acc


@gluon.jit
def _fp8_scale(largest):
    """See `skinny_kernel.fp8_scale`."""
    wanted = gl.maximum(largest / 448.0, 2.0**-100)
    bits = (wanted.to(gl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
    return bits.to(gl.float32, bitcast=True)


@gluon.jit
def _exchange(acc, tile, part, seen, partial_ptr, counter_ptr, SPLIT: gl.constexpr):
    """Leave this program's part; for the last to come, the sum of all in the order of k."""
    layout: gl.constexpr = acc.type.layout
    BLOCK_N: gl.constexpr = acc.shape[0]
    BLOCK_M: gl.constexpr = acc.shape[1]
    size: gl.constexpr = BLOCK_N * BLOCK_M
    rows = gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
    tokens = gl.arange(0, BLOCK_M, gl.SliceLayout(0, layout))
    places = partial_ptr + tile * SPLIT * size + tokens[None, :] * BLOCK_N + rows[:, None]
    there = gl.full([BLOCK_N, BLOCK_M], True, gl.int1, layout) & seen[None, :]
    gl.store(places + part * size, acc, mask=there)
    barrier()
    ticket = gl.atomic_add(counter_ptr + tile, 1, sem="acq_rel", scope="gpu")
    complete = ticket == SPLIT - 1
    if complete:
        gl.store(counter_ptr + tile, 0)
        acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, layout)
        for other in gl.static_range(SPLIT):  # unrolled: the loads do not wait for each other
            acc += gl.load(places + other * size, mask=there, other=0.0, cache_modifier=".cg")
    return complete, acc


@gluon.jit
def _divisor(squares_ptr, num_squares, tokens, M, K, eps):
    """1 / rms of each row of x, from the sums of squares of its stretches [num_squares, M]."""
    layout: gl.constexpr = _by_token(64, gl.num_warps())
    given: gl.constexpr = tokens.type.layout
    total = gl.zeros([tokens.shape[0]], gl.float32, gl.SliceLayout(0, layout))
    tokens = gl.convert_layout(tokens, gl.SliceLayout(0, layout))
    for start in range(0, num_squares, 64):
        stretch = start + gl.arange(0, 64, gl.SliceLayout(1, layout))
        there = (stretch < num_squares)[:, None] & (tokens < M)[None, :]
        place = squares_ptr + stretch[:, None] * M + tokens[None, :]
        total += gl.sum(gl.load(place, mask=there, other=0.0), axis=0)
    return gl.convert_layout(gl.rsqrt(total / K + eps), given)


@gluon.jit
def _store_silu(acc, tile, out_ptr, M, N, stride_out):
    """silu(gate) · up of a tile whose rows are both by turns."""
    BLOCK_M: gl.constexpr = acc.shape[1]
    WIDTH: gl.constexpr = acc.shape[0] // 2
    gate, up = gl.split(acc.reshape([WIDTH, 2, BLOCK_M]).permute(0, 2, 1))
    out = gate / (1.0 + gl.exp(-gate)) * up
    layout: gl.constexpr = out.type.layout
    columns = tile * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(1, layout))
    tokens = gl.arange(0, BLOCK_M, gl.SliceLayout(0, layout))
    inside = (tokens < M)[None, :] & (columns < N // 2)[:, None]
    place = out_ptr + tokens[None, :] * stride_out + columns[:, None]
    gl.store(place, out.to(out_ptr.dtype.element_ty), mask=inside)
