"""What the compiled kernels serve on a CPU; see native.py for when they are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.kernels.cpu import linear, linear_int, native_attention, tensors

OPERATIONS: dict[str, Callable[..., Any]] = {
    "rms_norm": tensors.rms_norm,
    "rotary_write_kv": native_attention.rotary_write_kv,
    "attention": native_attention.attention,
    "finite_rows": tensors.finite_rows,
    "to_float": tensors.to_float,
    "prepare_linear": linear.prepare_linear,
    "linear": linear.linear,
    "embedding": linear.embedding,
    "normed_rows": linear.normed_rows,
    "order_gate_up": linear.order_gate_up,
    "pad_rows": linear.pad_rows,
    "linear_normed": linear.linear_normed,
    "linear_silu": linear.linear_silu,
    "linear_add_norm": linear.linear_add_norm,
    "to_int8": linear_int.to_int8,
    "to_int4": linear_int.to_int4,
    "prepare_int8": linear_int.prepare_int8,
    "linear_int8": linear.linear,
    "prepare_int4": linear_int.prepare_int4,
    "linear_int4": linear.linear,
}
