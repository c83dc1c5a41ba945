"""The persistent batch: one row per running request, updated by each plan's differences.

Owns token ids and block tables on the host, and builds the flat arrays of a ragged step from a
plan. No torch.
"""

from __future__ import annotations

import msgspec
import numpy as np

from quire.array_types import Ints, Tokens
from quire.core.scheduler_output import NewRequest, ScheduledRequest, SchedulerOutput
from quire.kernels.ragged_batch import RaggedBatch
from quire.sampling.host_logits import History

_NO_CHANGES = np.empty((0, 2), np.int32)


class StepOrder(msgspec.Struct, frozen=True):
    """The assignment of a step's T flat tokens to requests."""

    scheduled: list[ScheduledRequest]  # in batch order
    rows: Ints  # [B] batch row of each scheduled request
    query_start: Ints  # [B + 1] first token of each request in the flat list
    seq_lens: Ints  # [B] tokens that each request has after the step


class StepInputs(StepOrder, frozen=True):
    """The inputs of one ragged step, decodes first."""

    input_ids: Ints  # [T]
    ragged: RaggedBatch


class InputBatch:
    """R rows; each is free or belongs to one running request.

    token_ids: int32 [R, max_model_len], known tokens; sampled ones are appended as soon as they are
    drawn, so the next step need not wait for the scheduler. history: these, for logits processors.
    block_table: int32 [R, max_blocks]. tenancies: int64 [R], incremented each time a row is given
    to another request.
    """

    def __init__(self, *, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        max_blocks = -(-max_model_len // block_size)
        self.block_size = block_size
        self.token_ids = np.zeros((max_num_seqs, max_model_len), np.int32)
        self.num_tokens = np.zeros(max_num_seqs, np.int32)
        self.num_prompt_tokens = np.zeros(max_num_seqs, np.int32)
        self.history = History(self.token_ids, self.num_tokens, self.num_prompt_tokens)
        self.block_table = np.zeros((max_num_seqs, max_blocks), np.int32)
        self._num_blocks = [0] * max_num_seqs
        self.tenancies = np.zeros(max_num_seqs, np.int64)
        self.reset()

    def reset(self) -> None:
        """Free all rows."""
        self._rows: dict[str, int] = {}
        self._free_rows = list(range(len(self.num_tokens) - 1, -1, -1))

    def row_of(self, request_id: str) -> int:
        """The row of a running request in the batch."""
        return self._rows[request_id]

    def remove(self, request_id: str) -> int | None:
        """Free a request's row; returns it, or None if the request never entered the batch."""
        row = self._rows.pop(request_id, None)
        if row is not None:
            self._free_rows.append(row)
        return row

    def add(self, request: NewRequest) -> int:
        """Assign a row to a request and store its known tokens; returns the row."""
        row = self._free_rows.pop()
        self.tenancies[row] += 1
        self._rows[request.request_id] = row
        self.token_ids[row, : len(request.token_ids)] = request.token_ids
        self.num_tokens[row] = len(request.token_ids)
        self.num_prompt_tokens[row] = request.num_prompt_tokens
        self._num_blocks[row] = 0
        return row

    def append_tokens(self, rows: Ints, token_ids: Tokens) -> None:
        """Append a sampled token to each of these rows."""
        self.token_ids[rows, self.num_tokens[rows]] = token_ids
        self.num_tokens[rows] += 1

    def prepare(self, plan: SchedulerOutput) -> StepInputs:
        """The flat inputs of a plan, without padding."""
        scheduled = plan.scheduled
        counts = [entry.num_tokens for entry in scheduled]
        has_prompts = max(counts) > 1
        if has_prompts:
            scheduled = sorted(scheduled, key=lambda entry: entry.num_tokens > 1)
            counts = [entry.num_tokens for entry in scheduled]
        rows = np.array([self._rows[entry.request_id] for entry in scheduled], np.int64)
        self.append_blocks(rows, scheduled)
        ends = [entry.start + entry.num_tokens for entry in scheduled]
        table = self.block_table[rows, : -(-max(ends) // self.block_size)]
        query_lens, seq_lens = np.array(counts, np.int64), np.array(ends, np.int64)
        prompt_lens = self.num_prompt_tokens[rows].astype(np.int64)
        decodes_only = not has_prompts and bool((seq_lens > prompt_lens).all())
        ragged = RaggedBatch.of(
            query_lens, seq_lens, table, self.block_size,
            prompt_lens=None if decodes_only else prompt_lens,
        )  # fmt: skip
        flat = ragged.flat
        return StepInputs(
            scheduled=scheduled,
            rows=rows,
            query_start=flat.query_start,
            seq_lens=seq_lens,
            input_ids=self.token_ids[rows[flat.rows], flat.positions].astype(np.int64),
            ragged=ragged,
        )

    def append_blocks(self, rows: Ints, scheduled: list[ScheduledRequest]) -> Tokens:
        """Append a step's new blocks to the block tables of its rows [B].

        Returns the changes: int32 [N, 2], indices into the flattened table and block ids.
        """
        width = self.block_table.shape[1]
        indices, block_ids = list[int](), list[int]()
        for entry, row in zip(scheduled, rows.tolist(), strict=True):
            if entry.new_block_ids:
                first = row * width + self._num_blocks[row]
                self._num_blocks[row] += len(entry.new_block_ids)
                indices += range(first, first + len(entry.new_block_ids))
                block_ids += entry.new_block_ids
        if not indices:  # as in most steps
            return _NO_CHANGES
        changes = np.array([indices, block_ids], np.int32)
        self.block_table.reshape(-1)[changes[0]] = changes[1]
        return changes.T
