"""The persistent batch on the device: block tables, tokens sampled last, a step's inputs.

Owns these tensors, and how a step gets to them: one buffer, filled on the host and copied without
waiting. Does not own what a row's tokens are (input_batch.py), nor the KV cache's bytes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.array_types import Int32s, Ints
from quire.core.scheduler_output import SchedulerOutput
from quire.engine.core.input_batch import InputBatch, StepOrder
from quire.engine.core.shared_prefixes import SharedTiles
from quire.engine.core.step_sizes import StepSize
from quire.kernels.batch_layout import BatchLayout, SharedPrefixes
from quire.kernels.dispatch import Kernels
from quire.kernels.ragged_batch import FlatTokens
from quire.kernels.step_buffer import Step, StepSections

HostStep = Step[Int32s]
# Steps whose copies may be in progress: one runs, one waits, and one is being launched.
_NUM_BUFFERS = 3


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A step's tensors on the device; steps of one size use the same memory."""

    input_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    layout: BatchLayout


@dataclass(frozen=True, slots=True)
class DeviceSamples:
    """Inputs of sampling; steps of any number of tokens use the same memory."""

    tokens: Tensor  # int32 [S], index of the token whose logits are needed
    rows: Tensor  # int32 [S], -1 where the device samples nothing
    positions: Tensor  # int32 [S], positions of the sampled tokens
    step_len: Tensor  # int32 [1], tokens of the step


class DeviceBatch:
    """R rows on the device. batch: the same rows on the host. max_num_tokens: of a step.

    shares_prefixes: whether attention gets to know which requests begin with the same blocks.
    """

    def __init__(
        self,
        batch: InputBatch,
        max_num_tokens: int,
        kernels: Kernels,
        device: torch.device,
        *,
        shares_prefixes: bool = False,
    ) -> None:
        self._batch = batch
        self._kernels = kernels
        self._num_rows, num_blocks = batch.block_table.shape
        num_tiles = StepSections(0, self._num_rows).num_shared_tiles
        self._shared = SharedTiles(self._num_rows, num_tiles, batch.block_size)
        self._shares_prefixes = shares_prefixes
        self._changes = np.empty((0, 2), np.int32)  # to the block table, by the step taken last
        self._block_table = torch.zeros(batch.block_table.shape, dtype=torch.int32, device=device)
        self.last_tokens = torch.zeros(self._num_rows, dtype=torch.int32, device=device)
        most = StepSections(max_num_tokens, self._num_rows).size
        size = most + 2 * self._num_rows * num_blocks
        self._packed = torch.zeros(size, dtype=torch.int32, device=device)
        self._inputs = torch.zeros(3 * max_num_tokens, dtype=torch.int64, device=device)
        self._buffers = PinnedBuffers(size, device)

    def order(self, plan: SchedulerOutput) -> StepOrder:
        """Requests in the order of their rows."""
        rows = np.array([self._batch.row_of(entry.request_id) for entry in plan.scheduled])
        by_row = np.argsort(rows)
        scheduled = [plan.scheduled[index] for index in by_row.tolist()]
        query_start = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([entry.num_tokens for entry in scheduled], out=query_start[1:])
        seq_lens = np.array([entry.start + entry.num_tokens for entry in scheduled], np.int64)
        return StepOrder(scheduled, rows[by_row], query_start, seq_lens)

    def take(self, order: StepOrder) -> bool:
        """Note the new blocks of a step; returns whether some requests begin with the same blocks.

        In that order: blocks of a row's last request must not count as those of its new one.
        """
        self._changes = self._batch.append_blocks(order.rows, order.scheduled)
        if not self._shares_prefixes:
            return False
        decodes = np.flatnonzero(np.diff(order.query_start) == 1)
        rows, batch = order.rows[decodes], self._batch
        starts = order.seq_lens[decodes] - 1
        self._shared.update(rows, batch.tenancies[rows], starts, batch.block_table)
        return self._shared.num_tiles > 0

    def send(self, order: StepOrder, size: StepSize, due: Ints, on_device: Ints) -> None:
        """Start the copy of the step that was taken last.

        due [D]: indices of the requests that get a token, in the order of samples.
        on_device [D]: their rows where the recorded part samples, -1 for the others.
        """
        buffer = self._buffers.take()
        sections = self._sections(size)
        step = sections.cut(buffer.numpy())
        changes = self._changes
        step.header[0] = len(changes)
        step.block_changes[: len(changes)] = changes
        self._fill_tokens(step, order)
        self._fill_samples(step, order, due, on_device)
        self._fill_shared(step)
        length = sections.size + changes.size
        self._kernels.move(self._packed, buffer[:length])

    def clear(self, size: StepSize) -> None:
        """Instead of `send`: a step without requests, which reads and writes no blocks."""
        self._packed.zero_()
        step: Step[Tensor] = self._sections(size).cut(self._packed)
        step.token_rows.fill_(-1)
        step.sample_rows.fill_(-1)
        step.shared_index.fill_(-1)

    def build(self, size: StepSize) -> DeviceStep:
        """Launch the kernels that turn the copied step into the model's inputs."""
        sections = self._sections(size)
        step: Step[Tensor] = sections.cut(self._packed)
        inputs = self._inputs[: 3 * size.num_tokens].view(3, -1)
        self._kernels.build_inputs(
            self._packed, sections, self.last_tokens, self._block_table, inputs,
            self._batch.block_size,
        )  # fmt: skip
        layout = BatchLayout(
            query_start_loc=step.query_start_loc,
            seq_lens=step.seq_lens,
            block_table=self._block_table,
            slot_mapping=inputs[2],
            has_decodes=True,
            has_prefills=size.has_prefills,
            has_few_keys=size.has_few_keys,
            shared=self._shared_prefixes(step, size),
        )
        return DeviceStep(input_ids=inputs[0], positions=inputs[1], layout=layout)

    def samples(self, count: int) -> DeviceSamples:
        """Inputs of the first samples, as the host sent them."""
        step: Step[Tensor] = StepSections(0, self._num_rows).cut(self._packed)
        return DeviceSamples(
            tokens=step.sample_tokens[:count],
            rows=step.sample_rows[:count],
            positions=step.sample_positions[:count],
            step_len=step.query_start_loc[-1:],
        )

    def _shared_prefixes(self, step: Step[Tensor], size: StepSize) -> SharedPrefixes | None:
        """Shared prefixes, if there are some; always with prompts, where a launch costs little."""
        if not size.has_shared and not (size.has_prefills and self._shares_prefixes):
            return None
        return SharedPrefixes(
            num_tiles=step.header[1:2],
            index=step.shared_index,
            rows=step.shared_rows,
            lens=step.shared_lens,
        )

    def _sections(self, size: StepSize) -> StepSections:
        return StepSections(size.num_tokens, self._num_rows)

    def _fill_tokens(self, step: HostStep, order: StepOrder) -> None:
        counts = np.diff(order.query_start)
        lengths = np.zeros(self._num_rows, np.int32)
        lengths[order.rows] = counts
        step.query_start_loc[0] = 0
        np.cumsum(lengths, out=step.query_start_loc[1:])
        step.seq_lens[:] = 0
        step.seq_lens[order.rows] = order.seq_lens
        flat = FlatTokens.of(counts, order.seq_lens)
        rows, num_tokens = order.rows[flat.rows], len(flat.rows)
        is_known = flat.positions < self._batch.num_tokens[rows]
        known = self._batch.token_ids[rows, flat.positions]
        step.token_ids[:num_tokens] = np.where(is_known, known, -1)
        step.token_rows[:num_tokens] = rows
        step.token_rows[num_tokens:] = -1

    def _fill_samples(self, step: HostStep, order: StepOrder, due: Ints, on_device: Ints) -> None:
        count = len(due)
        last_tokens = order.query_start[due + 1] - 1
        step.sample_tokens[:count] = last_tokens
        step.sample_tokens[count:] = 0
        step.sample_rows[:count] = on_device
        step.sample_rows[count:] = -1
        step.sample_positions[:count] = step.seq_lens[order.rows[due]]
        step.sample_positions[count:] = 0

    def _fill_shared(self, step: HostStep) -> None:
        step.header[1] = self._shared.num_tiles
        step.shared_index[:] = self._shared.index
        step.shared_rows[:] = self._shared.rows.reshape(-1)
        step.shared_lens[:] = self._shared.lens


class PinnedBuffers:
    """A ring of int32 [size] buffers, one for each step; page-locked where the device is a GPU."""

    def __init__(self, size: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._buffers = deque(
            torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu) for _ in range(_NUM_BUFFERS)
        )

    def take(self) -> Tensor:
        """The buffer that was used least recently."""
        self._buffers.rotate(-1)  # in one call, so that an interrupt loses no buffer
        return self._buffers[-1]
