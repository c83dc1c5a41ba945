"""The attention backend and the other operations of each device type: who implements each."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from quire.kernels import reference, reference_step
from quire.kernels.cpu import native
from quire.kernels.cpu import torch_attention as cpu_attention
from quire.kernels.cpu import torch_matmul as cpu_matmul
from quire.kernels.operands import LinearWeight, QuantSpec, ResidualState, RopeWriteKV, Rows
from quire.kernels.step_buffer import StepSections


@dataclass(frozen=True, slots=True)
class Kernels:
    """The operations as one device runs them. Shapes and dtypes: see the twins in `reference`."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    rms_norm_residual: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    embedding: Callable[[Tensor, LinearWeight], Tensor]
    silu_and_mul: Callable[[Tensor], Tensor]
    gelu_and_mul: Callable[[Tensor], Tensor]
    rope_angles: Callable[[Tensor, Tensor, float, torch.dtype], tuple[Tensor, Tensor]]
    # both are given `KVScales` as well, where keys and values in int8 have scales of their own
    rope_write_kv: Callable[..., Tensor]
    attention: Callable[..., Tensor]
    quantize: Callable[[Tensor, QuantSpec], LinearWeight]
    pack: Callable[[LinearWeight], LinearWeight]
    linear: Callable[[Tensor, LinearWeight, Tensor | None], Tensor]
    normalized_rows: Callable[[ResidualState], Tensor]
    order_gate_up: Callable[[Tensor, torch.dtype], Tensor]
    pad_rows: Callable[[Tensor], Tensor]
    rms_norm_linear: Callable[[ResidualState, LinearWeight, Tensor | None], Tensor]
    qkv_rope_write_kv: Callable[[ResidualState, LinearWeight, Tensor | None, RopeWriteKV], Tensor]
    linear_silu: Callable[[ResidualState, LinearWeight, Tensor | None, bool], Rows]
    linear_gelu: Callable[[ResidualState, LinearWeight, Tensor | None], Rows]
    linear_add_norm: Callable[
        [Rows, LinearWeight, Tensor | None, Tensor, Tensor, float], ResidualState
    ]
    build_inputs: Callable[[Tensor, StepSections, Tensor, Tensor, Tensor, int], None]
    finish_step: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    move: Callable[[Tensor, Tensor], None]
    penalise: Callable[[Tensor, Tensor, Tensor, Tensor], None]

    @property
    def fuses(self) -> bool:
        """Whether the device has fused kernels for linear layers with norm, SiLU or residual.

        Elsewhere their twins call the separate operations one by one, which callers do themselves.
        """
        return self.rms_norm_linear is not reference.rms_norm_linear

    @property
    def fuses_rope(self) -> bool:
        """Whether the device has a fused kernel for the QKV projection with RoPE and KV write."""
        return self.qkv_rope_write_kv is not reference.qkv_rope_write_kv


Operations = Mapping[str, Callable[..., Any]]

# the plain implementations, for any device
_NAMESPACE = vars(reference) | vars(reference_step)
_TWINS: Operations = {field.name: _NAMESPACE[field.name] for field in fields(Kernels)}
# by PyTorch's operations, where a twin is much slower on a CPU
_ON_CPU: Operations = {
    "attention": cpu_attention.attention,
    "linear": cpu_matmul.linear,
}


def has_triton() -> bool:
    """Whether Triton is installed; does not import it."""
    return importlib.util.find_spec("triton") is not None


def operations_for(device_type: str, *, batch_invariant: bool = False) -> Operations:
    """The operations that a device type has faster versions of than the plain ones.

    Triton's kernels on "cuda"; on "cpu" the native library's, if it was built.
    """
    if device_type == "cuda" and has_triton():
        from quire.kernels.triton.triton_operations import OPERATIONS

        if batch_invariant:
            from quire.kernels.triton.invariant.invariant_operations import invariant

            return invariant(OPERATIONS)
        return OPERATIONS
    if device_type == "cpu" and native.library() is not None:
        from quire.kernels.cpu.cpu_operations import OPERATIONS as COMPILED

        return {**_ON_CPU, **COMPILED}
    return _ON_CPU if device_type == "cpu" else {}


@functools.cache
def kernels_for(device_type: str, *, batch_invariant: bool = False) -> Kernels:
    """The kernels of a device type: "cpu", "cuda", or any other, such as "meta": the plain ones.

    batch_invariant: kernels whose results for a row do not depend on the rest of the batch ("cuda"
    only).
    """
    return Kernels(**{**_TWINS, **operations_for(device_type, batch_invariant=batch_invariant)})


def compiling_ahead(device_type: str) -> AbstractContextManager[None]:
    """A context in which Triton kernels are compiled in parallel instead of launched.

    It ends when all are compiled. Tensors that those launches would have filled are undefined.
    Elsewhere than on a GPU it does nothing.
    """
    if device_type != "cuda" or not has_triton():
        return nullcontext()
    from quire.kernels.triton.compile.precompile import only_compiling

    return only_compiling()


def describe(device: torch.device | str = "cpu") -> str:
    """The implementations of a device as a table of text, one line for each operation."""
    kernels = kernels_for(torch.device(device).type)
    rows = [(field.name, getattr(kernels, field.name)) for field in fields(kernels)]
    return "\n".join(f"{op:18} {f.__module__}.{f.__qualname__}" for op, f in rows)
