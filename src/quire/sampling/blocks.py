"""Logits as the sampler looks at them: in blocks of 64 tokens, a few of which matter.

Owns what is as long as the vocabulary, and is therefore done where the logits are: the maximum and
the mass of each block, and fetching single blocks to the host, where the rest is decided. Does not
own what is decided. Each row is worked on for itself, so that no result depends on its neighbours.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels import sampling
from quire.sampling.arrays import Floats, Ints, Logits

BLOCK = 64  # tokens; rows are padded to a multiple of it with logits of -inf
_CPU_PIECE = 1 << 18  # logits worked on at a time: 1 MiB, which stays in a core's cache
_CPU_CHUNK = 1 << 14  # where more than two tensors of them are


class Rows:
    """N rows of a step's logits.

    logits: Tensor float32 [S, P], of the whole step; places: which rows of it, [N]; maxima: the
    highest logit of each block, [N, B] on the host, with NaN where a block holds NaN; peaks: that
    of each row, [N].
    """

    def __init__(self, logits: Tensor, places: Ints, maxima: Logits) -> None:
        self.logits = logits
        self.places = places
        self.maxima = maxima
        self.peaks: Logits = maxima.max(axis=1)

    @classmethod
    def of(cls, logits: Tensor) -> Rows:
        """All rows of logits [S, V]; without a copy where V is a multiple of BLOCK."""
        missing = -logits.shape[1] % BLOCK
        padded = F.pad(logits, (0, missing), value=-torch.inf) if missing else logits.contiguous()
        return cls(padded, np.arange(len(logits)), _maxima(padded))

    def __len__(self) -> int:
        return len(self.places)

    def select(self, index: Ints | slice) -> Rows:
        """Some of these rows."""
        return Rows(self.logits, self.places[index], self.maxima[index])

    def refresh(self, index: Ints) -> None:
        """Look at these rows again: their logits have changed."""
        changed = self.select(index)
        for piece in changed.pieces():
            self.maxima[index[piece]] = _maxima(changed.select(piece).copy())
        self.peaks[index] = self.maxima[index].max(axis=1)

    def open(self, blocks: Ints) -> Logits:
        """The logits in K blocks of each row: [N, K] → [N, K * BLOCK] on the host."""
        flat = blocks + self.places[:, None] * self.maxima.shape[1]
        index = torch.from_numpy(flat.reshape(-1)).to(self.logits.device)
        opened = self.logits.view(-1, BLOCK).index_select(0, index).view(len(self), -1)
        return _on_host(opened)

    def copy(self) -> Tensor:
        """The logits of these rows: [N, P]."""
        places = torch.from_numpy(self.places).to(self.logits.device)
        return self.logits.index_select(0, places)

    def open_all(self) -> Logits:
        """The logits of these rows: [N, P] on the host."""
        return _on_host(self.copy())

    def pieces(self) -> list[slice]:
        """These rows, on a CPU so few at a time that a copy of them stays in a core's cache."""
        on_cpu = self.logits.device.type == "cpu"
        step = max(1, _CPU_PIECE // self.logits.shape[1]) if on_cpu else len(self)
        return [slice(begin, begin + step) for begin in range(0, len(self), step)]

    def masses(self, temperature: Floats) -> Ints:
        """The sum of the tokens' weights in each block: [N, B]."""
        slopes, peaks = self._column(sampling.slope(temperature)), self._column(self.peaks)
        masses = np.empty(self.maxima.shape, np.int64)
        chunk = _CPU_CHUNK if self.logits.device.type == "cpu" else self.logits.shape[1]
        for piece in self.pieces():
            chunks = torch.split(self.select(piece).copy(), chunk, dim=1)
            depths = (sampling.halvings(x, peaks[piece], slopes[piece]) for x in chunks)
            parts = [_in_blocks(sampling.weights(depth)) for depth in depths]
            sums = [part.sum(-1, dtype=torch.float64) for part in parts]  # below 2^53: exact
            masses[piece] = torch.cat(sums, dim=1).cpu()
        return masses

    def _column(self, values: Logits) -> Tensor:
        return torch.from_numpy(values[:, None]).to(self.logits.device)


def _in_blocks(logits: Tensor) -> Tensor:
    """A view of [N, P] as [N, B, BLOCK]."""
    return logits.view(len(logits), logits.shape[1] // BLOCK, BLOCK)


def _maxima(logits: Tensor) -> Logits:
    return _on_host(_in_blocks(logits).amax(-1))


def _on_host(values: Tensor) -> Logits:
    host: Logits = values.cpu().numpy()
    return host
