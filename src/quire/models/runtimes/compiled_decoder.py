"""A decoder that is run by compiled code alone, the `HostModel` without PyTorch.

Python between two linear layers of a step would take some 60 us, since its code and objects have
been pushed out of the caches by the weights, and the other threads would fall asleep: a tenth of a
step of few tokens with four-bit weights. So layers are calls of kernels/cpu/native/layers.cpp, and
a process that has prepared weights needs no PyTorch. compiled_weights.py refuses what is not
computed here; families/llama.py has the same in PyTorch's modules.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from copy import copy

import msgspec
import numpy as np

from quire.array_types import Array, Flags, Ints, Logits, Singles
from quire.core.layer_spec import ModelSpec
from quire.core.messages import TokenLogprobs
from quire.kernels.cpu import native
from quire.kernels.cpu.array_ops import ARRAY_DTYPES, address, embedding, linear, scale, soft_capped
from quire.kernels.cpu.native_structs import LayerArgs, LayersArgs
from quire.kernels.cpu.row_ops import in_float32
from quire.kernels.ragged_batch import RaggedBatch
from quire.kernels.rope_table import RopeTable
from quire.kvcache.host_kv_cache import HostCache
from quire.layers.forward_context import Heartbeat, no_heartbeat
from quire.layers.rope_scale import attention_factor
from quire.models.prepared.prepared_reader import StoredArrays
from quire.models.runtimes.compiled_weights import find_weights
from quire.sampling.token_logprobs import token_logprobs

FEW_TOKENS = 64  # of a step
_LINE = 64  # bytes of a cache line
_TOGETHER = 8  # layers of one call in steps of few tokens


class CompiledDecoder:
    """Token ids to hidden states and logits. Raises UnsupportedModelError, see `find_weights`."""

    cache: HostCache  # these two of a decoder from `with_cache`
    _layers: ctypes.Array[LayerArgs]

    def __init__(self, spec: ModelSpec, stored: StoredArrays, block_size: int) -> None:
        self._weights = weights = find_weights(spec, stored, block_size)
        self._first = spec.layers[0]
        self._vocab_size, self._logit_soft_cap = spec.vocab_size, spec.logit_soft_cap
        self._embedding_scale = spec.embedding.scale
        self._dtype = weights.norms[0].dtype
        self._workspace = np.empty(0, np.uint8)  # of steps of few tokens
        self._rotary = RopeTable(
            weights.inv_freq,
            attention_factor(spec.ropes[0]),
            in_bfloat16=self._dtype == np.uint16,
        )

    def with_cache(self, cache: HostCache) -> CompiledDecoder:
        """A decoder of the same weights that has a KV cache."""
        found = copy(self)
        found.cache = cache
        layers = self._weights.layers[: len(cache.layers)]
        found._layers = (LayerArgs * len(layers))(*layers)
        for own, (keys, values) in zip(found._layers, cache.layers, strict=True):
            own.k_cache, own.v_cache = keys, values
        return found

    def forward(
        self,
        input_ids: Ints,
        batch: RaggedBatch,
        heartbeat: Heartbeat = no_heartbeat,
        needed: Ints | None = None,
    ) -> CompiledStates:
        """See `HostModel`. It goes through as many layers as have a cache."""
        cache, weights, attention = self.cache, self._weights, self._first.attention
        residual = scale(embedding(input_ids, weights.embedding), self._embedding_scale)
        num_tokens, hidden = residual.shape
        cos, sin = self._rotary.up_to(int(batch.seq_lens.max()))
        requests = batch.as_decoded()
        starts, lens = requests.query_start.astype(np.int32), requests.seq_lens.astype(np.int32)
        table = np.ascontiguousarray(requests.block_table)
        workspace = self._workspace_for(num_tokens)
        num_states = num_tokens if needed is None else len(needed)
        states = np.empty((num_states, hidden), self._dtype)
        finite = np.empty(num_tokens, np.bool_)
        args = LayersArgs(
            address(residual), -(-address(workspace) // _LINE) * _LINE, 0, None,
            address(cos), address(sin), address(batch.flat.positions), address(batch.slots),
            address(starts), address(lens), address(table),
            None if requests.prompts is None else address(requests.prompts),
            None if needed is None else address(needed), None, address(states), address(finite),
            0, num_tokens, hidden, len(lens), table.shape[1], num_states,
            cache.block_size, attention.num_heads, attention.num_kv_heads,
            attention.key_dim, cos.shape[1],
            0, ARRAY_DTYPES[self._dtype], cache.dtype, native.num_threads(),
        )  # fmt: skip
        self._run_layers(args, heartbeat)
        return CompiledStates(states, finite, self)

    def _run_layers(self, args: LayersArgs, heartbeat: Heartbeat) -> None:
        """Run all layers, several in one call if there are few tokens, with the model's norms."""
        num_layers = len(self._layers)
        together = _TOGETHER if args.tokens <= FEW_TOKENS else 1
        for begin in range(0, num_layers, together):
            heartbeat()
            args.is_start = begin == 0
            args.layers = ctypes.addressof(self._layers[begin])
            args.count = min(together, num_layers - begin)
            if begin + args.count == num_layers:
                args.final_norm = address(self._weights.norms[num_layers])
            native.compiled().quire_cpu_layers(ctypes.byref(args))

    def _workspace_for(self, num_tokens: int) -> Array:
        """Memory for what lies between a layer's linear layers; that of few tokens is reused."""
        attention = self._first.attention
        # heads as projected, queries after RoPE, and attention's result
        heads = 3 * attention.num_heads + 2 * attention.num_kv_heads
        numbers = heads * attention.key_dim + self._first.dense_mlp.intermediate_size
        numbers += attention.output.n  # a part's output, where a norm follows
        size = max(num_tokens, FEW_TOKENS) * numbers * self._dtype.itemsize + _LINE
        if num_tokens > FEW_TOKENS:
            return np.empty(size, np.uint8)
        if len(self._workspace) == 0:
            self._workspace = np.empty(size, np.uint8)
        return self._workspace

    def logits(self, hidden: Array) -> Array:
        """hidden [S, H] → float32 [S, V]. Only for checkpoints with a head."""
        assert self._weights.head is not None
        logits = in_float32(linear(hidden, self._weights.head, None))
        logits = np.ascontiguousarray(logits[:, : self._vocab_size])  # without padding
        cap = self._logit_soft_cap
        return logits if cap is None else soft_capped(logits, cap)


class CompiledStates(msgspec.Struct, frozen=True):
    """States [T, H] in float32, or bits of bfloat16; see `HiddenStates`."""

    states: Array
    is_finite: Flags  # of all tokens, also if these are some
    decoder: CompiledDecoder

    def finite(self) -> Flags:
        """See `HiddenStates`."""
        return self.is_finite

    def sums(self, spans: Sequence[tuple[int, int]]) -> Singles:
        """See `HiddenStates`."""
        parts = [in_float32(self.states[begin:end]).sum(0, np.float64) for begin, end in spans]
        return np.stack(parts).astype(np.float32)

    def logits(self, tokens: slice | Ints) -> Logits:
        """See `HiddenStates`."""
        return self.decoder.logits(self.states[tokens])

    def scores(self, tokens: slice, following: list[int], count: int) -> list[TokenLogprobs]:
        """See `HiddenStates`."""
        return token_logprobs(self.logits(tokens), following, [count] * len(following))
