"""One step of a model taken apart: each operation's bytes, FLOPs and time.

The operations are those of the dispatch seam (kernels/dispatch.Kernels): a step runs once with
wrapped ones, which note what each call is given; then calls of one kind are timed together, all
layers' one after the other, so that no weight is found in a cache. What lies between them (the
embedding, views) shows as the difference to the time of the step as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.config import EngineConfig
from quire.engine.choices import (
    asked_kernels,
    choose_device,
    choose_dtype,
    choose_kv_type,
    thread_candidates,
)
from quire.engine.roofline import Call, Roofline, measure_roofline, time_calls
from quire.engine.settling import settle
from quire.engine.tuning import StepTable, is_tiny, measure_steps
from quire.errors import ConfigError
from quire.hub import resolve_model
from quire.kernels.dispatch import Kernels, kernels_for
from quire.kernels.layout import BatchLayout
from quire.kernels.reference import FP8
from quire.kvcache.storage import allocate_kv
from quire.layers.context import ForwardContext
from quire.models.architecture import ModelArchitecture
from quire.models.loader import load_model


@dataclass(frozen=True, slots=True)
class StepShape:
    """Requests of a step, all alike. num_new: tokens each computes; context: in its cache then.

    One new token is a decode step; as many as the context has, the prefill of prompts.
    """

    num_requests: int
    num_new: int
    context: int


@dataclass(frozen=True, slots=True)
class Operation:
    """All calls of one kind in a step. floor: the least seconds by the roofline."""

    name: str
    shape: str
    count: int
    num_bytes: int
    flops: int
    seconds: float
    floor: float
    memory_bound: bool


@dataclass(frozen=True, slots=True)
class Profile:
    """A step, and what the device could do at best. seconds: of the step as a whole.

    table: what an engine measures when it starts, where it does.
    """

    model: str
    device: str
    dtype: str
    step: StepShape
    roofline: Roofline
    operations: list[Operation]
    seconds: float
    table: StepTable | None

    def together(self) -> Operation:
        """The sum of all operations."""
        count, num_bytes, flops = (
            sum(getattr(op, name) for op in self.operations)
            for name in ("count", "num_bytes", "flops")
        )
        seconds = sum(op.seconds for op in self.operations)
        floor = sum(op.floor for op in self.operations)
        bound = self.roofline.is_memory_bound(num_bytes, flops)
        return Operation("all of these", "", count, num_bytes, flops, seconds, floor, bound)

    def as_json(self) -> dict[str, Any]:
        """All of it for machines."""
        return asdict(self)


@dataclass(slots=True)
class _Kind:
    """Calls with equal shapes: what one of them moves and computes, and the calls themselves.

    in_fp8: whether they multiply by weights in FP8.
    """

    num_bytes: int
    flops: int
    in_fp8: bool
    calls: list[Call] = field(default_factory=list)


def profile_step(config: EngineConfig, step: StepShape) -> Profile:
    """Load the model, run the step and time it. Raises CheckpointError or ConfigError."""
    device = choose_device(config)
    config = settle(config, device.type)
    folder = resolve_model(config.model.model, config.model.revision)
    shape = ModelArchitecture.from_folder(folder)
    if step.context > shape.max_position_embeddings:
        name = "context" if step.num_new == 1 else "prefill"
        raise ConfigError(
            f"{name} is {step.context}, but the model knows positions up to "
            f"{shape.max_position_embeddings}; lower it"
        )
    dtype = choose_dtype(config, shape, device)
    kv_type = choose_kv_type(config, dtype, device)
    threads = thread_candidates(config, shape)
    torch.set_num_threads(threads[0])
    recorder = Recorder(asked_kernels(config, device) or kernels_for(device.type))
    model = load_model(config.model, shape, folder, device, dtype, recorder.kernels)
    table = None
    if device.type == "cpu" and not is_tiny(shape):
        table = measure_steps(model, shape, config.cache.block_size, kv_type, threads)
    with torch.inference_mode():
        run = _step(model, shape, step, config.cache.block_size, kv_type, device, recorder)
        run()  # what is made at a first call is no part of a step
        recorder.is_on = True
        run()
        recorder.is_on = False
        in_fp8 = any(kind.in_fp8 for kind in recorder.kinds.values())
        roofline = measure_roofline(device, dtype, in_fp8=in_fp8)
        operations = [_timed(key, kind, roofline, device) for key, kind in recorder.kinds.items()]
        seconds = time_calls([run], device)
    return Profile(
        config.model.model,
        str(device),
        str(dtype).removeprefix("torch."),
        step,
        roofline,
        sorted(operations, key=lambda operation: -operation.seconds),
        seconds,
        table,
    )


def _step(
    model: Any,
    shape: ModelArchitecture,
    step: StepShape,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    recorder: Recorder,
) -> Call:
    """A pass over such a batch, to be called again and again."""
    blocks_each = -(-step.context // block_size)
    num_blocks = step.num_requests * blocks_each
    kv_shape = (shape.num_layers, num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
    kv_caches = allocate_kv(*kv_shape, dtype, device)
    recorder.ignore(kv_caches)
    table = np.arange(num_blocks, dtype=np.int32).reshape(step.num_requests, blocks_each)
    lens, contexts = [step.num_new] * step.num_requests, [step.context] * step.num_requests
    layout = BatchLayout.build(lens, contexts, table, block_size, device)
    context = ForwardContext(layout, kv_caches)
    own = torch.arange(step.context - step.num_new, step.context, device=device)
    positions = own.repeat(step.num_requests)
    input_ids = positions % shape.vocab_size
    last = layout.query_start_loc[1:].long() - 1

    def run() -> None:
        hidden = model.forward(input_ids, positions, context)
        if shape.has_head:
            model.compute_logits(hidden.index_select(0, last))

    return run


def _timed(
    key: tuple[str, str], kind: _Kind, roofline: Roofline, device: torch.device
) -> Operation:
    count = len(kind.calls)
    num_bytes, flops = kind.num_bytes * count, kind.flops * count
    return Operation(
        *key,
        count,
        num_bytes,
        flops,
        time_calls(kind.calls, device),
        roofline.floor(num_bytes, flops, in_fp8=kind.in_fp8),
        roofline.is_memory_bound(num_bytes, flops, in_fp8=kind.in_fp8),
    )


class Recorder:
    """Kernels that note their calls while `is_on`."""

    def __init__(self, kernels: Kernels) -> None:
        self.is_on = False
        self.kinds: dict[tuple[str, str], _Kind] = {}
        self._caches: set[int] = set()
        names = [f.name for f in fields(Kernels)]
        if not kernels.fuses:  # which layers tell by this one
            names.remove("linear_normed")
        if not kernels.turns:
            names.remove("linear_turned")
        wrapped = {name: partial(self._call, name, getattr(kernels, name)) for name in names}
        self.kernels = replace(kernels, **wrapped)

    def ignore(self, kv_caches: list[tuple[Tensor, Tensor]]) -> None:
        """Count of these only what an operation touches."""
        self._caches = {cache.data_ptr() for pair in kv_caches for cache in pair}

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        result = function(*arguments)
        if self.is_on:
            given = [tensor for tensor in _tensors(arguments) if not self._is_cache(tensor)]
            if name == "embedding":  # reads a row for each token
                given = [result]
            num_bytes = sum(_bytes(tensor) for tensor in (*given, *_tensors(result)))
            shape = " · ".join(self._shapes(arguments)[:2])
            num_bytes += _cache_bytes(name, arguments)
            kind = self.kinds.setdefault(
                (name, shape), _Kind(num_bytes, _flops(name, arguments), _in_fp8(name, arguments))
            )
            kind.calls.append(partial(function, *arguments))
        return result

    def _shapes(self, arguments: tuple[Any, ...]) -> list[str]:
        """Of the first matrix of each argument."""
        first = (next((t for t in _tensors([each]) if t.ndim > 1), None) for each in arguments)
        return [_shape(t) for t in first if t is not None and not self._is_cache(t)]

    def _is_cache(self, tensor: Tensor) -> bool:
        return not tensor.is_mkldnn and tensor.data_ptr() in self._caches


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in arguments; a layout's are few and small, and are left out."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value) and not isinstance(value, BatchLayout):
        for each in fields(value):
            yield from _tensors(getattr(value, each.name))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.itemsize


def _shape(tensor: Tensor) -> str:
    return "x".join(str(size) for size in tensor.shape)


def _cache_bytes(name: str, arguments: tuple[Any, ...]) -> int:
    """Of the KV cache: what attention reads, and what a step's tokens write."""
    if name == "attention":
        _, cache, _, layout, _, window = arguments
        num_slots = sum(_num_keys(q, s, window) for q, s in _lens(layout))
    elif name == "rotary_write_kv":
        cache, num_slots = arguments[4], len(arguments[0])
    elif name == "linear_turned":
        cache, num_slots = arguments[3].k_cache, len(arguments[0].residual)
    else:
        return 0
    return 2 * num_slots * int(cache.shape[2] * cache.shape[3] * cache.itemsize)


def _flops(name: str, arguments: tuple[Any, ...]) -> int:
    """Of matrix products and attention; the rest is a few for each byte, and not counted."""
    if name.startswith("linear"):
        rows, weight = (next(_tensors(argument)) for argument in arguments[:2])
        return 2 * len(rows) * weight.numel()
    if name == "attention":
        query, layout, window = arguments[0], arguments[3], arguments[5]
        pairs = sum(_num_pairs(q, s, window) for q, s in _lens(layout))
        return 4 * int(query.shape[1] * query.shape[2]) * pairs
    return 0


def _in_fp8(name: str, arguments: tuple[Any, ...]) -> bool:
    return name.startswith("linear") and next(_tensors(arguments[1])).dtype == FP8


def _lens(layout: BatchLayout) -> list[tuple[int, int]]:
    return list(zip(layout.query_lens_host, layout.seq_lens_host, strict=True))


def _num_keys(num_queries: int, seq_len: int, window: int | None) -> int:
    """Keys that the last queries of a sequence see, each counted once."""
    return seq_len if window is None else min(seq_len, window + num_queries - 1)


def _num_pairs(num_queries: int, seq_len: int, window: int | None) -> int:
    """Pairs of a query and a key that it sees."""
    seen = np.arange(seq_len - num_queries + 1, seq_len + 1)
    return int((seen if window is None else np.minimum(seen, window)).sum())
