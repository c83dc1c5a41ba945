"""Pooling for embeddings: from a request's hidden states to one vector (mean or last token).

Owns the running sums of prompts that are computed over several steps. A sum is dropped when its
request leaves the batch; a preempted request starts again. All arithmetic is in float32.

The hidden state of the last token depends on earlier tokens only through their KV, so "last" may
start on cached blocks. "mean" needs all hidden states, which are not cached: such a request
computes every token (`Request.needs_every_position`), though others may share its blocks. No torch:
`HiddenStates` hides the device.
"""

from __future__ import annotations

import msgspec
import numpy as np

from quire.array_types import Singles
from quire.core.pooling_params import PoolingParams
from quire.core.scheduler_output import NewRequest, SampleResult, ScheduledRequest
from quire.engine.core.input_batch import StepOrder
from quire.models.runtimes.host_model import HiddenStates

_SMALLEST_LENGTH = 1e-12  # the least norm to divide by, so that a zero vector stays zero


class _Pooled(msgspec.Struct):
    """One request's pooling. total: float32 [H], the sum of its first num_summed states."""

    params: PoolingParams
    total: Singles | None = None
    num_summed: int = 0

    def take(self, part: Singles, count: int) -> Singles:
        """Add the sum `part` [H] of `count` states; returns the pooled state [H] so far."""
        if self.params.pooling == "last":
            return part
        with np.errstate(over="ignore"):  # a non-finite result is found in `to_bytes`
            self.total = part if self.total is None else self.total + part
        self.num_summed += count
        return self.total / np.float32(self.num_summed)


class Pooler:
    """Pooling state of the requests in the batch that ask for an embedding."""

    def __init__(self) -> None:
        self._requests: dict[str, _Pooled] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: NewRequest) -> None:
        """Start pooling for a request that enters the batch."""
        if request.pooling is not None:
            self._requests[request.request_id] = _Pooled(request.pooling)

    def remove(self, request_id: str) -> None:
        """Forget a request that leaves the batch."""
        self._requests.pop(request_id, None)

    def reset(self) -> None:
        """Remove all requests."""
        self._requests.clear()

    def pool(
        self, order: StepOrder, hidden: HiddenStates, results: dict[str, SampleResult]
    ) -> None:
        """Pool a step's hidden states; sets `embedding` in the results that are complete.

        Results already marked as failed are skipped; one whose vector is not finite is marked here.
        """
        wanted: list[tuple[_Pooled, ScheduledRequest]] = []
        spans: list[tuple[int, int]] = []
        for index, entry in enumerate(order.scheduled):
            request = self._requests.get(entry.request_id)
            if request is None or results[entry.request_id].failed:
                continue
            begin, end = order.query_start[index : index + 2].tolist()
            if request.params.pooling == "mean":
                assert request.num_summed == entry.start, "a mean has missed hidden states"
            elif entry.samples:
                begin = end - 1
            else:
                continue
            wanted.append((request, entry))
            spans.append((begin, end))
        if not wanted:
            return
        for (request, entry), part in zip(wanted, hidden.sums(spans), strict=True):
            state = request.take(part, entry.num_tokens)
            if entry.samples:
                result = results[entry.request_id]
                result.embedding = to_bytes(state, request.params)
                result.failed = result.embedding is None


def to_bytes(vector: Singles, params: PoolingParams) -> bytes | None:
    """A pooled state [H] cut and normalised, as little-endian float32; None if not finite."""
    vector = vector[: params.dimensions]
    if not np.isfinite(vector).all():
        return None
    if not params.normalize:
        return vector.astype("<f4").tobytes()
    wide = vector.astype(np.float64)  # the squares of large numbers need more than float32
    length = max(float(np.linalg.norm(wide)), _SMALLEST_LENGTH)
    return (wide / length).astype("<f4").tobytes()
