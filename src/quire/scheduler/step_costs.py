"""A cost model of steps, learned online from the steps that have run. No torch.

A step costs a fixed time, plus a time per decode, plus a time per prompt token. The model is fitted
by least squares of the relative error (short steps count as much as long ones) with Huber's weights
(P. J. Huber, "Robust Estimation of a Location Parameter", 1964), so outliers hardly matter. Under a
constant load all steps are alike, so some steps of each size are stored. The pace of the machine is
tracked separately, by steps of sizes that are already in the fit.
"""

from __future__ import annotations

from collections import deque
from statistics import median

import numpy as np

from quire.array_types import Floats

STEPS_PER_SIZE = 8  # steps stored of each size: numbers of equal bit length are one size
REFIT_EVERY = 32  # steps; more often while few are known
PACE_STEPS = 9  # whose median is the pace
MARGIN_STEPS = 128
QUANTILE = 0.98  # of the steps shall take no longer than predicted times margin
HELD_UP = 2.0  # a step this many times slower than predicted is an outlier
# Weight of steps that only decode: the cost of decodes is learned from them, not from steps whose
# prompt tokens cost more than linearly.
DECODES_WEIGHT = 5.0
HUBER = 1.345  # of the residuals' spread: beyond it, a step counts less
ROUNDS = 3  # of reweighting


class StepCosts:
    """Seconds of a step: pace * (fixed + decodes * per_decode + prompt_tokens * per_prompt_token).

    margin: by how much steps exceed that at QUANTILE.
    """

    def __init__(self) -> None:
        self.fixed = self.per_decode = self.per_prompt_token = 0.0
        self.pace = self.margin = 1.0
        self._steps: dict[tuple[int, int], deque[tuple[int, int, float]]] = {}
        self._fitted: set[tuple[int, int]] = set()  # sizes of which enough are in the fit
        self._ratios: deque[float] = deque(maxlen=PACE_STEPS)
        self._excesses: deque[float] = deque(maxlen=MARGIN_STEPS)
        self._num_seen = self._next_fit = 0

    @property
    def is_known(self) -> bool:
        """Whether a step with prompt tokens has been observed."""
        return self.per_prompt_token > 0.0

    def predict(self, num_decodes: int, num_prompt_tokens: int) -> float:
        """The predicted seconds of a step."""
        decodes, prompts = num_decodes * self.per_decode, num_prompt_tokens * self.per_prompt_token
        return self.pace * (self.fixed + decodes + prompts)

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Update the cost model with the duration of a step."""
        seconds = max(seconds, 1e-9)
        size = (num_decodes.bit_length(), num_prompt_tokens.bit_length())
        if self.is_known and size in self._fitted:
            self._follow(seconds / max(self.predict(num_decodes, num_prompt_tokens), 1e-9))
        stored = self._steps.setdefault(size, deque(maxlen=STEPS_PER_SIZE))
        stored.append((num_decodes, num_prompt_tokens, seconds / self.pace))
        self._num_seen += 1
        if self._num_seen >= self._next_fit:
            self._next_fit = self._num_seen + min(REFIT_EVERY, 1 + self._num_seen // 8)
            self._fit()

    def _follow(self, excess: float) -> None:
        """Record the ratio of a step's seconds to the prediction."""
        self._excesses.append(excess)
        self._ratios.append(excess * self.pace)
        self.pace = median(self._ratios)

    def _fit(self) -> None:
        steps = np.array([step for stored in self._steps.values() for step in stored])
        terms = np.column_stack([np.ones(len(steps)), steps[:, :2]])
        given = np.where(steps[:, 1] == 0, DECODES_WEIGHT, 1.0)
        costs = _robust_fit(terms / steps[:, 2:], given)
        self.fixed, self.per_decode, self.per_prompt_token = costs
        self._fitted = {
            size for size, stored in self._steps.items() if len(stored) > STEPS_PER_SIZE // 2
        }
        excesses = [excess for excess in self._excesses if excess < HELD_UP]
        self.margin = max(1.0, _quantile(np.array(excesses), QUANTILE)) if excesses else 1.0


def _robust_fit(terms: Floats, given: Floats) -> tuple[float, float, float]:
    """Costs >= 0 with terms @ costs near 1, robust to outliers.

    terms: [N, 3]; given: their weights [N].
    """
    scale = np.maximum(terms.max(axis=0), 1e-30)
    scaled = terms / scale
    weights = given
    costs = np.zeros(3)
    for _ in range(ROUNDS):
        costs = _fit_not_negative(scaled, weights)
        errors = np.abs(scaled @ costs - 1.0)
        deviation = 1.4826 * _quantile(errors, 0.5) + 1e-6
        weights = given * np.minimum(1.0, HUBER * deviation / np.maximum(errors, 1e-12))
    fixed, per_decode, per_prompt_token = (costs / scale).tolist()
    return fixed, per_decode, per_prompt_token


def _quantile(values: Floats, share: float) -> float:
    """The quantile of values at `share`; np.quantile would import a module first."""
    return float(np.sort(values)[round(share * (len(values) - 1))])


def _fit_not_negative(terms: Floats, weights: Floats) -> Floats:
    """Weighted least squares against 1, with costs that would be negative set to 0."""
    active = [0, 1, 2]
    costs = np.zeros(3)
    while active:
        columns = terms[:, active] * weights[:, None] ** 0.5
        # a little of each cost's size: terms that never differ share what they explain
        normal = columns.T @ columns + 1e-6 * len(terms) * np.eye(len(active))
        found = np.linalg.solve(normal, columns.T @ weights**0.5)
        if (found >= 0.0).all():
            costs[active] = found
            break
        del active[int(found.argmin())]
    return costs
