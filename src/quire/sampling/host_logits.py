"""Logits processing on the host: biases, bans, and repetition, presence and frequency penalties.

Owns the arithmetic. Which rows use a processor, and in which order, is in logits_processors.py.
Only the logits of the named tokens are touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from quire.array_types import Flags, Integers, Ints, Logits, Tokens
from quire.sampling.sampling_state import Need, SamplingState


class History(NamedTuple):
    """The known tokens of the running requests, by row of the sampling state.

    token_ids: int32 [R, max_len]; num_tokens [R]: known tokens; num_prompt_tokens [R]: those of
    the prompt among them.
    """

    token_ids: Tokens
    num_tokens: Integers
    num_prompt_tokens: Integers

    def known(self, row: int) -> Tokens:
        """All tokens of a row: its prompt and its output."""
        return self.token_ids[row, : self.num_tokens[row]]

    def prompt(self, row: int) -> Tokens:
        """The prompt tokens of a row."""
        return self.token_ids[row, : self.num_prompt_tokens[row]]

    def output(self, row: int) -> Tokens:
        """The output tokens of a row."""
        return self.token_ids[row, self.num_prompt_tokens[row] : self.num_tokens[row]]


def flat_index(samples: Ints, token_ids: Sequence[Integers], size: int) -> Ints:
    """Indices into flattened logits [S, size] of each sample's token ids. samples: rows [U]."""
    return np.concatenate(
        [ids + sample * size for sample, ids in zip(samples.tolist(), token_ids, strict=True)]
    )


class HostLogits:
    """Contiguous float32 logits [S, P] in an array; see `MutableLogits`."""

    def __init__(self, values: Logits, state: SamplingState, history: History) -> None:
        self._values = values
        self._flat = values.reshape(-1)
        self._state = state
        self._history = history

    @property
    def size(self) -> int:
        """The padded vocabulary size P."""
        size: int = self._values.shape[1]
        return size

    def add(self, index: Ints, values: Logits) -> None:
        """As in `MutableLogits`."""
        self._flat[index] += values

    def ban(self, index: Ints) -> None:
        """As in `MutableLogits`."""
        self._flat[index] = -np.inf

    def ban_flagged(self, sample: int, banned: Flags) -> None:
        """As in `MutableLogits`."""
        np.putmask(self._values[sample], banned, -np.inf)

    def force(self, sample: int, token_id: int) -> None:
        """As in `MutableLogits`."""
        self._values[sample] = -np.inf
        self._values[sample, token_id] = 0.0

    def penalise(self, samples: Ints, rows: Ints) -> None:
        """As in `MutableLogits`."""
        needs = self._state.needs[rows]
        for need, apply in (
            (Need.REPETITION, self._penalise_repetition),
            (Need.PRESENCE, self._penalise_presence),
        ):
            users = np.flatnonzero(needs & need)
            if len(users):
                apply(samples[users], rows[users])

    def _penalise_repetition(self, samples: Ints, rows: Ints) -> None:
        """Repetition penalty: x / r if x > 0, else x * r, for known tokens (CTRL paper, 4.1)."""
        known = [self._history.known(row) for row in rows.tolist()]
        index = flat_index(samples, known, self.size)
        penalties = self._state.gather(rows).repetition_penalty.astype(np.float32)
        penalty = np.repeat(penalties, [len(ids) for ids in known])
        values = self._flat[index]
        # a token that occurs twice is written twice, with the same value
        # to infinity, as everywhere; the smallest penalties are 0 in float32
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            self._flat[index] = np.where(values > 0, values / penalty, values * penalty)

    def _penalise_presence(self, samples: Ints, rows: Ints) -> None:
        """Presence and frequency penalties: x - frequency * count - presence, for output tokens."""
        outputs = [self._history.output(row) for row in rows.tolist()]
        index, counts = np.unique(flat_index(samples, outputs, self.size), return_counts=True)
        params = self._state.gather(rows[np.searchsorted(samples, index // self.size)])
        penalty = (params.frequency_penalty * counts + params.presence_penalty).astype(np.float32)
        self.add(index, -penalty)
