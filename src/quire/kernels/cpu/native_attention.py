"""Attention, and RoPE with the write of keys and values, by the native library.

Owns when it can serve: queries in float32 or bfloat16, heads that `serves_heads` allows. PyTorch's
operations serve the rest. See native/attention.h for how it works.
"""

from __future__ import annotations

import ctypes

from torch import Tensor

from quire.dtypes import NATIVE_DTYPES
from quire.kernels import reference
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.cpu import native, torch_attention
from quire.kernels.cpu.native_structs import AttentionArgs, RotaryArgs, serves_heads
from quire.kernels.cpu.tensor_ops import TENSOR_DTYPES
from quire.kernels.operands import AttentionParams, HeadNorms
from quire.kernels.torch_dtypes import torch_dtype

KV_DTYPES = {torch_dtype(name): code for name, code in NATIVE_DTYPES.items()}


def rope_write_kv(
    heads: Tensor,
    norms: HeadNorms | None,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
) -> Tensor:
    """Twin of `reference.rope_write_kv`; between its steps float32 is not rounded to bfloat16."""
    tokens, num_heads, dim = heads.shape
    stride, *inner = heads.stride()
    kv_heads = k_cache.shape[2]
    if not serves(heads, dim, k_cache) or inner != [dim, 1] or cos.dtype != heads.dtype:
        return reference.rope_write_kv(heads, norms, cos, sin, k_cache, v_cache, slot_mapping)
    num_heads -= 2 * kv_heads
    cos, sin = cos.contiguous(), sin.contiguous()
    query = heads.new_empty(tokens, num_heads, dim)
    args = RotaryArgs(
        heads.data_ptr(),
        None if norms is None else norms.query.data_ptr(),
        None if norms is None else norms.key.data_ptr(),
        cos.data_ptr(), sin.data_ptr(), None, k_cache.data_ptr(), v_cache.data_ptr(),
        slot_mapping.data_ptr(), query.data_ptr(), tokens, stride,
        num_heads, kv_heads, dim, cos.shape[1], 0.0 if norms is None else norms.eps,
        TENSOR_DTYPES[heads.dtype], KV_DTYPES[k_cache.dtype], native.num_threads(),
    )  # fmt: skip
    native.compiled().quire_cpu_rotary_write_kv(ctypes.byref(args))
    return query


def attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    params: AttentionParams,
) -> Tensor:
    """Twin of `reference.attention` for layouts that `BatchLayout.build` made.

    Layers with sinks are left to `torch_attention`.
    """
    tokens, num_heads, dim = query.shape
    stride, *inner = query.stride()
    if not serves(query, dim, k_cache) or inner != [dim, 1] or params.sinks is not None:
        return torch_attention.attention(query, k_cache, v_cache, layout, params)
    # what is the same in all layers is filled in once
    own = params.scale, params.window, params.soft_cap
    shapes = query.shape, k_cache.shape[1:]
    key = ("compiled attention", *shapes, query.dtype, k_cache.dtype, *own)
    args = layout.once(key, lambda: _args(query, k_cache, layout, params))
    out = query.new_empty(tokens, num_heads, dim)
    args.query, args.query_stride, args.out = query.data_ptr(), stride, out.data_ptr()
    args.k_cache, args.v_cache = k_cache.data_ptr(), v_cache.data_ptr()
    native.compiled().quire_cpu_attention(ctypes.byref(args))
    return out


def _args(
    query: Tensor, k_cache: Tensor, layout: BatchLayout, params: AttentionParams
) -> AttentionArgs:
    return AttentionArgs(
        query_start=layout.query_start_loc.data_ptr(),
        seq_lens=layout.seq_lens.data_ptr(),
        block_table=layout.block_table.data_ptr(),
        requests=len(layout.seq_lens),
        table_stride=layout.block_table.stride(0),
        block_size=k_cache.shape[1],
        heads=query.shape[1],
        kv_heads=k_cache.shape[2],
        head_dim=query.shape[2],
        window=params.window or 0,
        scale=params.scale,
        soft_cap=params.soft_cap or 0.0,
        dtype=TENSOR_DTYPES[query.dtype],
        cache_dtype=KV_DTYPES[k_cache.dtype],
        threads=native.num_threads(),
    )


def serves(query: Tensor, dim: int, k_cache: Tensor) -> bool:
    """Whether the library has kernels for these shapes and dtypes."""
    is_typed = query.dtype in TENSOR_DTYPES and k_cache.dtype in KV_DTYPES
    return is_typed and serves_heads(dim, k_cache.shape[1])
