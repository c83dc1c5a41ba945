"""CUDA graphs of parts of a step: how they are recorded, and in which memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.engine.gpu.step_graphs import Record
from quire.engine.gpu.step_work import StepTensors

# by the size of a number: a type that the array interface knows
_PLAIN_TYPES = {2: "<i2", 4: "<i4"}


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """A captured part of a step. tensors: its results, if any."""

    graph: torch.cuda.CUDAGraph
    tensors: StepTensors | None

    def replay(self) -> StepTensors | None:
        """Launch all kernels of the graph at once."""
        self.graph.replay()
        return self.tensors


def cuda_graphs() -> Record:
    """A function that records parts as graphs that share memory: only one runs at a time.

    Not by `torch.cuda.graph`, which frees all cached memory before each recording: allocating it
    again for each warm-up takes longer than recording.
    """
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(launch: Callable[[], StepTensors | None]) -> CudaGraph:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream), _capturing(graph, pool):
            tensors = launch()
            if tensors is not None:
                logits = None if tensors.logits is None else _borrowed(tensors.logits)
                outcome = _borrowed(tensors.outcome)
                tensors = StepTensors(tensors.tokens.map(_borrowed), logits, outcome)
        return CudaGraph(graph, tensors)

    return record


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    graph.capture_begin(pool=pool)
    try:
        yield
    finally:
        graph.capture_end()


class _Memory:
    """An address range with CUDA's array interface."""

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": _PLAIN_TYPES[tensor.itemsize],
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def _borrowed(tensor: Tensor) -> Tensor:
    """A view of the memory that does not own it: other graphs of the pool may use it, too."""
    assert tensor.is_contiguous()
    plain = torch.as_tensor(_Memory(tensor), device=tensor.device)
    return plain.view(tensor.dtype)
