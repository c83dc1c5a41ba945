"""Which function serves an operation on which device. Owns the choice, made once per device."""

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
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.cpu import native
from quire.kernels.cpu import torch_attention as cpu_attention
from quire.kernels.cpu import torch_matmul as cpu_matmul
from quire.kernels.operands import (
    AttentionParams,
    HeadNorms,
    LinearWeight,
    QuantSpec,
    ResidualState,
    RopeWriteKV,
    Rows,
)
from quire.kernels.step_buffer import StepSections


@dataclass(frozen=True, slots=True)
class Kernels:
    """The operations as one device runs them; shapes are told by the twins in `reference`."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    rms_norm_residual: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    embedding: Callable[[Tensor, LinearWeight], Tensor]
    silu_and_mul: Callable[[Tensor], Tensor]
    rope_angles: Callable[[Tensor, Tensor, float, torch.dtype], tuple[Tensor, Tensor]]
    rope_write_kv: Callable[
        [Tensor, HeadNorms | None, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor
    ]
    attention: Callable[[Tensor, Tensor, Tensor, BatchLayout, AttentionParams], Tensor]
    quantize: Callable[[Tensor, QuantSpec], LinearWeight]
    pack: Callable[[LinearWeight], LinearWeight]
    linear: Callable[[Tensor, LinearWeight, Tensor | None], Tensor]
    normalized_rows: Callable[[ResidualState], Tensor]
    order_gate_up: Callable[[Tensor], Tensor]
    pad_rows: Callable[[Tensor], Tensor]
    rms_norm_linear: Callable[[ResidualState, LinearWeight, Tensor | None], Tensor]
    qkv_rope_write_kv: Callable[[ResidualState, LinearWeight, Tensor | None, RopeWriteKV], Tensor]
    linear_silu: Callable[[ResidualState, LinearWeight, Tensor | None], Rows]
    linear_add_norm: Callable[
        [Rows, LinearWeight, Tensor | None, Tensor, Tensor, float], ResidualState
    ]
    build_inputs: Callable[[Tensor, StepSections, Tensor, Tensor, Tensor, int], None]
    finish_step: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    move: Callable[[Tensor, Tensor], None]
    penalise: Callable[[Tensor, Tensor, Tensor, Tensor], None]

    @property
    def fuses(self) -> bool:
        """Whether this device has kernels for products with norm, SiLU and residual.

        Elsewhere the twins of those compose what the single operations do, and better not be used.
        """
        return self.rms_norm_linear is not reference.rms_norm_linear

    @property
    def fuses_rope(self) -> bool:
        """Whether it has one for a product whose results are heads, too."""
        return self.qkv_rope_write_kv is not reference.qkv_rope_write_kv


Operations = Mapping[str, Callable[..., Any]]

# what runs where nothing faster is known
_NAMESPACE = vars(reference) | vars(reference_step)
_TWINS: Operations = {field.name: _NAMESPACE[field.name] for field in fields(Kernels)}
# by PyTorch's operations, where a twin is much slower on a CPU
_ON_CPU: Operations = {
    "attention": cpu_attention.attention,
    "linear": cpu_matmul.linear,
}


def has_triton() -> bool:
    """Whether Triton is installed; it is not looked at before a GPU needs it."""
    return importlib.util.find_spec("triton") is not None


def operations_for(device_type: str, *, batch_invariant: bool = False) -> Operations:
    """What a device has in place of twins: Triton's kernels on CUDA, our own on a CPU, if there."""
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
    """The kernels of a device type, such as "cpu" or "cuda"; of any other, such as "meta", twins.

    batch_invariant: those whose results for a row do not depend on the others; of a GPU alone.
    """
    return Kernels(**{**_TWINS, **operations_for(device_type, batch_invariant=batch_invariant)})


def compiling_ahead(device_type: str) -> AbstractContextManager[None]:
    """Within it launches do no more than begin to compile kernels, where those are compiled late.

    At its end all are there, made side by side. Results of such launches mean nothing.
    """
    if device_type != "cuda" or not has_triton():
        return nullcontext()
    from quire.kernels.triton.compile.precompile import only_compiling

    return only_compiling()


def describe(device: torch.device | str = "cpu") -> str:
    """The choice for a device as a table of text, one line an operation."""
    kernels = kernels_for(torch.device(device).type)
    rows = [(field.name, getattr(kernels, field.name)) for field in fields(kernels)]
    return "\n".join(f"{op:18} {f.__module__}.{f.__qualname__}" for op, f in rows)
