"""What a model runner on the host needs of a model: arrays in, arrays out. No torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quire.array_types import Flags, Ints, Logits
from quire.engine.core.pooler import HiddenStates
from quire.kernels.ragged_batch import RaggedBatch
from quire.layers.forward_context import Heartbeat


class CheckedStates(HiddenStates, Protocol):
    """Hidden states [T, H] of a step."""

    def finite(self) -> Flags:
        """Whether all numbers of a state are: [T]."""

    def logits(self, tokens: slice | Ints) -> Logits:
        """The logits after these tokens [N], in float32: [N, V]."""


class HostModel(Protocol):
    """A model with a KV cache, which its steps write."""

    def forward(
        self, input_ids: Ints, batch: RaggedBatch, heartbeat: Heartbeat = ...
    ) -> CheckedStates:
        """input_ids [T] → states. heartbeat: called now and then."""


# Layers that are taken, and blocks of the cache → a model of these with a cache of its own. Raises
# MemoryError.
WithCache = Callable[[int, int], HostModel]
