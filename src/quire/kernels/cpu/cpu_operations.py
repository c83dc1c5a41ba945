"""The operations that run in the native library on a CPU, by the names of `dispatch`'s table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.kernels.cpu import native_attention, native_linear, quantized_linear, tensor_ops

OPERATIONS: dict[str, Callable[..., Any]] = {
    "rms_norm": tensor_ops.rms_norm,
    "rope_write_kv": native_attention.rope_write_kv,
    "attention": native_attention.attention,
    "quantize": quantized_linear.quantize,
    "pack": native_linear.pack,
    "linear": native_linear.linear,
    "embedding": native_linear.embedding,
    "normalized_rows": native_linear.normalized_rows,
    "order_gate_up": native_linear.order_gate_up,
    "pad_rows": native_linear.pad_rows,
    "rms_norm_linear": native_linear.rms_norm_linear,
    "linear_silu": native_linear.linear_silu,
    "linear_gelu": native_linear.linear_gelu,
    "linear_add_norm": native_linear.linear_add_norm,
}
