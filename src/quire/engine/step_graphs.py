"""Steps of a few sizes as CUDA graphs: one launch for all of a step's kernels.

Owns which sizes there are, and their graphs; does not know what a step does. A step is padded to
the next size with tokens that belong to no row. Steps above the largest size run kernel by kernel:
they keep the device busy for longer than their launches take.
"""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.engine.device_batch import StepSize

logger = logging.getLogger(__name__)

# Steps of single tokens come in all numbers of running requests; those with parts of prompts are
# made as large as a budget allows, so few sizes do.
_DECODE_SIZES = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 1025, 32)]
_MIXED_SIZES = [64, 128, 256, 384, 512]
_SAMPLES_ROUNDED_TO = 16  # where no graph depends on it

# dtypes by their size, as arrays of numbers that every library knows
_PLAIN_TYPES = {2: "<i2", 4: "<i4"}


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What a step leaves on the device."""

    hidden: Tensor  # [T, H]
    logits: Tensor | None  # float32 [S, V]; None for a model without a head
    outcome: Tensor  # int32 [3, max(S, T)], see kernels.reference.finish_step


class StepGraphs:
    """launch: starts a step's kernels one by one; with is_captured they are recorded for each size.

    max_num_seqs: most requests, and so tokens of a step without parts of prompts. max_num_tokens:
    of any step, no fewer; what a step is made of has memory for so many.
    """

    def __init__(
        self,
        launch: Callable[[StepSize], StepTensors],
        max_num_seqs: int,
        max_num_tokens: int,
        *,
        is_captured: bool,
    ) -> None:
        self._launch = launch
        self._max_num_seqs = max_num_seqs
        self._decode_sizes = _up_to(max_num_seqs, _DECODE_SIZES)
        self._mixed_sizes = _up_to(min(max_num_tokens, _MIXED_SIZES[-1]), _MIXED_SIZES)
        self._is_captured = is_captured
        self._graphs: dict[StepSize, tuple[torch.cuda.CUDAGraph, StepTensors]] = {}

    def size_of(self, num_tokens: int, num_samples: int, has_prefills: bool) -> StepSize:
        """The size that a step of so many tokens runs at."""
        if not has_prefills:
            padded = self._decode_sizes[bisect.bisect_left(self._decode_sizes, num_tokens)]
            return StepSize(padded, padded, has_prefills=False)
        if num_tokens <= self._mixed_sizes[-1]:
            padded = self._mixed_sizes[bisect.bisect_left(self._mixed_sizes, num_tokens)]
            return self._mixed(padded)
        samples = max(1, -(-num_samples // _SAMPLES_ROUNDED_TO)) * _SAMPLES_ROUNDED_TO
        return StepSize(num_tokens, min(samples, self._max_num_seqs), has_prefills=True)

    def replays(self, size: StepSize) -> bool:
        """Whether a step of this size is launched as one graph."""
        return size in self._graphs

    def run(self, size: StepSize) -> StepTensors:
        """Launch a step; what it leaves is valid until the next one is launched."""
        if not self.replays(size):
            return self._launch(size)
        graph, tensors = self._graphs[size]
        graph.replay()
        return tensors

    def capture_all(self, clear: Callable[[StepSize], None]) -> None:
        """Record every size, the largest first, so that the others fit into its memory.

        clear: makes the next step of a size one without requests, as each is launched once.
        """
        if not self._is_captured:
            return
        begin = time.monotonic()
        sizes = [self._mixed(n) for n in self._mixed_sizes]
        sizes += [StepSize(n, n, has_prefills=False) for n in self._decode_sizes]
        pool = torch.cuda.graph_pool_handle()
        for size in sorted(sizes, key=lambda size: size.num_tokens, reverse=True):
            clear(size)
            self._capture(size, pool)
        logger.info("%d CUDA graphs: %.2f s", len(sizes), time.monotonic() - begin)

    def _capture(self, size: StepSize, pool: Any) -> None:
        self._launch(size)  # what is made at a kernel's first launch must not be recorded
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            tensors = self._launch(size)
            logits = None if tensors.logits is None else _borrowed(tensors.logits)
            borrowed = StepTensors(_borrowed(tensors.hidden), logits, _borrowed(tensors.outcome))
        self._graphs[size] = graph, borrowed

    def _mixed(self, num_tokens: int) -> StepSize:
        return StepSize(num_tokens, min(num_tokens, self._max_num_seqs), has_prefills=True)


def _up_to(most: int, sizes: list[int]) -> list[int]:
    """The sizes below the largest that is needed, and that one."""
    return [size for size in sizes if size < most] + [most]


class _Memory:
    """An address range as the array interface of CUDA tells it."""

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": _PLAIN_TYPES[tensor.itemsize],
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def _borrowed(tensor: Tensor) -> Tensor:
    """The same memory, without a claim to it: the other graphs of the pool may use it, too."""
    assert tensor.is_contiguous()
    plain = torch.as_tensor(_Memory(tensor), device=tensor.device)
    return plain.view(tensor.dtype)
