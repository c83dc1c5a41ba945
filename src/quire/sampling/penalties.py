"""What a request's own tokens and wishes do to its logits, before anything is drawn.

Owns logit_bias, the repetition, presence and frequency penalties, min_tokens, bad words and forms,
applied in this order; does not own temperature and the filters. Each feature costs the rows that
use it and no others, and touches only the logits of the tokens that it names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.sampling.arrays import Ints, Tokens
from quire.sampling.state import PENALTIES, Need, SamplingState


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


# Applies repetition, presence and frequency penalties to the logits of these places [U] of a batch,
# of these rows [U].
Penalise = Callable[[Tensor, Ints, Ints], None]


def adjust_logits(
    logits: Tensor,
    rows: Ints,
    state: SamplingState,
    history: History,
    penalise: Penalise | None = None,
) -> None:
    """Change contiguous float32 logits [S, P] of `rows` [S] in place.

    penalise: in place of what looks at the histories; without it all tokens in them are known.
    """
    needs = state.needs[rows]
    penalties: tuple[tuple[int, _Apply], ...] = (
        (Need.REPETITION, _penalise_repetition),
        (Need.PRESENCE, _penalise_presence),
    )
    if penalise is not None:
        penalties = ((PENALTIES, _by(penalise)),)
    steps: tuple[tuple[int, _Apply], ...] = (
        (Need.LOGIT_BIAS, _add_bias),
        *penalties,
        (Need.MIN_TOKENS, _ban_ends),
        (Need.BAD_WORDS, _ban_words),
        (Need.FORM, _keep_to_form),
    )
    for need, apply in steps:
        users = np.flatnonzero(needs & need)
        if len(users):
            apply(logits, _Users(users, rows[users], logits.shape[1]), state, history)


def _by(penalise: Penalise) -> _Apply:
    def apply(logits: Tensor, users: _Users, _: SamplingState, __: History) -> None:
        penalise(logits, users.places, users.rows)

    return apply


class _Users(NamedTuple):
    """The rows of a batch that use a feature: their places in it [U], their table rows [U]."""

    places: Ints
    rows: Ints
    size: int  # of a row of logits

    def flat(self, token_ids: list[npt.NDArray[Any]]) -> Ints:
        """Token ids of each user, as indices into the flattened logits."""
        places = zip(self.places, token_ids, strict=True)
        return np.concatenate([ids + place * self.size for place, ids in places])


_Apply = Callable[[Tensor, _Users, SamplingState, History], None]


def _add_bias(logits: Tensor, users: _Users, state: SamplingState, _: History) -> None:
    biases = [state.bias[row] for row in users.rows.tolist()]
    index = users.flat([bias.token_ids for bias in biases])
    values = np.concatenate([bias.values for bias in biases])
    logits.view(-1).index_add_(0, on_device(index, logits), on_device(values, logits))


def _penalise_repetition(
    logits: Tensor, users: _Users, state: SamplingState, history: History
) -> None:
    """x / r where x > 0, else x * r, for tokens in prompt or answer (CTRL paper, 4.1)."""
    known = [history.known(row) for row in users.rows]
    index = on_device(users.flat(known), logits)
    penalties = state.gather(users.rows).repetition_penalty.astype(np.float32)
    penalty = on_device(np.repeat(penalties, [len(ids) for ids in known]), logits)
    values = logits.view(-1)[index]
    # a token that occurs twice is written twice, with the same value
    logits.view(-1)[index] = torch.where(values > 0, values / penalty, values * penalty)


def _penalise_presence(
    logits: Tensor, users: _Users, state: SamplingState, history: History
) -> None:
    """x - frequency * count - presence, for tokens in the answer (OpenAI's definition)."""
    answers = [history.answer(row) for row in users.rows]
    index, counts = np.unique(users.flat(answers), return_counts=True)
    params = state.gather(users.rows[np.searchsorted(users.places, index // users.size)])
    penalty = (params.frequency_penalty * counts + params.presence_penalty).astype(np.float32)
    logits.view(-1).index_add_(0, on_device(index, logits), on_device(-penalty, logits))


def _ban_ends(logits: Tensor, users: _Users, state: SamplingState, history: History) -> None:
    """Ban the tokens that would end an answer which is still too short."""
    index = users.flat(
        [state.min_tokens[row].banned(len(history.answer(row))) for row in users.rows.tolist()]
    )
    _ban(logits, index)


def _ban_words(logits: Tensor, users: _Users, state: SamplingState, history: History) -> None:
    index = users.flat(
        [state.bad_words[row].banned(history.answer(row)) for row in users.rows.tolist()]
    )
    _ban(logits, index)


def _keep_to_form(logits: Tensor, users: _Users, state: SamplingState, history: History) -> None:
    for place, row in zip(users.places.tolist(), users.rows.tolist(), strict=True):
        banned = state.forms[row].banned(history.answer(row), users.size)
        logits[place].masked_fill_(on_device(banned, logits), -torch.inf)


def _ban(logits: Tensor, index: Ints) -> None:
    logits.view(-1).index_fill_(0, on_device(index, logits), -torch.inf)


def on_device(values: npt.NDArray[Any], like: Tensor) -> Tensor:
    """A host array as a tensor where `like` is; without a copy on the CPU, else without waiting."""
    host = torch.from_numpy(values)
    if like.device.type != "cuda":
        return host.to(like.device)
    return host.pin_memory().to(like.device, non_blocking=True)
