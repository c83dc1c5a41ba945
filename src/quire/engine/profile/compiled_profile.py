"""The profile of a step that the compiled decoder runs. No torch.

A step's layers are one call of compiled code. Here they are run as the single operations that it
consists of, in the same order and over the same weights, and each is timed where it comes in the
step. What lies between them (the embedding, angles) shows as the difference to the whole step.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from quire.engine.profile.attention_work import num_keys, num_pairs
from quire.engine.profile.profile_result import Operation, Profile, StepShape
from quire.engine.profile.roofline import (
    Roofline,
    measure_host_roofline,
    median_seconds,
    repeat,
)
from quire.engine.startup.compiled_start import make_decoder, with_cache
from quire.engine.startup.resolved_config import ResolvedConfig
from quire.engine.startup.step_tuning import is_tiny, measure_steps, thread_candidates
from quire.kernels.cpu import native
from quire.kernels.cpu.array_ops import address
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.cpu.native_structs import (
    FLOAT32,
    LINEAR_ARGS,
    AttentionArgs,
    Epilogue,
    LayerArgs,
    LayersArgs,
    LinearWeightArgs,
    RmsNormArgs,
    RotaryArgs,
)
from quire.kernels.ragged_batch import RaggedBatch
from quire.kvcache.kv_sizes import row_bytes
from quire.models.prepared.prepared_reader import StoredArrays


def profile_compiled(resolved: ResolvedConfig, stored: StoredArrays, step: StepShape) -> Profile:
    """Time a step of the decoder over these weights. Raises UnsupportedModelError."""
    config, model_config = resolved.config, resolved.model_config
    block_size, threads = config.cache.block_size, thread_candidates(config, model_config)
    set_num_threads(threads[0])
    decoder = make_decoder(resolved, stored)
    table, ready = None, partial(with_cache, resolved, decoder)
    if not is_tiny(model_config):
        table = measure_steps(ready, model_config, block_size, threads)
    blocks_each = -(-step.context // block_size)
    num_blocks = step.num_requests * blocks_each
    model = ready(model_config.num_layers, num_blocks)
    batch = RaggedBatch.of(
        np.full(step.num_requests, step.num_new),
        np.full(step.num_requests, step.context),
        np.arange(num_blocks, dtype=np.int32).reshape(step.num_requests, blocks_each),
        block_size,
    )
    input_ids = batch.flat.positions % model_config.vocab_size
    last = batch.flat.query_start[1:] - 1

    def run() -> None:
        states = model.forward(input_ids, batch)
        if model_config.has_head:
            states.logits(last)

    seconds = median_seconds(run)
    calls = TimedCalls(stored, step, resolved.kv_dtype)

    def run_timed() -> dict[tuple[str, str], Work]:
        calls.work = {}
        run()
        return calls.work

    with calls.replacing_the_library():
        runs = repeat(run_timed)
    roofline = measure_host_roofline(resolved.dtype)
    operations = [_operation(key, [run[key] for run in runs], roofline) for key in runs[0]]
    return Profile(
        config.model.model,
        "cpu",
        resolved.dtype,
        "compiled decoder",
        step,
        roofline,
        sorted(operations, key=lambda operation: -operation.seconds),
        seconds,
        table,
    )


@dataclass(slots=True)
class Work:
    """Count, bytes, FLOPs and seconds of all calls of one kind in a step."""

    count: int = 0
    num_bytes: int = 0
    flops: int = 0
    seconds: float = 0.0


def _operation(key: tuple[str, str], runs: list[Work], roofline: Roofline) -> Operation:
    work = runs[0]
    return Operation(
        *key,
        work.count,
        work.num_bytes,
        work.flops,
        statistics.median(run.seconds for run in runs),
        roofline.floor(work.num_bytes, work.flops),
        roofline.is_memory_bound(work.num_bytes, work.flops),
    )


class TimedCalls:
    """Stands for the compiled library (native.compiled) while a step is profiled.

    work: (operation, shape) → its calls since it was last emptied.
    """

    def __init__(self, stored: StoredArrays, step: StepShape, kv_dtype: str) -> None:
        self._library: Any = native.compiled()
        self._weight_bytes = {address(array): array.nbytes for array in stored.arrays.values()}
        self._step, self._kv_dtype = step, kv_dtype
        self.work: dict[tuple[str, str], Work] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    @contextmanager
    def replacing_the_library(self) -> Iterator[None]:
        """A context in which operations call these functions."""
        library = native.compiled
        vars(native)["compiled"] = lambda: self
        try:
            yield
        finally:
            vars(native)["compiled"] = library

    def quire_cpu_rms_norm(self, args: Any) -> None:
        """A norm of rows that is not part of a matrix product."""
        rows, size = args._obj.rows, args._obj.size
        num_bytes = (2 * rows + 1) * size * _item(args._obj.dtype)
        call = partial(self._library.quire_cpu_rms_norm, args)
        self._time("rms_norm", f"{rows}x{size}", num_bytes, 0, call)

    def quire_cpu_linear(self, args: bytes) -> None:
        """A matrix product outside of the layers: the head's."""
        self._time_linear("linear_head", args)

    def quire_cpu_layers(self, args: Any) -> None:
        """Decoder layers, as the calls that layers.cpp makes."""
        a: LayersArgs = args._obj
        rows, row = a.rows, a.tokens * _item(a.dtype)
        width = a.heads * a.head_dim
        for own in (LayerArgs * a.count).from_address(a.layers):
            heads = a.workspace
            query = heads + row * own.qkv.outputs
            attended, inner = query + row * width, query + 2 * row * width
            linear = partial(self._layer_linear, a)
            norm = None if rows else own.norm
            x = rows or a.residual
            linear("linear_qkv", own.qkv, x, a.hidden, norm, own.eps, Epilogue.STORE, heads)
            self._rope_write_kv(a, own, heads, query)
            self._attention(a, own, query, attended)
            size = own.gate_up.outputs // 2
            out = inner + row * size
            post_norms = own.post_attention_norm, own.post_mlp_norm
            self._add(a, own, "linear_o", own.o, attended, width, post_norms[0], out)
            linear(
                "linear_gate_up", own.gate_up, a.residual, a.hidden, own.mlp_norm, own.eps,
                own.activation, inner,
            )  # fmt: skip
            self._add(a, own, "linear_down", own.down, inner, size, post_norms[1], out)
            rows = None

    def _add(
        self,
        a: LayersArgs,
        own: LayerArgs,
        name: str,
        by: LinearWeightArgs,
        x: int,
        k: int,
        norm: int | None,
        out: int,
    ) -> None:
        """Add to the residual, after a norm of what is added where there is one."""
        if norm is None:
            self._layer_linear(a, name, by, x, k, None, 0.0, Epilogue.ADD, a.residual)
            return
        self._layer_linear(a, name, by, x, k, None, 0.0, Epilogue.STORE, out)
        args = RmsNormArgs(
            out, norm, a.residual, a.tokens, a.hidden, own.eps, a.dtype, a.threads, 1
        )
        self.quire_cpu_rms_norm(ctypes.byref(args))

    def _layer_linear(
        self,
        a: LayersArgs,
        name: str,
        by: LinearWeightArgs,
        x: int,
        k: int,
        norm: int | None,
        eps: float,
        epilogue: int,
        out: int,
    ) -> None:
        args = LINEAR_ARGS.pack(
            x, norm or 0, by.weight, by.bias or 0, out, a.tokens, by.outputs, k, eps, by.group,
            a.dtype, by.format, epilogue, a.threads,
        )  # fmt: skip
        self._time_linear(name, args)

    def _time_linear(self, name: str, args: bytes) -> None:
        _, _, weight, _, _, rows, n, k, _, _, dtype, _, epilogue, _ = LINEAR_ARGS.unpack(args)
        outputs = n // 2 if epilogue in (Epilogue.SILU, Epilogue.GELU) else n
        num_bytes = rows * (k + outputs) * _item(dtype) + self._weight_bytes[weight]
        call = partial(self._library.quire_cpu_linear, args)
        self._time(name, f"{rows}x{k} · {n}x{k}", num_bytes, 2 * rows * n * k, call)

    def _rope_write_kv(self, a: LayersArgs, own: LayerArgs, heads: int, query: int) -> None:
        args = RotaryArgs(
            heads, own.query_norm, own.key_norm, a.cos, a.sin, own.k_cache, own.v_cache, a.slots,
            query, a.tokens, own.qkv.outputs, a.heads, a.kv_heads, a.head_dim, a.rotary_dim,
            own.head_eps, a.dtype, a.cache_dtype, a.threads,
        )  # fmt: skip
        numbers = own.qkv.outputs + a.heads * a.head_dim + 2 * a.rotary_dim
        num_bytes = a.tokens * (numbers * _item(a.dtype) + self._slot_bytes(a))
        call = partial(self._library.quire_cpu_rotary_write_kv, ctypes.byref(args))
        self._time("rope_write_kv", f"{a.tokens}x{own.qkv.outputs}", num_bytes, 0, call)

    def _attention(self, a: LayersArgs, own: LayerArgs, query: int, out: int) -> None:
        width = a.heads * a.head_dim
        args = AttentionArgs(
            query, own.k_cache, own.v_cache, out, a.query_start, a.seq_lens, a.block_table,
            a.requests, a.table_stride, width, a.block_size, a.heads, a.kv_heads, a.head_dim,
            own.window, own.scale, own.soft_cap, a.dtype, a.cache_dtype, a.threads,
        )  # fmt: skip
        step, window = self._step, own.window or None
        keys = step.num_requests * num_keys(step.num_new, step.context, window)
        pairs = step.num_requests * num_pairs(step.num_new, step.context, window)
        num_bytes = keys * self._slot_bytes(a) + 2 * a.tokens * width * _item(a.dtype)
        call = partial(self._library.quire_cpu_attention, ctypes.byref(args))
        shape = f"{a.tokens}x{a.heads}x{a.head_dim}"
        self._time("attention", shape, num_bytes, 4 * width * pairs, call)

    def _slot_bytes(self, a: LayersArgs) -> int:
        """Bytes of one token's keys and values in a layer."""
        return 2 * int(a.kv_heads) * row_bytes(a.head_dim, self._kv_dtype)

    def _time(
        self, name: str, shape: str, num_bytes: int, flops: int, call: Callable[[], object]
    ) -> None:
        begin = time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
        work = self.work.setdefault((name, shape), Work())
        work.count += 1
        work.num_bytes += num_bytes
        work.flops += flops
        work.seconds += seconds


def _item(dtype: int) -> int:
    """Bytes per value of activations of this dtype."""
    return 4 if dtype == FLOAT32 else 2
