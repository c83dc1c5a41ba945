"""The unpacking warps of `hopper_int4_rows`: from words of four-bit codes to e4m3 in the ring."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from quire.kernels.triton.gemm.word_gemm import FP8_DIVISOR
from quire.kernels.triton.hopper.hopper_int4_items import num_items_of, start_of, step_after
from quire.kernels.triton.hopper.hopper_int4_to_fp8 import unpack_block
from quire.kernels.triton.launch.gluon_compat import barrier, fetch_box, seen_as

WORD_STAGES = gl.constexpr(2)  # steps of words in their ring


@gluon.jit
def unpack_items(
    ring, w_descs, words, words_full, row_scale_ptr, sizes, CODEBOOK: gl.constexpr
):  # fmt: skip
    """The unpacking warps: W of all items, 128 columns at a time."""
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
    groups = _groups_of(words)
    num_items = num_items_of(sizes)
    following = start_of(gl.program_id(0), sizes)  # the next step to ask for
    for i in gl.static_range(WORD_STAGES):
        _ask_words(w_descs, words, words_full, following, i, num_items)
        following = step_after(following, sizes)
    count = 0  # of steps of all items
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        start = start_of(item, sizes)
        row, begin, end = start[2], start[3], start[4]
        outputs = row + gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
        by_row = gl.full([BLOCK_N], 1.0 / FP8_DIVISOR, gl.float32, gl.SliceLayout(1, layout))
        if GROUPS < 16:
            by_row = 1.0 / gl.load(row_scale_ptr + outputs, mask=outputs < sizes[1], other=1.0)
        for step in range(begin, end):
            slot = count % WORD_STAGES
            mbarrier.wait(words_full.index(slot), count // WORD_STAGES & 1)
            own = words_of.index(slot).load(layout)
            for half in gl.static_range(2):
                block = 2 * count + half
                one = unpack_block(
                    own, groups, slot * GROUPS, by_row, 256 // GROUPS, CODEBOOK, 2 * half
                )
                other = unpack_block(
                    own, groups, slot * GROUPS, by_row, 256 // GROUPS, CODEBOOK, 2 * half + 1
                )
                both = gl.join(one, other).permute((0, 2, 1)).reshape([BLOCK_N, 128])
                if half == 1 or step > begin:  # only now, so that no warp waits for its stores
                    _signal(full, block - 1)
                if half == 1:  # all warps have loaded the words
                    _ask_words(
                        w_descs, words, words_full, following, count + WORD_STAGES, num_items
                    )
                    following = step_after(following, sizes)
                mbarrier.wait(empty.index(block % STAGES), (block // STAGES & 1) ^ 1)
                codes.index(block % STAGES).store(both)
            count += 1
        _signal(full, 2 * count - 1)


@gluon.jit
def _groups_of(words):
    """The rings of scales, and of zeros if there are such: a row for each group of each slot."""
    if len(words) == 2:
        return (_rows_of(words[1]),)
    else:
        return _rows_of(words[1]), _rows_of(words[2])


@gluon.jit
def _rows_of(ring):
    """A ring of groups' scales or zeros, a row for each group of each slot."""
    ROWS: gl.constexpr = ring.shape[0] * ring.shape[1]
    WIDTH: gl.constexpr = ring.shape[2]
    return seen_as(ring, ring.dtype, [ROWS, WIDTH], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def _signal(full, block):
    """Tell that a block's codes are there, once all warps have stored theirs."""
    fence_async_shared()
    barrier()
    mbarrier.arrive(full.index(block % full.shape[0]), count=1)


@gluon.jit
def _ask_words(w_descs, words, words_full, position, count, num_items):
    """Start to load a step's words, scales and zeros of groups, if there is such an item."""
    item, row, step = position[0], position[2], position[3]
    GROUPS: gl.constexpr = words[1].shape[1]
    num_bytes: gl.constexpr = w_descs[0].block_type.nbytes + w_descs[1].block_type.nbytes
    zero_bytes: gl.constexpr = w_descs[2].block_type.nbytes if len(words) > 2 else 0
    slot, there = count % WORD_STAGES, item < num_items
    full = words_full.index(slot)
    mbarrier.expect(full, num_bytes + zero_bytes, pred=there)
    fetch_box(w_descs[0], [step, row, 0], full, words[0].index(slot), there)
    fetch_box(w_descs[1], [step * GROUPS, row], full, words[1].index(slot), there)
    if len(words) > 2:
        fetch_box(w_descs[2], [step * GROUPS, row], full, words[2].index(slot), there)
