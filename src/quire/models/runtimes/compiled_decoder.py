"""A decoder that is run by compiled code alone: arrays in, arrays out. No torch.

Between two products of a step Python would take a turn of some 60 us, with its code and objects out
of the caches through which weights have just gone, and the other threads would fall asleep: a tenth
of a step of few tokens with four-bit weights. So layers are calls of kernels/cpu/native/layers.cpp,
and a process that has prepared weights needs no PyTorch. `models.llama` tells what is computed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from quire.array_types import Array, Ints
from quire.kernels.cpu import native
from quire.kernels.cpu.array_ops import DTYPES, address, embedding, linear, rms_norm
from quire.kernels.cpu.native_structs import LayerArgs, LayersArgs
from quire.kernels.cpu.row_ops import in_float32
from quire.kernels.ragged_batch import RaggedBatch
from quire.kernels.rope_table import RopeTable
from quire.kvcache.host_kv_cache import HostCache
from quire.layers.rope_scale import attention_factor
from quire.models.config.model_config import ModelConfig
from quire.models.prepared.prepared_reader import StoredArrays
from quire.models.runtimes.compiled_weights import find_weights

FEW_TOKENS = 64  # of a step
_LINE = 64  # bytes of a cache line
_TOGETHER = 8  # layers of a call, with so few: Python's turn between two is nothing beside them


class CompiledDecoder:
    """Token ids to hidden states and logits. Raises UnsupportedModelError, see `find_weights`."""

    def __init__(self, model_config: ModelConfig, stored: StoredArrays, block_size: int) -> None:
        weights = find_weights(model_config, stored, block_size)
        self._model_config, self._weights = model_config, weights
        self._dtype = weights.norms[0].dtype
        self._kept = np.empty(0, np.uint8)
        self._layers = (LayerArgs * len(weights.layers))(*weights.layers)
        self._rotary = RopeTable(
            weights.inv_freq,
            attention_factor(model_config.rope),
            in_bfloat16=self._dtype == np.uint16,
        )

    def forward(
        self, input_ids: Ints, batch: RaggedBatch, cache: HostCache, heartbeat: Callable[[], None]
    ) -> Array:
        """input_ids [T] → hidden states [T, H], through as many layers as have a cache.

        Writes the cache. heartbeat: called now and then.
        """
        residual = embedding(input_ids, self._weights.embedding)
        rows = rms_norm(residual, self._weights.norms[0], self._model_config.rms_norm_eps)
        positions = batch.flat.positions
        cos, sin = (
            table[positions] for table in self._rotary.up_to(int(positions.max(initial=0)) + 1)
        )
        starts, lens = batch.flat.query_start.astype(np.int32), batch.seq_lens.astype(np.int32)
        table = np.ascontiguousarray(batch.block_table)
        for own, (keys, values) in zip(self._layers, cache.layers, strict=False):
            own.k_cache, own.v_cache = keys, values
        model_config, room = self._model_config, self._room(len(rows))
        args = LayersArgs(
            address(rows), address(residual), -(-address(room) // _LINE) * _LINE, 0,
            address(cos), address(sin), address(batch.slots),
            address(starts), address(lens), address(table),
            0, *residual.shape, len(lens), table.shape[1],
            cache.block_size, model_config.num_heads, model_config.num_kv_heads,
            model_config.head_dim, cos.shape[1],
            DTYPES[self._dtype], cache.form, native.num_threads(),
        )  # fmt: skip
        together = _TOGETHER if len(rows) <= FEW_TOKENS else 1
        for begin in range(0, len(cache.layers), together):
            heartbeat()
            args.layers = ctypes.addressof(self._layers[begin])
            args.count = min(together, len(cache.layers) - begin)
            native.compiled().quire_cpu_layers(ctypes.byref(args))
            args.rows = None  # of those behind the first, norms are to be made
        return rms_norm(residual, self._weights.norms[len(cache.layers)], model_config.rms_norm_eps)

    def _room(self, num_tokens: int) -> Array:
        """What lies between a layer's products; that of few tokens is kept."""
        model_config = self._model_config
        heads = (
            3 * model_config.num_heads + 2 * model_config.num_kv_heads
        )  # as made, turned, and attended
        numbers = heads * model_config.head_dim + model_config.intermediate_size
        size = max(num_tokens, FEW_TOKENS) * numbers * self._dtype.itemsize + _LINE
        if num_tokens > FEW_TOKENS:
            return np.empty(size, np.uint8)
        if len(self._kept) == 0:
            self._kept = np.empty(size, np.uint8)
        return self._kept

    def logits(self, hidden: Array) -> Array:
        """hidden [S, H] → float32 [S, V]. Only for checkpoints with a head."""
        assert self._weights.head is not None
        logits = in_float32(linear(hidden, self._weights.head, None))
        return np.ascontiguousarray(logits[:, : self._model_config.vocab_size])  # without padding
