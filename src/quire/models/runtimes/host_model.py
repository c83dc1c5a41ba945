"""Interface of a model that the host runs step by step: arrays in, arrays out. No torch.

There are two: compiled_decoder.py and torch_model.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quire.array_types import Flags, Ints, Logits, Singles
from quire.core.messages import TokenLogprobs
from quire.kernels.ragged_batch import RaggedBatch
from quire.layers.forward_context import Heartbeat


class HiddenStates(Protocol):
    """Hidden states of a step's T tokens [T, H], or of some, as NumPy arrays or tensors."""

    def finite(self) -> Flags:
        """Flags [T] of the tokens whose numbers are finite, as far as they were computed."""

    def logits(self, tokens: slice | Ints) -> Logits:
        """The logits after these tokens [N], in float32: [N, V]."""

    def sums(self, spans: Sequence[tuple[int, int]]) -> Singles:
        """The sum of the states of each span, from its first to before its last: [N, H].

        They are summed in float32, and copied to the host in one transfer.
        """

    def scores(self, tokens: slice, following: list[int], count: int) -> list[TokenLogprobs]:
        """Log-probabilities of the tokens that follow these, and of the `count` best."""


class HostModel(Protocol):
    """A model with a KV cache, which its steps write."""

    def forward(
        self,
        input_ids: Ints,
        batch: RaggedBatch,
        heartbeat: Heartbeat = ...,
        needed: Ints | None = None,
    ) -> HiddenStates:
        """input_ids [T] → states. heartbeat: called now and then.

        needed: tokens whose states are wanted, in ascending order, and these alone; None: all.
        """


# Number of layers that are run, number of blocks of the KV cache → a model of these layers with a
# cache of its own. Raises MemoryError.
WithCache = Callable[[int, int], HostModel]
