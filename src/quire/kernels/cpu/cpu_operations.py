"""What the compiled kernels serve on a CPU; see native.py for when they are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.kernels.cpu import native_attention, native_linear, quantized_linear, tensor_ops

OPERATIONS: dict[str, Callable[..., Any]] = {
    "rms_norm": tensor_ops.rms_norm,
    "rope_write_kv": native_attention.rope_write_kv,
    "attention": native_attention.attention,
    "prepare_linear": native_linear.prepare_linear,
    "linear": native_linear.linear,
    "embedding": native_linear.embedding,
    "normalized_rows": native_linear.normalized_rows,
    "order_gate_up": native_linear.order_gate_up,
    "pad_rows": native_linear.pad_rows,
    "rms_norm_linear": native_linear.rms_norm_linear,
    "linear_silu": native_linear.linear_silu,
    "linear_add_norm": native_linear.linear_add_norm,
    "to_int8": quantized_linear.to_int8,
    "to_int4": quantized_linear.to_int4,
    "prepare_int8": quantized_linear.prepare_int8,
    "linear_int8": native_linear.linear,
    "prepare_int4": quantized_linear.prepare_int4,
    "linear_int4": native_linear.linear,
}
