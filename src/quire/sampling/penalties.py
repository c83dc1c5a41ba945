"""What a request's own tokens and wishes do to its logits, before anything is drawn.

Owns logit_bias, the three penalties, min_tokens and bad words, applied in this order; does not own
temperature and the filters. Each feature costs the rows that use it and no others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.sampling.state import Need, SamplingState

Ints = npt.NDArray[np.int64]


class History(NamedTuple):
    """The known tokens of the running requests, by row of the sampling state.

    token_ids: int32 [R, max_len]; num_tokens, num_prompt_tokens: [R], how many of them are known
    and how many of these are the prompt.
    """

    token_ids: npt.NDArray[np.int32]
    num_tokens: npt.NDArray[np.integer]
    num_prompt_tokens: npt.NDArray[np.integer]

    def answer(self, row: int) -> npt.NDArray[np.int32]:
        """The answer tokens of one row, so far."""
        return self.token_ids[row, self.num_prompt_tokens[row] : self.num_tokens[row]]


def adjust_logits(logits: Tensor, rows: Ints, state: SamplingState, history: History) -> None:
    """Change contiguous logits [S, P] of `rows` [S] in place."""
    needs = state.needs[rows]
    if np.any(needs & Need.LOGIT_BIAS):
        _add_bias(logits, rows, np.flatnonzero(needs & Need.LOGIT_BIAS), state)
    if np.any(needs & Need.PENALTIES):
        _penalise(logits, rows, np.flatnonzero(needs & Need.PENALTIES), state, history)
    if np.any(needs & (Need.MIN_TOKENS | Need.BAD_WORDS)):
        _ban(logits, rows, needs, state, history)


def _add_bias(logits: Tensor, rows: Ints, users: Ints, state: SamplingState) -> None:
    biases = [state.bias[rows[i]] for i in users]
    flat = [bias.token_ids + i * logits.shape[1] for i, bias in zip(users, biases, strict=True)]
    values = np.concatenate([bias.values for bias in biases])
    index, addends = _on(logits, np.concatenate(flat)), _on(logits, values)
    logits.view(-1).index_add_(0, index, addends)


def _penalise(
    logits: Tensor, rows: Ints, users: Ints, state: SamplingState, history: History
) -> None:
    """Repetition: x / r where x > 0, else x * r, for tokens in prompt or answer (CTRL, 4.1).

    Then frequency and presence, for tokens in the answer: x - f * count - p (OpenAI). Only logits
    of known tokens are touched: each is read, changed and written back at each of its places.
    """
    ids, in_answer = _known_tokens(rows[users], state, history)  # [U, L]
    index, weights = _on(logits, ids), _on(logits, in_answer)
    counts = logits.new_zeros(len(users), logits.shape[1]).scatter_add_(1, index, weights)
    counts = counts.gather(1, index)  # [U, L]: how often the answer holds this token
    numbers = state.gather(rows[users])
    repetition, frequency, presence = (
        value.to(logits.dtype).unsqueeze(1)
        for value in (
            numbers.repetition_penalty,
            numbers.frequency_penalty,
            numbers.presence_penalty,
        )
    )
    places = index + _on(logits, users * logits.shape[1]).unsqueeze(1)
    values = logits.view(-1)[places]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= frequency * counts + presence * (counts > 0)
    logits.view(-1)[places] = values


def _known_tokens(
    rows: Ints, state: SamplingState, history: History
) -> tuple[Ints, npt.NDArray[np.float32]]:
    """Token ids [U, L] of these rows, and 1 where a token belongs to the answer, else 0.

    The prompts are left out where no row looks at them. A row that is shorter than L is filled
    with a token that it holds anyway.
    """
    starts = history.num_prompt_tokens[rows, None]
    ends = history.num_tokens[rows, None]  # [U, 1]
    reads_prompt = bool(np.any(state.needs[rows] & Need.PROMPT))
    columns = np.arange(0 if reads_prompt else starts.min(), ends.max())
    tokens = history.token_ids[rows[:, None], np.minimum(columns, ends - 1)]
    in_answer = (columns >= starts) & (columns < ends)
    return tokens.astype(np.int64), in_answer.astype(np.float32)


def _ban(
    logits: Tensor, rows: Ints, needs: npt.NDArray[np.int16], state: SamplingState, history: History
) -> None:
    banned = []
    for i in np.flatnonzero(needs & (Need.MIN_TOKENS | Need.BAD_WORDS)):
        row, answer = int(rows[i]), history.answer(rows[i])
        if needs[i] & Need.MIN_TOKENS and len(answer) < state.min_tokens[row].length:
            banned.append(state.min_tokens[row].token_ids + i * logits.shape[1])
        if needs[i] & Need.BAD_WORDS:
            banned.append(state.bad_words[row].banned(answer) + i * logits.shape[1])
    if banned:
        logits.view(-1).index_fill_(0, _on(logits, np.concatenate(banned)), -torch.inf)


def _on(logits: Tensor, values: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(values).to(logits.device)
