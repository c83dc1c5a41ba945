"""Plain PyTorch versions of the operations before and after the model in a step.

The model's own operations are in reference.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels.step_buffer import StepSections

MOST_COUNTED = 0x7FFF  # largest count of a token in an answer, see `penalise`


def build_inputs(
    packed: Tensor,
    sections: StepSections,
    last_tokens: Tensor,
    block_table: Tensor,
    inputs: Tensor,
    block_size: int,
) -> None:
    """Apply a step's changes to the block table, and compute the model's inputs for T tokens.

    packed: int32, a step as `sections` cut it; last_tokens int32 [R]; block_table int32 [R, N];
    inputs int64 [3, T]: token ids, positions, and slots, which are 0, 0 and -1 beyond the last
    token.
    """
    step = sections.cut(packed)
    _change_blocks(block_table, step.block_changes, int(step.header[0]))
    rows = step.token_rows.long()
    there = rows >= 0
    rows = rows.clamp(min=0)
    drawn = there & (step.token_ids < 0)
    ids = torch.where(drawn, last_tokens[rows], step.token_ids).long()
    tokens = torch.arange(len(rows), device=rows.device)
    # the last token of a row is at its length - 1
    positions = step.seq_lens[rows] - step.query_start_loc[rows + 1] + tokens
    positions = torch.where(there, positions, 0)
    blocks = block_table[rows, positions // block_size].long()
    slots = blocks * block_size + positions % block_size
    inputs.copy_(
        torch.stack([torch.where(there, ids, 0), positions, torch.where(there, slots, -1)])
    )


def move(target: Tensor, source: Tensor) -> None:
    """Copy int32 numbers [N] to the beginning of target, in stream order, without waiting.

    Either may be in the host's page-locked memory.
    """
    target[: len(source)].copy_(source, non_blocking=True)


def _change_blocks(block_table: Tensor, changes: Tensor, count: int) -> None:
    """changes int32 [..., 2]: an index into the flattened table, and the block id."""
    table = block_table.view(-1)
    table[changes[:count, 0].long()] = changes[:count, 1]


def finish_step(
    hidden: Tensor,
    step_len: Tensor,
    drawn: Tensor,
    failed: Tensor,
    rows: Tensor,
    last_tokens: Tensor,
) -> Tensor:
    """Store the sampled tokens for the next step, and collect what the host reads.

    hidden [N, H], of which the first step_len (int32 [1]) rows belong to tokens; drawn, failed,
    rows int32 [S], rows -1 where nothing was sampled; last_tokens int32 [R]. Returns int32
    [2 S + N]: drawn, failed, and 1 for each token whose hidden state is finite.
    """
    sampled = rows >= 0
    last_tokens[rows[sampled].long()] = drawn[sampled]
    counts = torch.arange(len(hidden), device=hidden.device) < step_len
    return torch.cat([drawn, failed, (hidden.isfinite().all(-1) & counts).int()])


def penalise(logits: Tensor, rows: Tensor, counts: Tensor, penalties: Tensor) -> None:
    """Apply repetition, presence and frequency penalties to logits float32 [U, V], in place.

    rows int64 [U]: rows of counts int16 [R, V]: how often a token is in the answer, with the sign
    bit set if it is in the prompt. penalties float64 [U, 3]: repetition (x / r where x > 0, else
    x * r; for tokens of prompt and answer), then presence and frequency (answer only).
    """
    held = counts[rows].int()
    repetition = penalties[:, :1].float()
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits.copy_(torch.where(held != 0, repeated, logits))
    times = held & MOST_COUNTED
    amount = (penalties[:, 2:] * times + penalties[:, 1:2]).float()
    logits.sub_(torch.where(times > 0, amount, 0.0))
