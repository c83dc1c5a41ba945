"""Host buffers that a device copies from or into while the host goes on."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

# Steps whose copies may be in progress: one runs, one waits, and one is being launched.
_NUM_BUFFERS = 3


class PinnedBuffers:
    """A ring of int32 [size] buffers, one for each step; page-locked where the device is a GPU."""

    def __init__(self, size: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._buffers = deque(
            torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu) for _ in range(_NUM_BUFFERS)
        )

    def take(self) -> Tensor:
        """The buffer that was used least recently."""
        self._buffers.rotate(-1)  # in one call, so that an interrupt loses no buffer
        return self._buffers[-1]
