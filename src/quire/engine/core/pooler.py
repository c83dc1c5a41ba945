"""From a request's hidden states to one vector: mean or last, cut, scaled to length 1.

Owns the sums of prompts that are computed over several steps. A sum begins when its request enters
the batch and is dropped when it leaves it, so a preempted request begins anew, as its tokens do.
All arithmetic is in float32, whatever the model computes in.

The state of the last token depends on earlier ones only through their keys and values, so "last"
may begin on cached blocks. "mean" needs the states themselves, which nobody keeps: such a request
computes every token (`Request.needs_every_position`), though others may share the blocks it fills.
No torch: where the states are is known to `HiddenStates` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from quire.array_types import Singles
from quire.core.messages import TokenLogprobs
from quire.core.pooling_params import PoolingParams
from quire.core.scheduler_output import NewRequest, SampleResult, ScheduledRequest
from quire.engine.core.input_batch import StepOrder

_SMALLEST_LENGTH = 1e-12  # vectors are scaled by no less, so that zeros stay zeros


class HiddenStates(Protocol):
    """Hidden states [T, H] of a step, wherever they are."""

    def sums(self, spans: Sequence[tuple[int, int]]) -> Singles:
        """The sum of the states of each span, from its first to before its last: [N, H].

        They are summed in float32, and come to the host in one transfer.
        """

    def scores(self, tokens: slice, following: list[int], count: int) -> list[TokenLogprobs]:
        """Log-probabilities of the tokens that follow these, and of so many of the best."""


@dataclass(slots=True)
class _Pooled:
    """One request in the batch. total: float32 [H], of the first num_summed states."""

    params: PoolingParams
    total: Singles | None = None
    num_summed: int = 0

    def take(self, part: Singles, count: int) -> Singles:
        """The pooled state [H] after one more sum, of `count` states; of "last" of one."""
        if self.params.pooling == "last":
            return part
        with np.errstate(over="ignore"):  # which is found where the vector is asked for
            self.total = part if self.total is None else self.total + part
        self.num_summed += count
        return self.total / np.float32(self.num_summed)


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

    def pool(
        self, order: StepOrder, hidden: HiddenStates, results: dict[str, SampleResult]
    ) -> None:
        """Take a step's hidden states; fills in the results that are complete with it.

        Requests whose states are not finite have been marked as failed, and are left alone; one
        whose vector is not finite is marked now.
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
    """A pooled state [H] as the caller wants it, little-endian; None if it is not finite."""
    vector = vector[: params.dimensions]
    if not np.isfinite(vector).all():
        return None
    if not params.normalize:
        return vector.astype("<f4").tobytes()
    wide = vector.astype(np.float64)  # the squares of large numbers need more than float32
    length = max(float(np.linalg.norm(wide)), _SMALLEST_LENGTH)
    return (wide / length).astype("<f4").tobytes()
