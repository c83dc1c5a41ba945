"""Kernels are compiled when they are first launched; here many at a time, before a step waits.

What a model's steps will launch is found by launching them, with everything that takes long to
compile left out: those launches only begin a compilation in a thread of its own (most of it runs
without the interpreter's lock). What they would have written stays as it was, so the tensors of
such a step mean nothing; those that hold indices are made by kernels that do run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import triton

from quire.kernels.triton.decode_attention import decode_attention_kernel
from quire.kernels.triton.elementwise import (
    _norm_kernel,
    _quantize_kernel,
    _silu_kernel,
    silu_fp8_kernel,
)
from quire.kernels.triton.invariant import tile_gemm_kernel
from quire.kernels.triton.penalties import _penalise_kernel
from quire.kernels.triton.prefill_attention import prefill_attention_kernel
from quire.kernels.triton.rotary import _angles_kernel, _rotary_write_kv_kernel
from quire.kernels.triton.sampling import peaks_kernel, weigh_kernel
from quire.kernels.triton.sampling_filters import open_bin_kernel
from quire.kernels.triton.shared_attention import shared_attention_kernel
from quire.kernels.triton.skinny_kernel import skinny_gemm_kernel
from quire.kernels.triton.step import _finish_step_kernel

_MOST_THREADS = 16
# All but those that write what others take for indices.
_LONG = (
    skinny_gemm_kernel, tile_gemm_kernel, decode_attention_kernel, prefill_attention_kernel,
    shared_attention_kernel, _norm_kernel, _silu_kernel, silu_fp8_kernel, _quantize_kernel,
    _rotary_write_kv_kernel, _angles_kernel, peaks_kernel, weigh_kernel, open_bin_kernel,
    _finish_step_kernel, _penalise_kernel,
)  # fmt: skip


@contextmanager
def only_compiling() -> Iterator[None]:
    """Within it launches of long kernels compile them; at its end all are there.

    A kernel that does not compile is told when it is launched.
    """
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads) as pool, ExitStack() as stack:
        stack.enter_context(triton.AsyncCompileMode(pool, ignore_errors=True))
        for kernel in _LONG:
            stack.enter_context(_not_launching(kernel))
        yield


@contextmanager
def _not_launching(kernel: Any) -> Iterator[None]:
    """A kernel whose launches end where the GPU would get it."""
    run = kernel.run

    def compile_alone(*args: Any, **options: Any) -> Any:
        return run(*args, **options | {"warmup": True})

    kernel.run = compile_alone
    try:
        yield
    finally:
        del kernel.run  # the class's own again
