"""The first and the last kernel of a step: they build its inputs and collect its results.

Floor: a launch each. The first combines what the host sent with the tokens sampled last, which may
only be on the device yet. The last stores the new tokens there, so that the next step need not wait
for the host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.kernels.step_buffer import StepSections
from quire.kernels.triton.launch.workspace import follow, launches_early

_TOKENS = 128  # for each program
_NUM_WRITERS = 8  # programs that change the block table
_MOVED = 512  # numbers for each program
_MOST_CHECKERS = 1024  # programs that check hidden states


def build_inputs(
    packed: Tensor,
    sections: StepSections,
    last_tokens: Tensor,
    block_table: Tensor,
    inputs: Tensor,
    block_size: int,
) -> None:
    """Twin of `reference_step.build_inputs`."""
    num_tokens, pdl = sections.num_tokens, launches_early(packed.device)
    step = sections.cut(packed)
    changes = step.header, step.block_changes, block_table
    is_alone = num_tokens <= _TOKENS
    if not is_alone:
        change_blocks_kernel[(_NUM_WRITERS,)](*changes, PDL=pdl, num_warps=4, launch_pdl=pdl)
    build_inputs_kernel[(triton.cdiv(num_tokens, _TOKENS),)](
        *changes, step.query_start_loc, step.seq_lens, step.token_ids, step.token_rows,
        last_tokens, inputs, num_tokens, block_table.stride(0),
        BLOCK_SIZE=block_size, BLOCK=_TOKENS, IS_ALONE=is_alone, PDL=pdl,
        num_warps=4, launch_pdl=pdl,
    )  # fmt: skip


@triton.jit
def change_blocks_kernel(header_ptr, changes_ptr, table_ptr, PDL: tl.constexpr):
    """Write changed block ids to the block table; no entry is changed twice in a step."""
    if PDL:
        follow()
    _change_blocks(header_ptr, changes_ptr, table_ptr)


@triton.jit
def _change_blocks(header_ptr, changes_ptr, table_ptr):
    """Program i of n takes blocks i, i + n, ... of 256 changes."""
    count = tl.load(header_ptr)
    for begin in range(tl.program_id(0) * 256, count, tl.num_programs(0) * 256):
        i = begin + tl.arange(0, 256)
        index = tl.load(changes_ptr + 2 * i, mask=i < count, other=0)
        block_id = tl.load(changes_ptr + 2 * i + 1, mask=i < count, other=0)
        tl.store(table_ptr + index, block_id, mask=i < count)


@triton.jit(do_not_specialize=["num_tokens"])
def build_inputs_kernel(
    header_ptr, changes_ptr, table_ptr, query_start_ptr, seq_lens_ptr, ids_ptr, rows_ptr,
    last_ptr, inputs_ptr, num_tokens, stride_table,
    BLOCK_SIZE: tl.constexpr, BLOCK: tl.constexpr, IS_ALONE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Fill inputs [3, num_tokens]: token ids, positions, slots.

    IS_ALONE: the only program, which first changes the block table as well.
    """
    if PDL:
        follow()
    if IS_ALONE:
        _change_blocks(header_ptr, changes_ptr, table_ptr)
        tl.debug_barrier()  # other threads read what these have written
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = token < num_tokens
    row = tl.load(rows_ptr + token, mask=inside, other=-1)
    there = row >= 0
    sent = tl.load(ids_ptr + token, mask=there, other=0)
    drawn = tl.load(last_ptr + row, mask=there & (sent < 0), other=0)
    end = tl.load(query_start_ptr + row + 1, mask=there, other=0)
    length = tl.load(seq_lens_ptr + row, mask=there, other=0)
    position = tl.where(there, length - end + token, 0)
    index = row.to(tl.int64) * stride_table + position // BLOCK_SIZE
    block = tl.load(table_ptr + index, mask=there, other=0).to(tl.int64)
    slot = tl.where(there, block * BLOCK_SIZE + position % BLOCK_SIZE, -1)
    tl.store(inputs_ptr + token, tl.where(sent < 0, drawn, sent).to(tl.int64), mask=inside)
    tl.store(inputs_ptr + num_tokens + token, position.to(tl.int64), mask=inside)
    tl.store(inputs_ptr + 2 * num_tokens + token, slot, mask=inside)


def move(target: Tensor, source: Tensor) -> None:
    """Twin of `reference_step.move`. A kernel, as switching to the copy engine takes longer."""
    count = len(source)
    move_kernel[(triton.cdiv(count, _MOVED),)](target, source, count, BLOCK=_MOVED, num_warps=4)


@triton.jit(do_not_specialize=["count"])
def move_kernel(target_ptr, source_ptr, count, BLOCK: tl.constexpr):
    """Program b: copies block b of `count` numbers."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target_ptr + i, tl.load(source_ptr + i, mask=i < count), mask=i < count)


def finish_step(
    hidden: Tensor,
    step_len: Tensor,
    drawn: Tensor,
    failed: Tensor,
    rows: Tensor,
    last_tokens: Tensor,
) -> Tensor:
    """Twin of `reference_step.finish_step`. Its launch depends on shapes only."""
    num_samples, (num_tokens, size) = len(rows), hidden.shape
    pdl = launches_early(hidden.device)
    outcome = torch.empty(2 * num_samples + num_tokens, dtype=torch.int32, device=hidden.device)
    finish_step_kernel[(max(num_samples, min(num_tokens, _MOST_CHECKERS)),)](
        hidden, step_len, drawn, failed, rows, last_tokens, outcome, num_tokens, num_samples, size,
        BLOCK=min(8192, triton.next_power_of_2(size)), PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return outcome


@triton.jit(do_not_specialize=["num_tokens", "num_samples"])
def finish_step_kernel(
    hidden_ptr, step_len_ptr, drawn_ptr, failed_ptr, rows_ptr, last_ptr, outcome_ptr,
    num_tokens, num_samples, size, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program i of n: sample i, and the hidden states of tokens i, i + n, i + 2n, ..."""
    if PDL:
        follow()
    i = tl.program_id(0)
    sampled = i < num_samples
    step_len = tl.load(step_len_ptr)  # stores come last, as they wait for what they store
    row = tl.load(rows_ptr + i, mask=sampled, other=-1)
    token = tl.load(drawn_ptr + i, mask=sampled, other=0)
    failure = tl.load(failed_ptr + i, mask=sampled, other=0)
    for first in range(0, num_tokens, tl.num_programs(0)):
        t = first + i
        width = tl.where(t < num_tokens, size, 0)
        bad = tl.zeros([BLOCK], tl.int32)
        for begin in range(0, size, BLOCK):
            j = begin + tl.arange(0, BLOCK)
            index = hidden_ptr + t.to(tl.int64) * size + j
            x = tl.load(index, mask=j < width, other=0.0)
            finite = tl.abs(x.to(tl.float32)) < float("inf")  # false for NaN
            bad += 1 - finite.to(tl.int32)
        sound = (tl.sum(bad) == 0) & (t < step_len)
        index = outcome_ptr + 2 * num_samples + t
        tl.store(index, sound.to(tl.int32), mask=t < num_tokens)
    tl.store(outcome_ptr + i, token, mask=sampled)
    tl.store(outcome_ptr + num_samples + i, failure, mask=sampled)
    tl.store(last_ptr + row, token, mask=row >= 0)
