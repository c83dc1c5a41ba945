"""Logits processors: what sampling params change in the logits before a token is drawn.

Owns their order: logit_bias, the repetition, presence and frequency penalties, min_tokens, bad
words, allowed tokens, structured outputs, thinking budgets. Temperature, top-k, top-p and min-p
belong to the draw (draw.py). The arithmetic is in host_logits.py and device_logits.py. Rows that
use no processor cost nothing.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from quire.array_types import Flags, Ints, Logits
from quire.sampling.host_logits import History, flat_index
from quire.sampling.sampling_state import PENALTIES, Need, SamplingState
from quire.sampling.structured_mask import compute_masks


class MutableLogits(Protocol):
    """Logits [S, P] of S samples. An `index` holds unique indices into the flattened logits."""

    @property
    def size(self) -> int:
        """The padded vocabulary size P."""

    def add(self, index: Ints, values: Logits) -> None:
        """Add values [N] to these logits [N]."""

    def ban(self, index: Ints) -> None:
        """Set these logits [N] to minus infinity."""

    def ban_flagged(self, sample: int, banned: Flags) -> None:
        """Set the logits of one sample to minus infinity where the flag [P] is set."""

    def force(self, sample: int, token_id: int) -> None:
        """Set all logits of one sample to minus infinity, and that of this token to 0."""

    def penalise(self, samples: Ints, rows: Ints) -> None:
        """Apply the three penalties to samples [U], which are rows [U] of the sampling state."""


def apply_logits_processors(
    logits: MutableLogits, rows: Ints, state: SamplingState, history: History
) -> None:
    """Apply all logits processors to the logits of `rows` [S], in place."""
    needs = state.needs[rows]
    for need, apply in _PROCESSORS:
        samples = np.flatnonzero(needs & need)
        if len(samples):
            apply(logits, _Users(samples, rows[samples], state, history))


class _Users(NamedTuple):
    """The samples [U] that use a processor, and their rows [U] in the sampling state."""

    samples: Ints
    rows: Ints
    state: SamplingState
    history: History


def _add_bias(logits: MutableLogits, users: _Users) -> None:
    """Logits processor of logit_bias: add it to the logits."""
    biases = [users.state.bias[row] for row in users.rows.tolist()]
    index = flat_index(users.samples, [bias.token_ids for bias in biases], logits.size)
    logits.add(index, np.concatenate([bias.values for bias in biases]))


def _penalise(logits: MutableLogits, users: _Users) -> None:
    """Logits processor of the repetition, presence and frequency penalties."""
    logits.penalise(users.samples, users.rows)


def _ban_ends(logits: MutableLogits, users: _Users) -> None:
    """Logits processor of min_tokens: ban end and stop tokens while the answer is too short."""
    min_tokens, output = users.state.min_tokens, users.history.output
    banned = [min_tokens[row].banned(len(output(row))) for row in users.rows.tolist()]
    logits.ban(flat_index(users.samples, banned, logits.size))


def _ban_words(logits: MutableLogits, users: _Users) -> None:
    """Logits processor of bad_words: ban tokens that would complete one."""
    bad_words, output = users.state.bad_words, users.history.output
    banned = [bad_words[row].banned(output(row)) for row in users.rows.tolist()]
    logits.ban(flat_index(users.samples, banned, logits.size))


def _ban_others(logits: MutableLogits, users: _Users) -> None:
    """Logits processor of allowed_token_ids: ban all other tokens."""
    for sample, row in zip(users.samples.tolist(), users.rows.tolist(), strict=True):
        logits.ban_flagged(sample, users.state.allowed_tokens[row].banned(logits.size))


def _apply_grammar(logits: MutableLogits, users: _Users) -> None:
    """Logits processor of structured outputs: ban tokens that the grammar does not allow."""
    rows, state = users.rows.tolist(), users.state
    grammars = [state.grammars[row] for row in rows]
    outputs = [users.history.output(row) for row in rows]
    compute_masks(state.mask_thread, grammars, outputs, state.begin_masks())
    for sample, grammar in zip(users.samples.tolist(), grammars, strict=True):
        logits.ban_flagged(sample, grammar.banned(logits.size))


def _end_thinking(logits: MutableLogits, users: _Users) -> None:
    """Logits processor of thinking_token_budget: force the end of reasoning that reached it.

    A grammar that has no place for this end is not left.
    """
    for sample, row in zip(users.samples.tolist(), users.rows.tolist(), strict=True):
        output, grammar = users.history.output(row), users.state.grammars.get(row)
        token_id = users.state.thinking_budgets[row].forced(output)
        if token_id is None:
            continue
        if grammar is None or not grammar.banned(logits.size)[token_id]:
            logits.force(sample, token_id)


_PROCESSORS = (
    (int(Need.LOGIT_BIAS), _add_bias),
    (PENALTIES, _penalise),
    (int(Need.MIN_TOKENS), _ban_ends),
    (int(Need.BAD_WORDS), _ban_words),
    (int(Need.ALLOWED_TOKENS), _ban_others),
    (int(Need.GRAMMAR), _apply_grammar),
    (int(Need.THINKING_BUDGET), _end_thinking),
)
