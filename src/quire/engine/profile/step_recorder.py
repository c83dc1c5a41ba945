"""Recording of the operations that a model calls in a step: their bytes, FLOPs and arguments.

Operations are those of kernels/dispatch.Kernels, wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple
from torch import Tensor

from quire.engine.profile.roofline import Call, num_keys, num_pairs
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.dispatch import Kernels
from quire.kernels.operands import Fp8Weight


@dataclass(slots=True)
class CallKind:
    """Calls of one operation with equal shapes. num_bytes, flops: of one call.

    in_fp8: whether they multiply FP8 by FP8, where the device does.
    """

    num_bytes: int
    flops: int
    in_fp8: bool
    calls: list[Call] = field(default_factory=list)


class Recorder:
    """Kernels that note their calls while a step is recorded."""

    def __init__(self, kernels: Kernels) -> None:
        self._is_on = False
        self.kinds: dict[tuple[str, str], CallKind] = {}
        self._caches: set[int] = set()
        names = [f.name for f in fields(Kernels)]
        if not kernels.fuses:  # layers look whether this one is there
            names.remove("rms_norm_linear")
        if not kernels.fuses_rope:
            names.remove("qkv_rope_write_kv")
        wrapped = {name: partial(self._call, name, getattr(kernels, name)) for name in names}
        self.kernels = replace(kernels, **wrapped)

    def ignore(self, kv_caches: list[tuple[Tensor, ...]]) -> None:
        """Have the bytes of these counted only as far as an operation reads or writes them."""
        self._caches = {cache.data_ptr() for layer in kv_caches for cache in layer}

    def record(self, step: Call) -> None:
        """Run a step twice and record the second: a first call may initialise something."""
        step()
        self._is_on = True
        step()
        self._is_on = False

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        result = function(*arguments)
        if self._is_on:
            self._kind_of(name, arguments, result).calls.append(partial(function, *arguments))
        return result

    def _kind_of(self, name: str, arguments: tuple[Any, ...], result: Any) -> CallKind:
        """The kind of a call: one for each operation and shapes."""
        given = [tensor for tensor in _tensors(arguments) if not self._is_cache(tensor)]
        if name == "embedding":  # reads a row for each token
            given = [result]
        num_bytes = sum(tensor.nbytes for tensor in (*given, *_tensors(result)))
        num_bytes += _cache_bytes(name, arguments)
        own = CallKind(num_bytes, _flops(name, arguments), _in_fp8(name, arguments))
        shape = " · ".join(self._shapes(arguments)[:2])
        return self.kinds.setdefault((name, shape), own)

    def _shapes(self, arguments: tuple[Any, ...]) -> list[str]:
        """Shapes of the first matrix of each argument."""
        first = (next((t for t in _tensors([each]) if t.ndim > 1), None) for each in arguments)
        return [
            "x".join(map(str, t.shape)) for t in first if t is not None and not self._is_cache(t)
        ]

    def _is_cache(self, tensor: Tensor) -> bool:
        return tensor.data_ptr() in self._caches


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
    elif isinstance(value, Struct):
        yield from _tensors(astuple(value))


def _cache_bytes(name: str, arguments: tuple[Any, ...]) -> int:
    """Bytes of the KV cache that attention reads, or that a step's tokens write."""
    if name == "attention":
        _, cache, _, layout, params, *_ = arguments
        num_slots = sum(num_keys(q, s, params.window) for q, s in _lens(layout))
    elif name == "rope_write_kv":
        cache, num_slots = arguments[4], len(arguments[0])
    elif name == "qkv_rope_write_kv":
        cache, num_slots = arguments[3].k_cache, len(arguments[0].residual)
    else:
        return 0
    return 2 * num_slots * int(cache.shape[2] * cache.shape[3] * cache.itemsize)


def _flops(name: str, arguments: tuple[Any, ...]) -> int:
    """FLOPs of matrix products and attention; those of other operations are few."""
    if name.startswith(("linear", "rms_norm_linear")):
        rows, weight = (next(_tensors(argument)) for argument in arguments[:2])
        return 2 * len(rows) * weight.numel()
    if name == "attention":
        query, layout, params = arguments[0], arguments[3], arguments[4]
        pairs = sum(num_pairs(q, s, params.window) for q, s in _lens(layout))
        return 4 * int(query.shape[1] * query.shape[2]) * pairs
    return 0


def _in_fp8(name: str, arguments: tuple[Any, ...]) -> bool:
    if not name.startswith(("linear", "rms_norm_linear")):
        return False
    return isinstance(arguments[1], Fp8Weight) and arguments[1].rounds


def _lens(layout: BatchLayout) -> list[tuple[int, int]]:
    return list(zip(layout.query_lens_host, layout.seq_lens_host, strict=True))
