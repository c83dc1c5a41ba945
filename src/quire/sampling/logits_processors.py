"""What a request's own tokens and wishes do to its logits, before anything is drawn.

Owns the order of logit_bias, the repetition, presence and frequency penalties, min_tokens, bad
words and forms; does not own temperature and the filters, nor where logits are: host_logits.py has
them on the host, device_logits.py on a device. Each feature costs the rows that use it and no
others.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from quire.array_types import Flags, Ints, Logits
from quire.sampling.host_logits import History, flat_index
from quire.sampling.sampling_state import PENALTIES, Need, SamplingState


class MutableLogits(Protocol):
    """Logits [S, P] of some rows. An index is one into all of them as a flat list, unique."""

    @property
    def size(self) -> int:
        """P."""

    def add(self, index: Ints, values: Logits) -> None:
        """Add values [N] to these logits [N]."""

    def ban(self, index: Ints) -> None:
        """Make these logits [N] minus infinity."""

    def ban_flagged(self, place: int, banned: Flags) -> None:
        """Make those of one row minus infinity for which the flag [P] is set."""

    def penalise(self, places: Ints, rows: Ints) -> None:
        """Apply the three penalties to places [U], whose rows of the state are `rows` [U]."""


def adjust_logits(
    logits: MutableLogits, rows: Ints, state: SamplingState, history: History
) -> None:
    """Change the logits of `rows` [S] in place."""
    needs = state.needs[rows]
    for need, apply in _STEPS:
        places = np.flatnonzero(needs & need)
        if len(places):
            apply(logits, _Users(places, rows[places], state, history))


class _Users(NamedTuple):
    """The rows of a batch that use a feature: their places in it [U], their table rows [U]."""

    places: Ints
    rows: Ints
    state: SamplingState
    history: History


def _add_bias(logits: MutableLogits, users: _Users) -> None:
    biases = [users.state.bias[row] for row in users.rows.tolist()]
    index = flat_index(users.places, [bias.token_ids for bias in biases], logits.size)
    logits.add(index, np.concatenate([bias.values for bias in biases]))


def _penalise(logits: MutableLogits, users: _Users) -> None:
    logits.penalise(users.places, users.rows)


def _ban_ends(logits: MutableLogits, users: _Users) -> None:
    """Ban the tokens that would end an answer which is still too short."""
    wishes, answer = users.state.min_tokens, users.history.answer
    banned = [wishes[row].banned(len(answer(row))) for row in users.rows.tolist()]
    logits.ban(flat_index(users.places, banned, logits.size))


def _ban_words(logits: MutableLogits, users: _Users) -> None:
    wishes, answer = users.state.bad_words, users.history.answer
    banned = [wishes[row].banned(answer(row)) for row in users.rows.tolist()]
    logits.ban(flat_index(users.places, banned, logits.size))


def _keep_to_form(logits: MutableLogits, users: _Users) -> None:
    for place, row in zip(users.places.tolist(), users.rows.tolist(), strict=True):
        form = users.state.forms[row]
        logits.ban_flagged(place, form.banned(users.history.answer(row), logits.size))


_STEPS = (
    (int(Need.LOGIT_BIAS), _add_bias),
    (PENALTIES, _penalise),
    (int(Need.MIN_TOKENS), _ban_ends),
    (int(Need.BAD_WORDS), _ban_words),
    (int(Need.FORM), _keep_to_form),
)
