"""Logits as the sampler looks at them: in blocks of 64 tokens, a few of which matter.

Owns what is as long as the vocabulary, and is therefore done where the logits are, by kernels: the
maximum and the mass of each block, and fetching single blocks to the host, where the rest is
decided. Does not own what is decided. Each row is worked on for itself, so that no result depends
on its neighbours.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels import sampling
from quire.kernels.cpu.elementwise import PIECE
from quire.kernels.dispatch import kernels_for
from quire.kernels.reference_step import BLOCK
from quire.sampling.arrays import Floats, Ints, Logits


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
        places = np.arange(len(logits))
        return cls(padded, places, _maxima(padded, places))

    def __len__(self) -> int:
        return len(self.places)

    def select(self, index: Ints | slice) -> Rows:
        """Some of these rows."""
        return Rows(self.logits, self.places[index], self.maxima[index])

    def refresh(self, index: Ints) -> None:
        """Look at these rows again: their logits have changed."""
        self.maxima[index] = _maxima(self.logits, self.places[index])
        self.peaks[index] = self.maxima[index].max(axis=1)

    def open(self, blocks: Ints) -> Logits:
        """The logits in K blocks of each row: [N, K] → [N, K * BLOCK] on the host."""
        flat = blocks + self.places[:, None] * self.maxima.shape[1]
        if self.logits.device.type == "cpu":
            near: Logits = self.logits.numpy().reshape(-1, BLOCK)[flat].reshape(len(self), -1)
            return near
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
        step = max(1, PIECE // self.logits.shape[1]) if on_cpu else len(self)
        return [slice(begin, begin + step) for begin in range(0, len(self), step)]

    def masses(self, temperature: Floats) -> Ints:
        """The sum of the tokens' weights in each block: [N, B]."""
        device = self.logits.device
        rows = (self.places, self.peaks, sampling.slope(temperature))
        tensors = (torch.from_numpy(np.ascontiguousarray(values)).to(device) for values in rows)
        masses: Ints = kernels_for(device.type).block_masses(self.logits, *tensors).cpu().numpy()
        return masses


def _maxima(logits: Tensor, places: Ints) -> Logits:
    index = torch.from_numpy(np.ascontiguousarray(places)).to(logits.device)
    return _on_host(kernels_for(logits.device.type).block_maxima(logits, index))


def _on_host(values: Tensor) -> Logits:
    host: Logits = values.cpu().numpy()
    return host
