"""Draws on a device for rows with logits processors, without waiting for the device.

Owns the device's token counts of rows with penalties, which follow the draws there. The processors
are those of logits_processors.py, and the draw is the same as for other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from quire.array_types import Flags, Ints, Shorts
from quire.kernels.dispatch import Kernels
from quire.kernels.reference_step import MOST_COUNTED
from quire.sampling.device_logits import DeviceLogits, on_device
from quire.sampling.host_logits import History
from quire.sampling.logits_processors import apply_logits_processors
from quire.sampling.sampling_state import (
    CHANGES_LOGITS,
    PENALTIES,
    READS_OUTPUT_TOKENS,
    SamplingState,
)

DRAWN, FAILED, EXHAUSTED = 0, 1, 2  # the status of a draw

# float32 logits [U, V], int32 rows and positions [U] → int32 token ids and failures [U]
Draw = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class DeviceLogitsProcessors:
    """The rows of a SamplingState with logits processors, on a device.

    draw: draws by temperature, top-k, top-p and min-p.
    """

    def __init__(
        self,
        state: SamplingState,
        max_num_seqs: int,
        draw: Draw,
        kernels: Kernels,
        device: torch.device,
    ) -> None:
        self._state = state
        self._draw = draw
        self._kernels = kernels
        shape = (max_num_seqs, state.vocab_size)
        self._counts = torch.zeros(shape, dtype=torch.int16, device=device)

    def among(self, rows: Ints) -> Flags:
        """Flags [N] of the rows [N] that have logits processors."""
        found: Flags = (self._state.needs[rows] & CHANGES_LOGITS) != 0
        return found

    def read_answers(self, rows: Ints) -> bool:
        """Whether the host must know the output tokens of any of these rows before a draw."""
        return bool((self._state.needs[rows] & READS_OUTPUT_TOKENS).any())

    def enter(self, rows: Sequence[int], history: History) -> None:
        """Count the known tokens of new rows that have penalties."""
        index = np.array(rows, np.int64)
        for row in index[(self._state.needs[index] & PENALTIES) != 0].tolist():
            counted = _count(history, row, self._state.vocab_size)
            self._counts[row].copy_(on_device(counted, self._counts), non_blocking=True)

    def warm_up(self) -> None:
        """Launch the kernels that no graph holds: penalties, and a draw from float32."""
        logits = torch.zeros(1, self._state.vocab_size, device=self._counts.device)
        self._penalise(logits, np.zeros(1, np.int64), np.zeros(1, np.int64))
        nobody = on_device(np.full(1, -1, np.int32), logits)
        self._draw(logits, nobody, nobody.clone())

    def draw(self, raw: Tensor, rows: Ints, history: History) -> tuple[Tensor, Tensor]:
        """Draw a token for each of rows [U] from raw float32 logits [U, V], which are overwritten.

        history: num_tokens is that before this draw; token ids are read only where `read_answers`
        is true. Returns int32 [U] on the device: token ids, and DRAWN, FAILED or EXHAUSTED (see
        `SamplerOutput`).
        """
        lost = ~raw.amax(dim=1).isfinite()
        apply_logits_processors(DeviceLogits(raw, self._penalise), rows, self._state, history)
        # separate copies: kernels are compiled for addresses that are multiples of 16
        own = on_device(rows.astype(np.int32), raw)
        positions = on_device(history.num_tokens[rows].astype(np.int32), raw)
        tokens, failed = self._draw(raw, own, positions)
        self._note(rows, tokens)
        status = torch.where(lost, FAILED, failed * EXHAUSTED)
        return tokens, status.int()

    def _penalise(self, logits: Tensor, samples: Ints, rows: Ints) -> None:
        """Apply penalties to some samples of logits."""
        params = self._state.gather(rows)
        penalties = np.stack(
            [params.repetition_penalty, params.presence_penalty, params.frequency_penalty], axis=1
        )
        table = on_device(rows, logits), self._counts, on_device(penalties, logits)
        if len(samples) == len(logits):
            self._kernels.penalise(logits, *table)
            return
        index = on_device(samples, logits)
        some = logits.index_select(0, index)
        self._kernels.penalise(some, *table)
        logits.index_copy_(0, index, some)

    def _note(self, rows: Ints, tokens: Tensor) -> None:
        """Add the drawn tokens [U] to the counts of rows with penalties."""
        samples = np.flatnonzero(self._state.needs[rows] & PENALTIES)
        if not len(samples):
            return
        drawn = tokens[on_device(samples, tokens)].long()
        index = on_device(rows[samples] * self._state.vocab_size, tokens) + drawn
        counts = self._counts.view(-1)
        held = counts[index]
        counts[index] = held + (held.bitwise_and(MOST_COUNTED) < MOST_COUNTED)


def _count(history: History, row: int, vocab_size: int) -> Shorts:
    """A row of the counts table of `reference_step.penalise`."""
    answer = np.bincount(history.output(row), minlength=vocab_size)
    counts = np.minimum(answer, MOST_COUNTED).astype(np.int16)
    counts[history.prompt(row)] |= -0x8000
    return counts
