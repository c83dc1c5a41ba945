"""Scratch memory of kernels whose programs meet: partial results, and who has arrived.

One for each device and for good, so that a CUDA graph may hold its addresses. Kernels that use it
must follow each other on one stream. Counters are zero between kernels: whoever arrives last at one
resets it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

NUM_COUNTERS = 2**16
NUM_PARTIALS = 2**23  # float32, 32 MiB


@dataclass(frozen=True, slots=True)
class Workspace:
    """What programs of one kernel share."""

    partials: Tensor  # float32 [NUM_PARTIALS]
    counters: Tensor  # int32 [NUM_COUNTERS], zeros
    num_sms: int


@functools.cache
def workspace(device: torch.device) -> Workspace:
    """The scratch memory of a device; a CPU's serves Triton's interpreter."""
    return Workspace(
        partials=torch.empty(NUM_PARTIALS, dtype=torch.float32, device=device),
        counters=torch.zeros(NUM_COUNTERS, dtype=torch.int32, device=device),
        num_sms=_num_sms(device),
    )


def _num_sms(device: torch.device) -> int:
    if device.type != "cuda":
        return 6  # the interpreter's: few, so that small tests have shared tiles
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
