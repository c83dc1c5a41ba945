"""Scratch memory of kernels whose programs combine partial results.

Allocated once for each device and never freed, so that CUDA graphs may hold its addresses. Kernels
that use it must run one after another on one stream. Counters are zero between kernels: the program
that arrives last at one resets it. Arrivals are multiples of a lap instead, as programs that still
wait there compare them, see `hopper_split_k`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NUM_COUNTERS = 2**18
NUM_PARTIALS = 2**23  # float32, 32 MiB


@dataclass(frozen=True, slots=True)
class Workspace:
    """The scratch memory of one device, and its limits."""

    partials: Tensor  # float32 [NUM_PARTIALS]
    counters: Tensor  # int32 [NUM_COUNTERS], zeros
    arrivals: Tensor  # int32 [NUM_COUNTERS]; `hopper_gemm` relies on their place behind counters
    num_sms: int
    shared_memory: int  # bytes available to a program


@functools.cache
def workspace(device: torch.device) -> Workspace:
    """The workspace of a device; that of "cpu" is for Triton's interpreter."""
    num_sms, shared_memory = _size_of(device)
    counters = torch.zeros(2, NUM_COUNTERS, dtype=torch.int32, device=device)
    return Workspace(
        partials=torch.empty(NUM_PARTIALS, dtype=torch.float32, device=device),
        counters=counters[0],
        arrivals=counters[1],
        num_sms=num_sms,
        shared_memory=shared_memory,
    )


@functools.cache
def launches_early(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch (PDL): Hopper and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def follow():
    """PDL: allow the next kernel to be launched, then wait for the previous kernel's results."""
    gdc_launch_dependents()
    gdc_wait()


def _size_of(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and bytes of shared memory available to a program."""
    if device.type != "cuda":
        return 6, 2**16  # for the interpreter: few, so that programs share tiles in small tests
    index = torch.cuda.current_device() if device.index is None else device.index
    properties = triton.runtime.driver.active.utils.get_device_properties(index)
    return properties["multiprocessor_count"], properties["max_shared_mem"]
