"""Scratch memory of kernels whose programs meet: partial results, and who has arrived.

One for each device and for good, so that a CUDA graph may hold its addresses. Kernels that use it
must follow each other on one stream. Counters are zero between kernels: whoever arrives last at one
resets it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NUM_COUNTERS = 2**16
NUM_PARTIALS = 2**23  # float32, 32 MiB


@dataclass(frozen=True, slots=True)
class Workspace:
    """What programs of one kernel share."""

    partials: Tensor  # float32 [NUM_PARTIALS]
    counters: Tensor  # int32 [NUM_COUNTERS], zeros
    num_sms: int
    shared_memory: int  # bytes that a program may have


@functools.cache
def workspace(device: torch.device) -> Workspace:
    """The scratch memory of a device; a CPU's serves Triton's interpreter."""
    num_sms, shared_memory = _size_of(device)
    return Workspace(
        partials=torch.empty(NUM_PARTIALS, dtype=torch.float32, device=device),
        counters=torch.zeros(NUM_COUNTERS, dtype=torch.int32, device=device),
        num_sms=num_sms,
        shared_memory=shared_memory,
    )


@functools.cache
def launches_early(device: torch.device) -> bool:
    """Whether a kernel there may be launched while the one in front still runs (Hopper on)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def follow():
    """Let the kernel behind be launched, and wait for what the one in front leaves."""
    gdc_launch_dependents()
    gdc_wait()


def _size_of(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and bytes of shared memory that a program may have."""
    if device.type != "cuda":
        return 6, 2**16  # the interpreter's: few, so that small tests have shared tiles
    index = torch.cuda.current_device() if device.index is None else device.index
    properties = triton.runtime.driver.active.utils.get_device_properties(index)
    return properties["multiprocessor_count"], properties["max_shared_mem"]
