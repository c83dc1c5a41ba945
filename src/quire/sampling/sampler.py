"""From logits to tokens, for all rows of a step.

Owns the order of things (check, adjust, draw, report) and which rows go which way; does not own
what happens there: see penalties, draw and logprobs. A row's result is bitwise the same whatever
the other rows are: each function below works row by row, and rows are only grouped for speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.core.messages import TokenLogprobs
from quire.sampling.draw import draw_any, draw_filtered, relative_weights, total_mass
from quire.sampling.logprobs import prompt_logprobs, token_logprobs
from quire.sampling.penalties import History, Ints, adjust_logits
from quire.sampling.random import uniforms
from quire.sampling.ranking import block_maxima, highest, padded
from quire.sampling.state import CHANGES_LOGITS, Need, RowParams, SamplingState

__all__ = ["Sampler", "SamplerOutput", "prompt_logprobs"]

# how a row is drawn if it is not greedy
_PLAIN = int(Need.RANDOM)
_HEAD = int(Need.RANDOM | Need.FILTER)
_TOP_P = int(Need.RANDOM | Need.FILTER | Need.TOTAL_MASS)
_KINDS = _TOP_P

_CPU_CHUNK = 1 << 18  # logits drawn from at a time: 1 MiB, which stays in a core's cache


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """The outcome of each row, in the order asked.

    failed: the model's logits held NaN or +inf, or no token was left to draw; then the token id
    means nothing. logprobs: for rows that asked and did not fail.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    failed: list[bool]


class Sampler:
    """Draws the next token of rows of a SamplingState."""

    def __init__(self, state: SamplingState) -> None:
        self._state = state

    def sample(
        self,
        logits: Tensor,
        rows: list[int],
        token_ids: npt.NDArray[np.int32],
        num_tokens: npt.NDArray[np.integer],
        num_prompt_tokens: npt.NDArray[np.integer],
    ) -> SamplerOutput:
        """Draw one token for each of `rows` [S] from float32 logits [S, V], which are used up.

        token_ids [R, max_len], num_tokens [R], num_prompt_tokens [R]: the known tokens of all
        rows; the token drawn will stand at position num_tokens[row]. Its random number depends on
        the row's seed and this position alone. Greedy rows take the highest logit, of equals the
        lowest id.
        """
        index = np.array(rows, np.int64)
        history = History(token_ids, num_tokens, num_prompt_tokens)
        asked = np.flatnonzero(self._state.needs[index] & Need.LOGPROBS)
        raw = logits[torch.from_numpy(asked)] if len(asked) else logits  # before it is changed
        logits = padded(logits)
        maxima, failed = self._adjust(logits, index, history)
        drawn = highest(logits, maxima)
        kinds = np.where(failed, 0, self._state.needs[index] & _KINDS)
        if np.any(kinds):
            numbers = uniforms(self._state.seeds[index], num_tokens[index].astype(np.int64))
            peaks = maxima.amax(-1)
            for kind, part in _parts(kinds, logits):
                place = torch.from_numpy(part).to(logits.device)
                params = self._state.gather(index[part])
                uniform = torch.from_numpy(numbers[part]).to(logits.device)
                drawn[place] = _draw(kind, logits[place], peaks[place], params, uniform)
        tokens: list[int] = drawn.tolist()
        return SamplerOutput(
            tokens, self._report(raw, asked, index, tokens, failed), failed.tolist()
        )

    def _adjust(
        self, logits: Tensor, rows: Ints, history: History
    ) -> tuple[Tensor, npt.NDArray[np.bool_]]:
        """Apply the rows' wishes in place; returns the block maxima, and which rows failed.

        Maxima tell it all: NaN and +inf go through to them, and -inf is left if nothing else is.
        """
        maxima = block_maxima(logits)
        finite = torch.isfinite(maxima.amax(-1))
        changed = np.flatnonzero(self._state.needs[rows] & CHANGES_LOGITS)
        if len(changed):
            adjust_logits(logits, rows, self._state, history)
            place = torch.from_numpy(changed).to(logits.device)
            maxima[place] = block_maxima(logits[place])
            finite &= torch.isfinite(maxima.amax(-1))
        return maxima, ~finite.cpu().numpy()

    def _report(
        self,
        raw: Tensor,
        asked: Ints,
        rows: Ints,
        tokens: list[int],
        failed: npt.NDArray[np.bool_],
    ) -> list[TokenLogprobs | None]:
        """Log-probabilities for the rows that asked; raw: their logits [A, V]."""
        report: list[TokenLogprobs | None] = [None] * len(tokens)
        if len(asked):
            counts = self._state.num_logprobs[rows[asked]].tolist()
            found = token_logprobs(raw, [tokens[i] for i in asked], counts)
            for i, logprobs in zip(asked, found, strict=True):
                report[i] = None if failed[i] else logprobs
        return report


def _parts(kinds: npt.NDArray[np.int16], logits: Tensor) -> Iterator[tuple[int, Ints]]:
    """Rows [S] by what they need to be drawn; on a CPU few at a time, so that they stay cached."""
    size = max(1, _CPU_CHUNK // logits.shape[1]) if logits.device.type == "cpu" else len(kinds)
    for kind in (_PLAIN, _TOP_P, _HEAD):
        places = np.flatnonzero(kinds == kind)
        for begin in range(0, len(places), size):
            yield kind, places[begin : begin + size]


def _draw(kind: int, logits: Tensor, peaks: Tensor, params: RowParams, uniform: Tensor) -> Tensor:
    """Draw for rows [S, P] of one kind; the logits are used up unless it is _HEAD."""
    if kind == _PLAIN:
        return draw_any(relative_weights(logits, peaks, params.temperature), uniform)
    if kind == _TOP_P:
        totals = total_mass(relative_weights(logits.clone(), peaks, params.temperature))
    else:
        totals = torch.full_like(uniform, torch.inf)
    return draw_filtered(logits, params, totals, uniform)
