"""Gluon functions that were renamed in Triton 3.7, under one name for all versions."""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, tma

_Memory = gl.shared_memory_descriptor

barrier = getattr(gl, "barrier", None) or gl.thread_barrier
fetch_box = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
fetch_rows = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
seen_as = getattr(_Memory, "reinterpret", None) or _Memory._reinterpret
store_box = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
