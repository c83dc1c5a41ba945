"""Logits in blocks of 64 tokens, of which sampling reads only a few.

Owns the work over the full vocabulary, which kernels do (maximum and mass of each block), and
access to single blocks. Each row is computed by itself, so no result depends on other rows.
"""

from __future__ import annotations

import numpy as np

from quire.array_types import Floats, Ints, Logits
from quire.kernels import sampling_math
from quire.kernels.cpu.row_ops import block_masses, block_maxima
from quire.kernels.reference_arrays import BLOCK


class Rows:
    """N rows of a step's logits, with the maximum of each block of 64.

    logits: float32 [S, P] of the step; samples: which rows of it, [N]; maxima: the highest logit of
    each block, [N, B], NaN where a block holds NaN; peaks: the highest of each row, [N].
    """

    def __init__(self, logits: Logits, samples: Ints, maxima: Logits) -> None:
        self.logits = logits
        self.samples = samples
        self.maxima = maxima
        self.peaks: Logits = maxima.max(axis=1)

    @classmethod
    def of(cls, logits: Logits) -> Rows:
        """All rows of logits [S, V]; without a copy where V is a multiple of BLOCK."""
        (count, vocab), padded = logits.shape, np.ascontiguousarray(logits)
        if missing := -vocab % BLOCK:
            padded = np.full((count, vocab + missing), -np.inf, np.float32)
            padded[:, :vocab] = logits
        samples = np.arange(count)
        return cls(padded, samples, block_maxima(padded, samples))

    def __len__(self) -> int:
        return len(self.samples)

    def select(self, index: Ints) -> Rows:
        """The rows with these indices, without a copy of logits."""
        return Rows(self.logits, self.samples[index], self.maxima[index])

    def refresh(self, index: Ints) -> None:
        """Recompute the maxima of rows whose logits have changed."""
        self.maxima[index] = block_maxima(self.logits, self.samples[index])
        self.peaks[index] = self.maxima[index].max(axis=1)

    def open(self, blocks: Ints) -> Logits:
        """The logits in K blocks of each row: [N, K] → [N, K * BLOCK]."""
        flat = blocks + self.samples[:, None] * self.maxima.shape[1]
        near: Logits = self.logits.reshape(-1, BLOCK)[flat].reshape(len(self), -1)
        return near

    def masses(self, temperature: Floats) -> Ints:
        """The sum of the tokens' weights in each block: [N, B]."""
        slopes = sampling_math.slope(temperature)
        return block_masses(self.logits, self.samples, self.peaks, slopes)
