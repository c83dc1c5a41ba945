"""The host's sampler: from logits to one token for each row of a step.

Owns the order (check, logits processors, draw, log-probabilities) and the grouping of rows. The
work is in logits_processors.py, draw.py and token_logprobs.py. A row's result is bitwise the same
whatever the other rows are: rows are only grouped for speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from quire.array_types import Flags, Floats, Integers, Ints, Logits
from quire.core.messages import TokenLogprobs
from quire.kernels.cpu import row_ops as kernels
from quire.sampling.draw import draw_any, draw_filtered
from quire.sampling.host_logits import History, HostLogits
from quire.sampling.logit_blocks import Rows
from quire.sampling.logits_processors import apply_logits_processors
from quire.sampling.philox import uniforms
from quire.sampling.ranking import highest
from quire.sampling.sampling_state import CHANGES_LOGITS, Need, RowParams, SamplingState
from quire.sampling.structured_mask import advance_grammars
from quire.sampling.token_logprobs import token_logprobs, with_named

# how a row is drawn
_GREEDY = 0
_PLAIN = int(Need.RANDOM)
_TOP_P = int(Need.RANDOM | Need.FILTER | Need.TOTAL_MASS)


class SamplerOutput(msgspec.Struct, frozen=True):
    """The result of each row, in the order of the rows given.

    failed: the model's logits held NaN or +inf, or only -inf. exhausted: logits processors made
    finite logits so, for example by banning every token. In both cases the token id is meaningless.
    logprobs: for rows that asked for them and have a token. grammar_terminated: the row's grammar
    lets no token follow.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    failed: list[bool]
    exhausted: list[bool]
    grammar_terminated: list[bool]


class Sampler:
    """The sampler of a CPU: draws the next token of rows of a SamplingState."""

    def __init__(self, state: SamplingState) -> None:
        self._state = state

    def sample(self, logits: Logits, rows: Sequence[int] | Ints, history: History) -> SamplerOutput:
        """Draw one token for each of `rows` [S] from float32 logits [S, V], which are overwritten.

        The drawn token's position is history.num_tokens[row]. Its random number depends only on the
        row's seed and this position. Greedy rows take the highest logit, ties the lowest id.
        """
        index = np.asarray(rows, np.int64)
        if not self._state.needs[index].any():
            return _greedy(logits)
        asked = np.flatnonzero(self._state.needs[index] & Need.LOGPROBS)
        # a copy, as logits processors change them in place
        raw = logits[asked] if len(asked) else None
        batch = Rows.of(logits)
        # NaN and +inf reach the maximum, and -inf is the maximum only of rows with nothing else.
        failed = ~np.isfinite(batch.peaks)
        self._adjust(batch, index, history)
        lost = ~np.isfinite(batch.peaks) | failed
        drawn = self._draw(batch, index, lost, history.num_tokens)
        report: list[TokenLogprobs | None] = [None] * len(index)
        if raw is not None:
            found = self._score(raw, index[asked], drawn[asked].tolist())
            for i, logprobs in zip(asked, found, strict=True):
                report[i] = None if lost[i] else logprobs
        sound = ~lost
        terminated = advance_grammars(self._state.grammars, index[sound], drawn[sound])
        return SamplerOutput(
            token_ids=drawn.tolist(),
            logprobs=report,
            failed=failed.tolist(),
            exhausted=(lost & ~failed).tolist(),
            grammar_terminated=[row in terminated for row in index.tolist()],
        )

    def _adjust(self, batch: Rows, index: Ints, history: History) -> None:
        """Apply the rows' logits processors in place, and refresh the maxima of changed rows."""
        changed = np.flatnonzero(self._state.needs[index] & CHANGES_LOGITS)
        if len(changed):
            logits = HostLogits(batch.logits, self._state, history)
            apply_logits_processors(logits, index, self._state, history)
            batch.refresh(changed)

    def _score(self, raw: Logits, rows: Ints, drawn: list[int]) -> list[TokenLogprobs]:
        """The log-probabilities that each row [N] asked for, of its raw logits [N, V]."""
        named = self._state.logprob_tokens
        found = token_logprobs(raw, drawn, self._state.num_logprobs[rows].tolist())
        if named:
            for i, row in enumerate(rows.tolist()):
                if row in named:
                    found[i] = with_named(raw[i : i + 1], found[i], named[row])
        return found

    def _draw(self, batch: Rows, index: Ints, lost: Flags, num_tokens: Integers) -> Ints:
        """Token ids [S]; rows with the same kind of draw are drawn together."""
        kinds = np.where(lost, _GREEDY, self._state.needs[index] & _TOP_P)
        drawn = np.empty(len(index), np.int64)
        numbers = np.empty(0)
        if np.any(kinds):
            numbers = uniforms(self._state.seeds[index], num_tokens[index].astype(np.int64))
        for kind in set(kinds.tolist()):  # np.unique imports np.ma
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
    """Plain greedy sampling of all rows: one pass over the logits."""
    ids, peaks = kernels.highest(np.ascontiguousarray(logits))
    nothing = [False] * len(logits)
    return SamplerOutput(
        token_ids=ids.tolist(),
        logprobs=[None] * len(logits),
        failed=(~np.isfinite(peaks)).tolist(),
        exhausted=nothing,
        grammar_terminated=nothing,
    )


def _draw_random(kind: int, rows: Rows, params: RowParams, numbers: Floats) -> Ints:
    if kind == _PLAIN:
        return draw_any(rows, params, numbers)
    totals = np.full(len(rows), -1)
    if kind == _TOP_P:
        totals = rows.masses(params.temperature).sum(axis=1)
    return draw_filtered(rows, params, totals, numbers)
