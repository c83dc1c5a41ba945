"""From a request's hidden states to one vector: mean or last, cut, scaled to length 1.

Owns the sums of prompts that are computed over several steps. A sum begins when its request enters
the batch and is dropped when it leaves it, so a preempted request begins anew, as its tokens do.
All arithmetic is in float32, whatever the model computes in.

The state of the last token depends on earlier ones only through their keys and values, so "last"
may begin on cached blocks. "mean" needs the states themselves, which nobody keeps: such a request
computes every token (`Request.needs_every_position`), though others may share the blocks it fills.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.core.pooling_params import PoolingParams
from quire.core.step import NewRequest, SampleResult
from quire.engine.input_batch import StepOrder

_SMALLEST_LENGTH = 1e-12  # vectors are scaled by no less, so that zeros stay zeros


@dataclass(slots=True)
class _Pooled:
    """One request in the batch. total: float32 [H], of the first num_summed states."""

    params: PoolingParams
    total: Tensor | None = None
    num_summed: int = 0


class Pooler:
    """The requests in the batch that want an embedding."""

    def __init__(self) -> None:
        self._requests: dict[str, _Pooled] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: NewRequest) -> None:
        """A request enters the batch."""
        if request.pooling is not None:
            self._requests[request.request_id] = _Pooled(request.pooling)

    def remove(self, request_id: str) -> None:
        """A request leaves the batch."""
        self._requests.pop(request_id, None)

    def pool(self, inputs: StepOrder, hidden: Tensor, results: dict[str, SampleResult]) -> None:
        """Take a step's hidden states [T, H]; fills in the results that are complete with it.

        Requests whose states are not finite have been marked as failed, and are left alone; one
        whose vector is not finite is marked now.
        """
        due: list[tuple[SampleResult, PoolingParams]] = []
        states: list[Tensor] = []
        for index, entry in enumerate(inputs.scheduled):
            request, result = self._requests.get(entry.request_id), results[entry.request_id]
            if request is None or result.failed:
                continue
            begin, end = inputs.query_start[index : index + 2].tolist()
            if request.params.pooling == "mean":
                assert request.num_summed == entry.start, "a mean has missed hidden states"
                _extend(request, hidden[begin:end])
            if entry.samples:
                due.append((result, request.params))
                states.append(_state(request, hidden[end - 1]))
        if due:
            vectors = torch.stack(states).cpu().numpy()  # [S, H], in one transfer
            for (result, params), vector in zip(due, vectors, strict=True):
                result.embedding = to_bytes(vector, params)
                result.failed = result.embedding is None


def _extend(request: _Pooled, hidden: Tensor) -> None:
    """Add the states [t, H] to the sum."""
    part = hidden.sum(0, dtype=torch.float32)
    request.total = part if request.total is None else request.total + part
    request.num_summed += len(hidden)


def _state(request: _Pooled, last: Tensor) -> Tensor:
    """The pooled state, float32 [H]; last: that of the last token."""
    return last.float() if request.total is None else request.total / request.num_summed


def to_bytes(vector: npt.NDArray[np.float32], params: PoolingParams) -> bytes | None:
    """A pooled state [H] as the caller wants it, little-endian; None if it is not finite."""
    vector = vector[: params.dimensions]
    if not np.isfinite(vector).all():
        return None
    if not params.normalize:
        return vector.astype("<f4").tobytes()
    wide = vector.astype(np.float64)  # the squares of large numbers need more than float32
    length = max(float(np.linalg.norm(wide)), _SMALLEST_LENGTH)
    return (wide / length).astype("<f4").tobytes()
