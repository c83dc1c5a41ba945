"""A decoder of compiled code behind the interface of the model runner. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from quire.array_types import Array, Flags, Ints, Logits, Singles
from quire.core.messages import TokenLogprobs
from quire.kernels.cpu.row_ops import finite_rows, in_float32
from quire.kernels.ragged_batch import RaggedBatch
from quire.kvcache.host_kv_cache import HostCache
from quire.layers.forward_context import Heartbeat, no_heartbeat
from quire.models.runtimes.compiled_decoder import CompiledDecoder
from quire.sampling.token_logprobs import prompt_logprobs


class CompiledModel(msgspec.Struct, frozen=True):
    """The compiled decoder with its KV cache: a `HostModel`."""

    decoder: CompiledDecoder
    cache: HostCache

    def forward(
        self, input_ids: Ints, batch: RaggedBatch, heartbeat: Heartbeat = no_heartbeat
    ) -> CompiledStates:
        """See `HostModel`."""
        states = self.decoder.forward(input_ids, batch, self.cache, heartbeat)
        return CompiledStates(states, self.decoder)


class CompiledStates(msgspec.Struct, frozen=True):
    """States [T, H] in float32, or bits of bfloat16; see `HiddenStates`."""

    states: Array
    decoder: CompiledDecoder

    def finite(self) -> Flags:
        """See `HiddenStates`."""
        return finite_rows(self.states)

    def sums(self, spans: Sequence[tuple[int, int]]) -> Singles:
        """See `HiddenStates`."""
        parts = [in_float32(self.states[begin:end]).sum(0, np.float64) for begin, end in spans]
        return np.stack(parts).astype(np.float32)

    def logits(self, tokens: slice | Ints) -> Logits:
        """See `HiddenStates`."""
        return self.decoder.logits(self.states[tokens])

    def scores(self, tokens: slice, following: list[int], count: int) -> list[TokenLogprobs]:
        """See `HiddenStates`."""
        return prompt_logprobs(self.logits(tokens), following, count)
