"""Host memory that a device copies from or into while the host goes on. Owns whose turn it is."""

from __future__ import annotations

import torch
from torch import Tensor

# Steps whose copies may be under way: one that runs, one that waits, and one that is launched.
_NUM_BUFFERS = 3


class PinnedBuffers:
    """Buffers of int32 [size] that steps use in turns; page-locked where the device is a GPU."""

    def __init__(self, size: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._buffers = [
            torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu) for _ in range(_NUM_BUFFERS)
        ]

    def take(self) -> Tensor:
        """The one that has not been used for longest."""
        self._buffers.append(buffer := self._buffers.pop(0))
        return buffer
