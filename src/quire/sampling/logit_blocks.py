"""Logits as the sampler looks at them: in blocks of 64 tokens, a few of which matter.

Owns what is as long as the vocabulary, and is therefore done by kernels: the maximum and the mass
of each block; and the way to single blocks, in which the rest is decided. Does not own what is
decided. Each row is worked on for itself, so that no result depends on its neighbours.
"""

from __future__ import annotations

import numpy as np

from quire.array_types import Floats, Ints, Logits
from quire.kernels import reference_arrays, sampling_math
from quire.kernels.cpu.row_ops import block_masses, block_maxima
from quire.kernels.reference_arrays import BLOCK


class Rows:
    """N rows of a step's logits.

    logits: float32 [S, P], of the whole step; indices: which rows of it, [N]; maxima: the highest
    logit of each block, [N, B], with NaN where a block holds NaN; peaks: that of each row, [N].
    """

    def __init__(self, logits: Logits, indices: Ints, maxima: Logits) -> None:
        self.logits = logits
        self.indices = indices
        self.maxima = maxima
        self.peaks: Logits = maxima.max(axis=1)

    @classmethod
    def of(cls, logits: Logits) -> Rows:
        """All rows of logits [S, V]; without a copy where V is a multiple of BLOCK."""
        (count, vocab), padded = logits.shape, np.ascontiguousarray(logits)
        if missing := -vocab % BLOCK:
            padded = np.full((count, vocab + missing), -np.inf, np.float32)
            padded[:, :vocab] = logits
        indices = np.arange(count)
        return cls(padded, indices, block_maxima(padded, indices))

    def __len__(self) -> int:
        return len(self.indices)

    def select(self, index: Ints | slice) -> Rows:
        """Some of these rows."""
        return Rows(self.logits, self.indices[index], self.maxima[index])

    def refresh(self, index: Ints) -> None:
        """Look at these rows again: their logits have changed."""
        self.maxima[index] = block_maxima(self.logits, self.indices[index])
        self.peaks[index] = self.maxima[index].max(axis=1)

    def open(self, blocks: Ints) -> Logits:
        """The logits in K blocks of each row: [N, K] → [N, K * BLOCK]."""
        flat = blocks + self.indices[:, None] * self.maxima.shape[1]
        near: Logits = self.logits.reshape(-1, BLOCK)[flat].reshape(len(self), -1)
        return near

    def copy(self) -> Logits:
        """The logits of these rows: [N, P]."""
        rows: Logits = self.logits[self.indices]
        return rows

    def pieces(self) -> list[slice]:
        """These rows, so few at a time that a copy of them stays in a core's cache."""
        return reference_arrays.few_rows(len(self), self.logits.shape[1])

    def masses(self, temperature: Floats) -> Ints:
        """The sum of the tokens' weights in each block: [N, B]."""
        slopes = sampling_math.slope(temperature)
        return block_masses(self.logits, self.indices, self.peaks, slopes)
