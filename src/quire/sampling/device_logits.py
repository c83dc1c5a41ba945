"""Logits processing on a device, without waiting for it.

Owns the copies of host arrays to the device. Which processors run is in logits_processors.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quire.array_types import Array, Flags, Ints, Logits

# Applies repetition, presence and frequency penalties to logits: samples [U], their rows [U].
Penalise = Callable[[Tensor, Ints, Ints], None]


class DeviceLogits:
    """Contiguous float32 logits [S, P] in a tensor; see `MutableLogits`."""

    def __init__(self, values: Tensor, penalise: Penalise) -> None:
        self._values = values
        self._flat = values.view(-1)
        self._penalise = penalise

    @property
    def size(self) -> int:
        """The padded vocabulary size P."""
        return self._values.shape[1]

    def add(self, index: Ints, values: Logits) -> None:
        """As in `MutableLogits`."""
        self._flat.index_add_(0, on_device(index, self._flat), on_device(values, self._flat))

    def ban(self, index: Ints) -> None:
        """As in `MutableLogits`."""
        self._flat.index_fill_(0, on_device(index, self._flat), -torch.inf)

    def ban_flagged(self, sample: int, banned: Flags) -> None:
        """As in `MutableLogits`."""
        self._values[sample].masked_fill_(on_device(banned, self._values), -torch.inf)

    def force(self, sample: int, token_id: int) -> None:
        """As in `MutableLogits`."""
        self._values[sample].fill_(-torch.inf)
        self._values[sample, token_id].fill_(0.0)

    def penalise(self, samples: Ints, rows: Ints) -> None:
        """As in `MutableLogits`."""
        self._penalise(self._values, samples, rows)


def on_device(values: Array, like: Tensor) -> Tensor:
    """A host array as a tensor on the device of `like`; on a GPU copied without waiting."""
    host = torch.from_numpy(values)
    if like.device.type != "cuda":
        return host.to(like.device)
    return host.pin_memory().to(like.device, non_blocking=True)
