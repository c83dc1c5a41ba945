"""Logits on the host, as wishes change them there: biases, bans, and penalties by known tokens.

Owns the arithmetic of these changes; does not own which rows want them, nor in which order: see
logits_processors.py. Only the logits of tokens that are named are touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quire.array_types import Flags, Ints, Logits, Tokens
from quire.sampling.sampling_state import Need, SamplingState


class History(NamedTuple):
    """The known tokens of the running requests, by row of the sampling state.

    token_ids: int32 [R, max_len]; num_tokens, num_prompt_tokens: [R], how many of them are known
    and how many of these are the prompt.
    """

    token_ids: Tokens
    num_tokens: npt.NDArray[np.integer]
    num_prompt_tokens: npt.NDArray[np.integer]

    def known(self, row: int) -> Tokens:
        """Prompt and answer so far."""
        return self.token_ids[row, : self.num_tokens[row]]

    def prompt(self, row: int) -> Tokens:
        """The prompt."""
        return self.token_ids[row, : self.num_prompt_tokens[row]]

    def answer(self, row: int) -> Tokens:
        """The answer so far."""
        return self.token_ids[row, self.num_prompt_tokens[row] : self.num_tokens[row]]


def flat_index(places: Ints, token_ids: Sequence[npt.NDArray[np.integer]], size: int) -> Ints:
    """The tokens of each of these rows [U] as indices into flattened logits [S, size]."""
    return np.concatenate(
        [ids + place * size for place, ids in zip(places.tolist(), token_ids, strict=True)]
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
        """P."""
        size: int = self._values.shape[1]
        return size

    def add(self, index: Ints, values: Logits) -> None:
        """See `MutableLogits`."""
        self._flat[index] += values

    def ban(self, index: Ints) -> None:
        """See `MutableLogits`."""
        self._flat[index] = -np.inf

    def ban_flagged(self, place: int, banned: Flags) -> None:
        """See `MutableLogits`."""
        np.putmask(self._values[place], banned, -np.inf)

    def penalise(self, places: Ints, rows: Ints) -> None:
        """See `MutableLogits`."""
        needs = self._state.needs[rows]
        for need, apply in ((Need.REPETITION, self._repeat), (Need.PRESENCE, self._present)):
            users = np.flatnonzero(needs & need)
            if len(users):
                apply(places[users], rows[users])

    def _repeat(self, places: Ints, rows: Ints) -> None:
        """x / r where x > 0, else x * r, for tokens in prompt or answer (CTRL paper, 4.1)."""
        known = [self._history.known(row) for row in rows.tolist()]
        index = flat_index(places, known, self.size)
        penalties = self._state.gather(rows).repetition_penalty.astype(np.float32)
        penalty = np.repeat(penalties, [len(ids) for ids in known])
        values = self._flat[index]
        # a token that occurs twice is written twice, with the same value
        with np.errstate(over="ignore"):  # to infinity, as everywhere
            self._flat[index] = np.where(values > 0, values / penalty, values * penalty)

    def _present(self, places: Ints, rows: Ints) -> None:
        """x - frequency * count - presence, for tokens in the answer (OpenAI's definition)."""
        answers = [self._history.answer(row) for row in rows.tolist()]
        index, counts = np.unique(flat_index(places, answers, self.size), return_counts=True)
        params = self._state.gather(rows[np.searchsorted(places, index // self.size)])
        penalty = (params.frequency_penalty * counts + params.presence_penalty).astype(np.float32)
        self.add(index, -penalty)
