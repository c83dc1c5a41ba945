"""Logits on a device, which logits processors change there without waiting for it.

Owns the copy of what the host knows to the device; logits_processors.py says what is applied.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quire.array_types import Array, Flags, Ints, Logits

# Applies repetition, presence and frequency penalties to the logits of samples [U] of a batch,
# which are rows [U] of the sampling state.
Penalise = Callable[[Tensor, Ints, Ints], None]


class DeviceLogits:
    """Contiguous float32 logits [S, P] in a tensor; see `MutableLogits`."""

    def __init__(self, values: Tensor, penalise: Penalise) -> None:
        self._values = values
        self._flat = values.view(-1)
        self._penalise = penalise

    @property
    def size(self) -> int:
        """P."""
        return self._values.shape[1]

    def add(self, index: Ints, values: Logits) -> None:
        """See `MutableLogits`."""
        self._flat.index_add_(0, on_device(index, self._flat), on_device(values, self._flat))

    def ban(self, index: Ints) -> None:
        """See `MutableLogits`."""
        self._flat.index_fill_(0, on_device(index, self._flat), -torch.inf)

    def ban_flagged(self, sample: int, banned: Flags) -> None:
        """See `MutableLogits`."""
        self._values[sample].masked_fill_(on_device(banned, self._values), -torch.inf)

    def penalise(self, samples: Ints, rows: Ints) -> None:
        """See `MutableLogits`."""
        self._penalise(self._values, samples, rows)


def on_device(values: Array, like: Tensor) -> Tensor:
    """A host array as a tensor where `like` is; without a copy on the CPU, else without waiting."""
    host = torch.from_numpy(values)
    if like.device.type != "cuda":
        return host.to(like.device)
    return host.pin_memory().to(like.device, non_blocking=True)
