"""Kernels are compiled when they are first launched; here many at a time, before a step waits.

What a model's steps will launch is found by launching them: within such a step kernels of Triton
are only noted. What they would have written stays as it was, so the step's tensors mean nothing;
those that other kernels take for indices are zero from the start. At the end all that was noted is
compiled by processes (forked.py), which leave it in Triton's cache on disk.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime.cache import get_cache_manager

from quire.kernels.triton.attention import has_hopper_kernels, plan_kernel
from quire.kernels.triton.decode_attention import decode_attention_kernel
from quire.kernels.triton.elementwise import (
    norm_kernel,
    quantize_kernel,
    silu_fp8_kernel,
    silu_kernel,
)
from quire.kernels.triton.forked import ForkedExecutor
from quire.kernels.triton.invariant import tile_gemm_kernel
from quire.kernels.triton.penalties import penalise_kernel
from quire.kernels.triton.prefill_attention import prefill_attention_kernel
from quire.kernels.triton.prefill_work import prefill_work_kernel
from quire.kernels.triton.rotary import angles_kernel, rotary_write_kv_kernel
from quire.kernels.triton.sampling import peaks_kernel, weigh_kernel
from quire.kernels.triton.sampling_filters import open_bin_kernel
from quire.kernels.triton.shared_attention import (
    shared_attention_kernel,
    shared_plan_kernel,
)
from quire.kernels.triton.skinny_kernel import skinny_gemm_kernel
from quire.kernels.triton.step import (
    build_inputs_kernel,
    change_blocks_kernel,
    finish_step_kernel,
    move_kernel,
)

_MOST_PROCESSES = 16
_ALL = (
    skinny_gemm_kernel, tile_gemm_kernel, decode_attention_kernel, prefill_attention_kernel,
    prefill_work_kernel, shared_attention_kernel, plan_kernel, shared_plan_kernel, norm_kernel,
    silu_kernel, silu_fp8_kernel, quantize_kernel, rotary_write_kv_kernel,
    angles_kernel, peaks_kernel, weigh_kernel, open_bin_kernel, penalise_kernel,
    change_blocks_kernel, build_inputs_kernel, finish_step_kernel, move_kernel,
)  # fmt: skip


@contextmanager
def only_compiling() -> Iterator[None]:
    """Within it launches of kernels only note them; at its end all are compiled.

    A kernel that does not compile is told when it is launched.
    """
    processes = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)))
    with ForkedExecutor(processes) as executor, ExitStack() as stack:
        stack.enter_context(_Noting(executor, ignore_errors=True))
        stack.callback(executor.run)  # before the mode asks for what has been compiled
        for kernel in (*_ALL, *_hopper_kernels()):
            stack.enter_context(_not_launching(kernel))
        yield


def _hopper_kernels() -> tuple[Any, ...]:
    """Those that other GPUs, and other versions of Triton, need not be able to compile."""
    if not (torch.cuda.is_available() and has_hopper_kernels(torch.cuda.current_device())):
        return ()
    from quire.kernels.triton.hopper_decode import hopper_decode_kernel
    from quire.kernels.triton.hopper_gemm import hopper_gemm_kernel
    from quire.kernels.triton.hopper_prefill import hopper_prefill_kernel
    from quire.kernels.triton.hopper_rows import hopper_rows_kernel

    return hopper_decode_kernel, hopper_gemm_kernel, hopper_prefill_kernel, hopper_rows_kernel


class _Noting(triton.AsyncCompileMode):  # type: ignore[misc]
    """Tells what is on disk from what takes long, and notes each kernel once."""

    def submit(self, key: str, compile_it: Any, keep: Any, *others: Any) -> Any:
        """As told there. key: of which Triton makes the folder's name."""
        is_new = key not in self.future_kernels
        kernel = super().submit(key, compile_it, keep, *others)
        if is_new:
            kernel.future.is_quick = _is_cached(key)
            kernel.future.follow_up = _make_launcher
            keep(kernel)  # whoever launches it again need not work out its key
        return kernel


def _make_launcher(kernel: Any) -> None:
    """Triton 3.6 compiles a function in C for each kernel's arguments; it is kept on disk, too."""
    triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)


def _is_cached(key: str) -> bool:
    """Whether a kernel has been compiled before: what belongs to it is listed at the end."""
    manager = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    folder = getattr(manager, "cache_dir", None)  # others than the usual one may have none
    return folder is not None and any(Path(folder).glob("__grp__*"))


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
