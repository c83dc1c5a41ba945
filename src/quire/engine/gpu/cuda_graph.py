"""CUDA graphs of parts of a step. Owns how they are recorded and where their memory is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.engine.gpu.step_graphs import Record, StepTensors

# dtypes by their size, as arrays of numbers that every library knows
_PLAIN_TYPES = {2: "<i2", 4: "<i4"}


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """A recorded part; tensors: what it leaves, if anything."""

    graph: torch.cuda.CUDAGraph
    tensors: StepTensors | None

    def replay(self) -> StepTensors | None:
        """Launch all its kernels at once."""
        self.graph.replay()
        return self.tensors


def cuda_graphs() -> Record:
    """What records parts into graphs that share their memory: only one of them runs at a time.

    Not by `torch.cuda.graph`, which gives all cached memory back before each recording: to take it
    again for each rehearsal costs more time than to record.
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
                tensors = StepTensors(_borrowed(tensors.hidden), logits, outcome)
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
