"""From logits to tokens, for all rows of a step.

Owns the order of things (check, adjust, draw, report) and which rows go which way; does not own
what happens there: see wishes, draw and logprobs. A row's result is bitwise the same whatever
the other rows are: each function below works row by row, and rows are only grouped for speed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.array_types import Flags, Floats, Ints, Logits, Tokens
from quire.core.messages import TokenLogprobs
from quire.kernels.cpu import row_ops as kernels
from quire.sampling.draw import draw_any, draw_filtered
from quire.sampling.host_logits import History, HostLogits
from quire.sampling.logit_blocks import Rows
from quire.sampling.logits_processors import adjust_logits
from quire.sampling.philox import uniforms
from quire.sampling.ranking import highest
from quire.sampling.sampling_state import CHANGES_LOGITS, Need, RowParams, SamplingState
from quire.sampling.token_logprobs import prompt_logprobs, token_logprobs

__all__ = ["Sampler", "SamplerOutput", "prompt_logprobs"]

# how a row is drawn
_GREEDY = 0
_PLAIN = int(Need.RANDOM)
_TOP_P = int(Need.RANDOM | Need.FILTER | Need.TOTAL_MASS)


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """The outcome of each row, in the order asked.

    failed: the model's logits held NaN or +inf, or nothing but -inf. exhausted: the row's wishes
    made such logits of sound ones, as a ban on every token does. In both cases the token id means
    nothing. logprobs: for rows that asked and have a token. whole: the row's form lets nothing
    follow the token.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    failed: list[bool]
    exhausted: list[bool]
    whole: list[bool]


class Sampler:
    """Draws the next token of rows of a SamplingState."""

    def __init__(self, state: SamplingState) -> None:
        self._state = state

    def sample(
        self,
        logits: Logits,
        rows: list[int],
        token_ids: Tokens,
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
        if not self._state.needs[index].any():
            return _greedy(logits)
        asked = np.flatnonzero(self._state.needs[index] & Need.LOGPROBS)
        # a copy, as wishes change the logits in place
        raw = logits[asked] if len(asked) else None
        history = History(token_ids, num_tokens, num_prompt_tokens)
        batch = Rows.of(logits)
        # Peaks tell it all: NaN and +inf go through to them, and -inf is left if nothing else is.
        failed = ~np.isfinite(batch.peaks)
        self._adjust(batch, index, history)
        lost = ~np.isfinite(batch.peaks) | failed
        drawn = self._draw(batch, index, lost, num_tokens)
        report: list[TokenLogprobs | None] = [None] * len(rows)
        if raw is not None:
            counts = self._state.num_logprobs[index[asked]].tolist()
            found = token_logprobs(raw, drawn[asked].tolist(), counts)
            for i, logprobs in zip(asked, found, strict=True):
                report[i] = None if lost[i] else logprobs
        return SamplerOutput(
            token_ids=drawn.tolist(),
            logprobs=report,
            failed=failed.tolist(),
            exhausted=(lost & ~failed).tolist(),
            whole=self._end_forms(index, drawn, lost, history),
        )

    def _end_forms(self, index: Ints, drawn: Ints, lost: Flags, history: History) -> list[bool]:
        """Tell the rows' forms what was drawn; which of them let nothing follow."""
        whole = [False] * len(index)
        if not self._state.forms:
            return whole
        for place, row in enumerate(index.tolist()):
            form = self._state.forms.get(row)
            if form is not None and not lost[place]:
                whole[place] = form.is_whole_with(history.answer(row), int(drawn[place]))
        return whole

    def _adjust(self, batch: Rows, index: Ints, history: History) -> None:
        """Apply the rows' wishes to the logits in place, and look again at what they changed."""
        changed = np.flatnonzero(self._state.needs[index] & CHANGES_LOGITS)
        if len(changed):
            logits = HostLogits(batch.logits, self._state, history)
            adjust_logits(logits, index, self._state, history)
            batch.refresh(changed)

    def _draw(
        self, batch: Rows, index: Ints, lost: Flags, num_tokens: npt.NDArray[np.integer]
    ) -> Ints:
        """One token for each row; rows that need the same are drawn together."""
        kinds = np.where(lost, _GREEDY, self._state.needs[index] & _TOP_P)
        drawn = np.empty(len(index), np.int64)
        numbers = np.empty(0)
        if np.any(kinds):
            numbers = uniforms(self._state.seeds[index], num_tokens[index].astype(np.int64))
        for kind in np.unique(kinds):
            part = np.flatnonzero(kinds == kind)
            rows = batch if len(part) == len(batch) else batch.select(part)
            if kind == _GREEDY:
                drawn[part] = highest(rows)
            else:
                drawn[part] = _draw_random(
                    kind, rows, self._state.gather(index[part]), numbers[part]
                )
        return drawn


def _greedy(logits: Logits) -> SamplerOutput:
    """Of rows that wish nothing: one look at the logits does for all."""
    ids, peaks = kernels.highest(np.ascontiguousarray(logits))
    nothing = [False] * len(logits)
    return SamplerOutput(
        token_ids=ids.tolist(),
        logprobs=[None] * len(logits),
        failed=(~np.isfinite(peaks)).tolist(),
        exhausted=nothing,
        whole=nothing,
    )


def _draw_random(kind: int, rows: Rows, params: RowParams, numbers: Floats) -> Ints:
    if kind == _PLAIN:
        return draw_any(rows, params, numbers)
    totals = np.full(len(rows), -1)
    if kind == _TOP_P:
        totals = rows.masses(params.temperature).sum(axis=1)
    return draw_filtered(rows, params, totals, numbers)
