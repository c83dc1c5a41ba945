"""GEMM of more than 64 rows in FP8 with weights of four bits on Hopper.

Floor: twice the tensor cores' 16-bit rate; as codes are written to shared memory and read again,
its bandwidth takes some 30 % longer. A warpgroup unpacks codes to e4m3 into a ring in shared
memory, others multiply 64 outputs each by the columns of x beside them: unpacking costs no time
unless it takes longer than multiplying. Each program does several tiles in turn (and parts of k
where k is split), so that it unpacks for the next one while one is stored. Tiles of 192 rows are
multiplied as 128 and 64, since sizes are powers of two.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire.kernels.operands import Int4Words, RoundedRows
from quire.kernels.triton.gemm.int4_rows_config import Int4RowsConfig
from quire.kernels.triton.hopper.hopper_barriers import barriers, invalidate
from quire.kernels.triton.hopper.hopper_fp8_gemm import reduce_parts
from quire.kernels.triton.hopper.hopper_gemm import tile_layout, tiles_of, whole_boxes
from quire.kernels.triton.hopper.hopper_gemm_ring import sums_layout
from quire.kernels.triton.hopper.hopper_int4_ring import STEP, word_boxes
from quire.kernels.triton.hopper.hopper_int4_to_fp8 import unpack_block
from quire.kernels.triton.launch.gluon_compat import barrier, fetch_box, seen_as, store_box
from quire.kernels.triton.launch.workspace import NUM_COUNTERS, NUM_PARTIALS, workspace

WORD_STAGES = gl.constexpr(2)  # steps of words in their ring
CHUNK = gl.constexpr(64)  # rows of x that are stored at a time


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
    out = torch.empty(m, n, dtype=torch.bfloat16, device=codes.device)
    hopper_int4_rows_kernel[(min(tiles * config.split, space.num_sms),)](
        tiles_of(codes, block_m - rest), tiles_of(codes, rest) if rest else None,
        word_boxes(weight.words, 1, block_n), _group_boxes(weight.scale, weight.group, block_n),
        None if weight.zeros is None else _group_boxes(weight.zeros, weight.group, block_n),
        TensorDescriptor.from_tensor(out, [CHUNK.value, block_n], tile_layout(2)),
        x.scale, weight.row_scale, bias, space.partials, space.counters, m, n, weight.inputs,
        STAGES=config.stages, SPLIT=config.split, CODEBOOK=codebook, num_warps=config.warps,
        launch_pdl=True,
    )  # fmt: skip
    return out


def _group_boxes(values: Tensor, group: int, block_n: int) -> TensorDescriptor:
    """Boxes of a step's scales or zeros [256 / group, block_n]."""
    layout = gl.NVMMASharedLayout(0, 8 * values.itemsize, 2)
    return TensorDescriptor.from_tensor(values, [256 // group, block_n], layout)


@gluon.jit(do_not_specialize=["M"])
def hopper_int4_rows_kernel(
    x_desc, rest_desc, w_desc, scale_desc, zero_desc, out_desc, x_scale_ptr, row_scale_ptr,
    bias_ptr, partial_ptr, counter_ptr, M, N, K, STAGES: gl.constexpr, SPLIT: gl.constexpr,
    CODEBOOK: gl.constexpr,
):  # fmt: skip
    """x [M, K], words [N, K / 8] → out [M, N]. SPLIT turns share a tile's steps.

    W, its scales and the bias must not be written by the previous kernel. rest_desc: boxes of the
    tile's rows beyond a power of two, or None.
    """
    BLOCK_N: gl.constexpr = w_desc.block_type.shape[1]
    MAIN: gl.constexpr = x_desc.block_type.shape[0]
    REST: gl.constexpr = 0 if rest_desc is None else rest_desc.block_type.shape[0]
    GROUPS: gl.constexpr = scale_desc.block_type.shape[0]
    x_descs, w_descs = (x_desc,), (w_desc, scale_desc)
    xs = (_ring(x_desc, [STAGES, MAIN, 128]),)
    if REST:
        x_descs += (rest_desc,)
        xs += (_ring(rest_desc, [STAGES, REST, 128]),)
    words = (
        _ring(w_desc, [WORD_STAGES, 1, BLOCK_N, 32]),
        _ring(scale_desc, [WORD_STAGES, GROUPS, BLOCK_N]),
    )
    if zero_desc is not None:
        w_descs += (zero_desc,)
        words += (_ring(zero_desc, [WORD_STAGES, GROUPS, BLOCK_N]),)
    codes = _ring(x_desc, [STAGES, BLOCK_N, 128])
    outs = _ring(out_desc, [2, CHUNK, BLOCK_N])
    full, empty = barriers(STAGES, 2), barriers(STAGES, 1)
    words_full = barriers(WORD_STAGES, 1)
    fence_async_shared()
    gdc_launch_dependents()
    ring, turns = (codes, xs, full, empty), (M, N, K, MAIN + REST, BLOCK_N, SPLIT)
    results = (out_desc, outs, x_scale_ptr, row_scale_ptr, bias_ptr, M, N)
    gl.warp_specialize(
        [
            (_multiply, (ring, x_descs, results, partial_ptr, counter_ptr, turns, SPLIT)),
            (_unpack, (ring, w_descs, words, words_full, row_scale_ptr, turns, CODEBOOK)),
        ],
        [4],
        [112],  # registers of an unpacking thread
    )  # fmt: skip
    invalidate(words_full)
    invalidate(full)
    invalidate(empty)


@gluon.jit
def _ring(desc, SHAPE: gl.constexpr):
    return gl.allocate_shared_memory(desc.dtype, SHAPE, desc.layout)


@gluon.jit
def _num_turns(turns):
    """Turns of all programs: parts of tiles."""
    return gl.cdiv(turns[0], turns[3]) * gl.cdiv(turns[1], turns[4]) * turns[5]


@gluon.jit
def _tile_of(turn, turns):
    """A turn's tile and part of it. Turns with the same W lie side by side."""
    m_tiles = gl.cdiv(turns[0], turns[3])
    SPLIT = turns[5]
    return turn // m_tiles // SPLIT * m_tiles + turn % m_tiles, turn // m_tiles % SPLIT


@gluon.jit
def _start_of(turn, turns):
    """A turn, its first row of x, first output, first step of 256 columns and last one's end."""
    ROWS, BLOCK_N, SPLIT = turns[3], turns[4], turns[5]
    m_tiles, steps = gl.cdiv(turns[0], ROWS), gl.cdiv(turns[2], STEP)
    part = turn // m_tiles % SPLIT
    begin, end = part * steps // SPLIT, (part + 1) * steps // SPLIT
    return turn, turn % m_tiles * ROWS, turn // m_tiles // SPLIT * BLOCK_N, begin, end


@gluon.jit
def _after(at, turns):
    """The step after one, as `_start_of` tells it: of the same turn, or the program's next one."""
    turn, first, row, step, end = at
    step += 1
    if step == end:
        turn, first, row, step, end = _start_of(turn + gl.num_programs(0), turns)
    return turn, first, row, step, end


@gluon.jit
def _unpack(
    ring, w_descs, words, words_full, row_scale_ptr, turns, CODEBOOK: gl.constexpr
):  # fmt: skip
    """The unpacking warps: W of all turns, 128 columns at a time."""
    codes, full, empty = ring[0], ring[2], ring[3]
    STAGES: gl.constexpr = codes.shape[0]
    BLOCK_N: gl.constexpr = codes.shape[1]
    GROUPS: gl.constexpr = words[1].shape[1]
    ACROSS: gl.constexpr = 128 // BLOCK_N  # threads for a row
    layout: gl.constexpr = gl.BlockedLayout(
        [1, 32 // ACROSS], [32, 1], [BLOCK_N // 32, ACROSS], [1, 0]
    )
    words_of = seen_as(
        words[0], gl.int32, [WORD_STAGES, BLOCK_N, 32], gl.NVMMASharedLayout(128, 32)
    )
    groups = (_rows_of(words[1]),)
    if len(words) > 2:
        groups += (_rows_of(words[2]),)
    num_turns = _num_turns(turns)
    following = _start_of(gl.program_id(0), turns)  # the next step to ask for
    for i in gl.static_range(WORD_STAGES):
        _ask_words(w_descs, words, words_full, following, i, num_turns)
        following = _after(following, turns)
    count = 0  # of steps of all turns
    for turn in range(gl.program_id(0), num_turns, gl.num_programs(0)):
        start = _start_of(turn, turns)
        row, begin, end = start[2], start[3], start[4]
        outputs = row + gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
        by_row = 1.0 / gl.load(row_scale_ptr + outputs, mask=outputs < turns[1], other=1.0)
        for step in range(begin, end):
            slot = count % WORD_STAGES
            mbarrier.wait(words_full.index(slot), count // WORD_STAGES & 1)
            own = words_of.index(slot).load(layout)
            for half in gl.static_range(2):
                at = 2 * count + half
                one = unpack_block(
                    own, groups, slot * GROUPS, by_row, 256 // GROUPS, CODEBOOK, 2 * half
                )
                other = unpack_block(
                    own, groups, slot * GROUPS, by_row, 256 // GROUPS, CODEBOOK, 2 * half + 1
                )
                both = gl.join(one, other).permute((0, 2, 1)).reshape([BLOCK_N, 128])
                if half == 1 or step > begin:  # only now, so that no warp waits for its stores
                    _signal(full, at - 1)
                if half == 1:  # all warps have loaded the words
                    _ask_words(
                        w_descs, words, words_full, following, count + WORD_STAGES, num_turns
                    )
                    following = _after(following, turns)
                mbarrier.wait(empty.index(at % STAGES), (at // STAGES & 1) ^ 1)
                codes.index(at % STAGES).store(both)
            count += 1
        _signal(full, 2 * count - 1)


@gluon.jit
def _rows_of(ring):
    """A ring of groups' scales or zeros, a row for each group of each slot."""
    ROWS: gl.constexpr = ring.shape[0] * ring.shape[1]
    WIDTH: gl.constexpr = ring.shape[2]
    return seen_as(ring, ring.dtype, [ROWS, WIDTH], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def _signal(full, at):
    """Tell that a block's codes are there, once all warps have stored theirs."""
    fence_async_shared()
    barrier()
    mbarrier.arrive(full.index(at % full.shape[0]), count=1)


@gluon.jit
def _ask_words(w_descs, words, words_full, at, count, num_turns):
    """Start to load a step's words with their groups' scales and zeros, if there is such a turn."""
    turn, row, step = at[0], at[2], at[3]
    GROUPS: gl.constexpr = words[1].shape[1]
    num_bytes: gl.constexpr = w_descs[0].block_type.nbytes + w_descs[1].block_type.nbytes
    zero_bytes: gl.constexpr = w_descs[2].block_type.nbytes if len(words) > 2 else 0
    slot, there = count % WORD_STAGES, turn < num_turns
    full = words_full.index(slot)
    mbarrier.expect(full, num_bytes + zero_bytes, pred=there)
    fetch_box(w_descs[0], [step, row, 0], full, words[0].index(slot), there)
    fetch_box(w_descs[1], [step * GROUPS, row], full, words[1].index(slot), there)
    if len(words) > 2:
        fetch_box(w_descs[2], [step * GROUPS, row], full, words[2].index(slot), there)


@gluon.jit
def _ask_columns(x_descs, ring, at, block, num_turns):
    """Start to load a block of 128 columns of x, if there is such a turn."""
    xs, full = ring[1], ring[2]
    turn, first, step = at[0], at[1], at[3]
    num_bytes: gl.constexpr = x_descs[0].block_type.nbytes
    rest_bytes: gl.constexpr = x_descs[1].block_type.nbytes if len(xs) > 1 else 0
    slot, there, column = block % full.shape[0], turn < num_turns, step * STEP + block % 2 * 128
    mbarrier.expect(full.index(slot), num_bytes + rest_bytes, pred=there)
    fetch_box(x_descs[0], [first, column], full.index(slot), xs[0].index(slot), there)
    if len(xs) > 1:
        MAIN: gl.constexpr = xs[0].shape[1]
        fetch_box(x_descs[1], [first + MAIN, column], full.index(slot), xs[1].index(slot), there)


@gluon.jit
def _multiply(
    ring, x_descs, results, partial_ptr, counter_ptr, turns, SPLIT: gl.constexpr
):  # fmt: skip
    """The multiplying warps: each turn's sums W [BLOCK_N, k] · xᵀ [k, rows], and their results."""
    codes, xs, full, empty = ring
    STAGES: gl.constexpr = codes.shape[0]
    MAIN: gl.constexpr = xs[0].shape[1]
    PARTS: gl.constexpr = len(xs)
    num_turns = _num_turns(turns)
    following = _start_of(gl.program_id(0), turns)  # the step of the next block to ask for
    gdc_wait()  # results of the previous kernel are read from here on
    for block in gl.static_range(STAGES):
        _ask_columns(x_descs, ring, following, block, num_turns)
        if block % 2 == 1:
            following = _after(following, turns)
    count = 0  # of steps of all turns
    for turn in range(gl.program_id(0), num_turns, gl.num_programs(0)):
        start = _start_of(turn, turns)
        begin, end = start[3], start[4]
        sums = _no_sums(codes, xs)
        for step in range(begin, end):
            for half in gl.static_range(2):
                at = 2 * count + half
                mbarrier.wait(full.index(at % STAGES), at // STAGES & 1)
                sums = _add_block(sums, codes, xs, at % STAGES)
                if at > 0:  # the previous block's products have ended
                    if half == 1 or step > begin:
                        mbarrier.arrive(empty.index((at - 1) % STAGES), count=1)
                    _ask_columns(x_descs, ring, following, at - 1 + STAGES, num_turns)
                    if (half - 1 + STAGES) % 2 == 1:
                        following = _after(following, turns)
            count += 1
        sums = _finished(sums)
        mbarrier.arrive(empty.index((2 * count - 1) % STAGES), count=1)
        tile, part = _tile_of(turn, turns)
        for i in gl.static_range(PARTS):
            complete, acc = True, sums[i]
            if SPLIT > 1:
                tiles = num_turns // SPLIT
                own_partial_ptr = partial_ptr + i * tiles * SPLIT * codes.shape[1] * MAIN
                complete, acc = reduce_parts(
                    acc, tile, part, own_partial_ptr, counter_ptr + i * tiles, SPLIT
                )
            if complete:
                _store(acc, results, start[1] + i * MAIN, start[2])
    tma.store_wait(0)


@gluon.jit
def _no_sums(codes, xs):
    """Zeros [BLOCK_N, rows] for each part of rows."""
    BLOCK_N: gl.constexpr = codes.shape[1]
    MAIN: gl.constexpr = xs[0].shape[1]
    layout: gl.constexpr = sums_layout(MAIN, gl.num_warps(), codes.dtype)
    sums = (gl.zeros([BLOCK_N, MAIN], gl.float32, layout),)
    if len(xs) > 1:
        REST: gl.constexpr = xs[1].shape[1]
        rest_layout: gl.constexpr = sums_layout(REST, gl.num_warps(), codes.dtype)
        sums += (gl.zeros([BLOCK_N, REST], gl.float32, rest_layout),)
    return sums


@gluon.jit
def _add_block(sums, codes, xs, slot):
    """Start to add 128 columns' products, and wait for those of the block before."""
    a = codes.index(slot)
    first = warpgroup_mma(a, xs[0].index(slot).permute((1, 0)), sums[0], is_async=True)
    if len(sums) == 1:
        return (warpgroup_mma_wait(1, deps=[first]),)
    else:
        second = warpgroup_mma(a, xs[1].index(slot).permute((1, 0)), sums[1], is_async=True)
        return warpgroup_mma_wait(2, deps=[first, second])


@gluon.jit
def _finished(sums):
    """Wait for what tensor cores still add."""
    if len(sums) == 1:
        return (warpgroup_mma_wait(0, deps=[sums[0]]),)
    else:
        return warpgroup_mma_wait(0, deps=[sums[0], sums[1]])


@gluon.jit
def _store(acc, results, first, row):
    """Store sums [outputs from `row` on, tokens from `first` on] times scales, plus bias."""
    out_desc, outs, x_scale_ptr, row_scale_ptr, bias_ptr, M, N = results
    WIDTH: gl.constexpr = acc.shape[1]
    rows = row + gl.arange(0, acc.shape[0], gl.SliceLayout(1, acc.type.layout))
    tokens = first + gl.arange(0, WIDTH, gl.SliceLayout(0, acc.type.layout))
    acc = acc * gl.load(row_scale_ptr + rows, mask=rows < N, other=0.0)[:, None]
    acc = acc * gl.load(x_scale_ptr + tokens, mask=tokens < M, other=0.0)[None, :]
    if bias_ptr is not None:
        acc += gl.load(bias_ptr + rows, mask=rows < N, other=0.0).to(gl.float32)[:, None]
    chunks = (acc.to(out_desc.dtype),)
    if WIDTH >= 2 * CHUNK:
        chunks = _halves(chunks[0])
    if WIDTH == 4 * CHUNK:
        chunks = _halves(chunks[0]) + _halves(chunks[1])
    for i in gl.static_range(WIDTH // CHUNK):
        tma.store_wait(1)  # of what was stored from there before
        barrier()
        outs.index(i % 2).permute((1, 0)).store(chunks[i])
        fence_async_shared()
        barrier()
        store_box(out_desc, [first + CHUNK * i, row], outs.index(i % 2))  # TMA clips at M and N


@gluon.jit
def _halves(acc):
    """Both halves of the columns."""
    HEIGHT: gl.constexpr = acc.shape[0]
    WIDTH: gl.constexpr = acc.shape[1] // 2
    return gl.split(acc.reshape([HEIGHT, 2, WIDTH]).permute(0, 2, 1))
