"""The profile of a step that the compiled decoder runs. No torch.

A step's layers are one call of compiled code, which measures its own operations where it is asked.
What lies between calls (the embedding, angles) shows as the difference to the whole step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from quire.engine.profile.profile_result import Operation, Profile, StepShape
from quire.engine.profile.roofline import (
    Roofline,
    measure_host_roofline,
    median_seconds,
    num_keys,
    num_pairs,
    repeat,
)
from quire.engine.startup.compiled_start import make_decoder, with_cache
from quire.engine.startup.resolved_config import ResolvedConfig
from quire.engine.startup.step_tuning import is_tiny, measure_steps, thread_candidates
from quire.kernels.cpu import native
from quire.kernels.cpu.array_ops import address
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.cpu.native_structs import (
    FLOAT_BYTES,
    LINEAR_ARGS,
    LayerArgs,
    LayerOperation,
    LayersArgs,
)
from quire.kvcache.kv_sizes import layer_bytes
from quire.models.prepared.prepared_reader import StoredArrays

_NAMES = {
    LayerOperation.QKV: "linear_qkv",
    LayerOperation.ROPE: "rope_write_kv",
    LayerOperation.ATTENTION: "attention",
    LayerOperation.OUTPUT: "linear_o",
    LayerOperation.GATE_UP: "linear_gate_up",
    LayerOperation.DOWN: "linear_down",
    LayerOperation.NORM: "rms_norm",
}


def profile_compiled(resolved: ResolvedConfig, stored: StoredArrays, step: StepShape) -> Profile:
    """Time a step of the decoder over these weights. Raises UnsupportedModelError."""
    config, model_config = resolved.config, resolved.model_config
    block_size, threads = config.cache.block_size, thread_candidates(config, model_config)
    set_num_threads(threads[0])
    decoder = make_decoder(resolved, stored)
    table, ready = None, partial(with_cache, resolved, decoder)
    if not is_tiny(model_config):
        table = measure_steps(ready, model_config, block_size, threads)
    batch = step.batch(block_size)
    model = ready(model_config.num_layers, batch.block_table.size)
    input_ids = batch.flat.positions % model_config.vocab_size
    last = batch.flat.query_start[1:] - 1

    def run() -> None:
        states = model.forward(input_ids, batch)
        if model_config.has_head:
            states.logits(last)

    seconds = median_seconds(run)
    kv_layer = resolved.kv_layers[0]  # the decoder takes one size for all layers
    calls = TimedCalls(stored, step, sum(layer_bytes(kv_layer, resolved.kv_dtype)))

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

    slot_bytes: of one token's keys and values in a layer. work: (operation, shape) → its calls
    since it was last emptied.
    """

    def __init__(self, stored: StoredArrays, step: StepShape, slot_bytes: int) -> None:
        self._library: Any = native.compiled()
        self._weight_bytes = {address(array): array.nbytes for array in stored.arrays.values()}
        self._step, self._slot_bytes = step, slot_bytes
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

    def quire_cpu_linear(self, args: bytes) -> None:
        """A matrix product outside of the layers: the head's."""
        begin = time.perf_counter()
        self._library.quire_cpu_linear(args)
        seconds = time.perf_counter() - begin
        _, _, weight, _, _, _, rows, n, k, _, _, dtype, *_ = LINEAR_ARGS.unpack(args)
        counted = self._linear(rows, n, k, n, dtype, weight)
        self._add("linear_head", *counted).seconds += seconds

    def quire_cpu_layers(self, args: Any) -> None:
        """Decoder layers: the compiled code measures its own operations."""
        a: LayersArgs = args._obj
        nanoseconds = np.zeros(len(LayerOperation), np.int64)
        a.nanoseconds = address(nanoseconds)
        self._library.quire_cpu_layers(args)
        a.nanoseconds = None
        for operation, shape, num_bytes, flops in self._all_operations(a):
            work = self._add(_NAMES[operation], shape, num_bytes, flops)
            # the layers' time was added up: the first layer takes it, since shapes are the same
            work.seconds += nanoseconds[operation] / 1e9
            nanoseconds[operation] = 0

    def _all_operations(self, a: LayersArgs) -> Iterator[tuple[LayerOperation, str, int, int]]:
        """The operations of a call's layers, and the norms before the first and after the last."""
        for own in (LayerArgs * a.count).from_address(a.layers):
            yield from self._operations(a, own)
        for _ in range(bool(a.is_start) + bool(a.final_norm)):
            yield LayerOperation.NORM, *_rms_norm(a.tokens, a.hidden, a.dtype)

    def _operations(
        self, a: LayersArgs, own: LayerArgs
    ) -> Iterator[tuple[LayerOperation, str, int, int]]:
        """The operations of a layer, each with its shape, bytes and FLOPs."""
        width, size = a.heads * a.head_dim, own.gate_up.outputs // 2
        for operation, by, k, outputs in (
            (LayerOperation.QKV, own.qkv, a.hidden, own.qkv.outputs),
            (LayerOperation.OUTPUT, own.o, width, own.o.outputs),
            (LayerOperation.GATE_UP, own.gate_up, a.hidden, size),
            (LayerOperation.DOWN, own.down, size, own.down.outputs),
        ):
            yield operation, *self._linear(a.tokens, by.outputs, k, outputs, a.dtype, by.weight)
        yield LayerOperation.ROPE, *self._rope_write_kv(a, own)
        yield LayerOperation.ATTENTION, *self._attention(a, own, width)
        for norm in (own.post_attention_norm, own.post_mlp_norm):
            if norm is not None:
                yield LayerOperation.NORM, *_rms_norm(a.tokens, a.hidden, a.dtype)

    def _linear(
        self, rows: int, n: int, k: int, outputs: int, dtype: int, weight: int
    ) -> tuple[str, int, int]:
        num_bytes = rows * (k + outputs) * FLOAT_BYTES[dtype] + self._weight_bytes[weight]
        return f"{rows}x{k} · {n}x{k}", num_bytes, 2 * rows * n * k

    def _rope_write_kv(self, a: LayersArgs, own: LayerArgs) -> tuple[str, int, int]:
        numbers = own.qkv.outputs + a.heads * a.head_dim + 2 * a.rotary_dim
        num_bytes = a.tokens * (numbers * FLOAT_BYTES[a.dtype] + self._slot_bytes)
        return f"{a.tokens}x{own.qkv.outputs}", num_bytes, 0

    def _attention(self, a: LayersArgs, own: LayerArgs, width: int) -> tuple[str, int, int]:
        step, window = self._step, own.window or None
        keys = step.num_requests * num_keys(step.num_new, step.context, window)
        pairs = step.num_requests * num_pairs(step.num_new, step.context, window)
        num_bytes = keys * self._slot_bytes + 2 * a.tokens * width * FLOAT_BYTES[a.dtype]
        return f"{a.tokens}x{a.heads}x{a.head_dim}", num_bytes, 4 * width * pairs

    def _add(self, name: str, shape: str, num_bytes: int, flops: int) -> Work:
        work = self.work.setdefault((name, shape), Work())
        work.count += 1
        work.num_bytes += num_bytes
        work.flops += flops
        return work


def _rms_norm(rows: int, size: int, dtype: int) -> tuple[str, int, int]:
    return f"{rows}x{size}", (2 * rows + 1) * size * FLOAT_BYTES[dtype], 0
