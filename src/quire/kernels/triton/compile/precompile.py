"""Kernels are compiled when they are first launched; here many at a time, before a step waits.

What a model's steps will launch is found by launching them: within such a step kernels of Triton
are only noted. What they would have written stays as it was, so the step's tensors mean nothing;
those that other kernels take for indices are zero from the start. Processes (forked_workers.py)
compile what was noted while more of it is found, and leave it in Triton's cache on disk.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import torch
import triton
from triton.runtime._async_compile import FutureKernel, active_mode
from triton.runtime.cache import get_cache_manager

from quire.kernels.triton.attention.decode_attention import decode_attention_kernel
from quire.kernels.triton.attention.prefill_attention import prefill_attention_kernel
from quire.kernels.triton.attention.prefill_tiles import prefill_work_kernel
from quire.kernels.triton.attention.shared_prefix_attention import (
    shared_attention_kernel,
    shared_plan_kernel,
)
from quire.kernels.triton.compile.forked_workers import ForkedWorkers
from quire.kernels.triton.gemm.skinny_gemm_kernel import skinny_gemm_kernel
from quire.kernels.triton.invariant.invariant_attention import invariant_attention_kernel
from quire.kernels.triton.invariant.invariant_gemm import tile_gemm_kernel
from quire.kernels.triton.ops.paged_attention import has_hopper_kernels, plan_kernel
from quire.kernels.triton.sampling.draw_kernels import peaks_kernel, weigh_kernel
from quire.kernels.triton.sampling.penalties import penalise_kernel
from quire.kernels.triton.sampling.top_k_top_p import open_bin_kernel
from quire.kernels.triton.step.elementwise import (
    norm_kernel,
    quantize_kernel,
    silu_fp8_kernel,
    silu_kernel,
)
from quire.kernels.triton.step.rope_kernels import angles_kernel, rope_write_kv_kernel
from quire.kernels.triton.step.step_kernels import (
    build_inputs_kernel,
    change_blocks_kernel,
    finish_step_kernel,
    move_kernel,
)

_MOST_PROCESSES = 16
_ALL = (
    skinny_gemm_kernel, tile_gemm_kernel, decode_attention_kernel, prefill_attention_kernel,
    invariant_attention_kernel, prefill_work_kernel, shared_attention_kernel, plan_kernel,
    shared_plan_kernel, norm_kernel,
    silu_kernel, silu_fp8_kernel, quantize_kernel, rope_write_kv_kernel,
    angles_kernel, peaks_kernel, weigh_kernel, open_bin_kernel, penalise_kernel,
    change_blocks_kernel, build_inputs_kernel, finish_step_kernel, move_kernel,
)  # fmt: skip


@contextmanager
def only_compiling() -> Iterator[None]:
    """Within it launches of kernels only note them; at its end all are compiled.

    A kernel that does not compile is told when it is launched.
    """
    with ExitStack() as stack:
        stack.enter_context(_Noting())
        for kernel in (*_ALL, *_hopper_kernels()):
            hash(kernel)  # always in this order: some hashes depend on what was hashed before
            stack.enter_context(_not_launching(kernel))
        yield


def _hopper_kernels() -> tuple[Any, ...]:
    """Those that other GPUs, and other versions of Triton, need not be able to compile."""
    if not (torch.cuda.is_available() and has_hopper_kernels(torch.cuda.current_device())):
        return ()
    from quire.kernels.triton.hopper.hopper_decode import hopper_decode_kernel
    from quire.kernels.triton.hopper.hopper_fp8_gemm import hopper_fp8_gemm_kernel
    from quire.kernels.triton.hopper.hopper_gemm import hopper_gemm_kernel
    from quire.kernels.triton.hopper.hopper_ordered_gemm import hopper_ordered_gemm_kernel
    from quire.kernels.triton.hopper.hopper_prefill import hopper_prefill_kernel
    from quire.kernels.triton.invariant.hopper_split_attention import hopper_split_attention_kernel

    return (
        hopper_decode_kernel, hopper_gemm_kernel, hopper_prefill_kernel, hopper_fp8_gemm_kernel,
        hopper_ordered_gemm_kernel, hopper_split_attention_kernel,
    )  # fmt: skip


class _Noting(triton.AsyncCompileMode):  # type: ignore[misc]
    """Has each kernel that is not on disk made there by other processes; at the end reads all."""

    def __init__(self) -> None:
        super().__init__(None, ignore_errors=True)
        self._latest: tuple[str, str, str, bool] = "", "", "", False  # see _compile
        self._types: set[tuple[Any, ...]] = set()  # of arguments that launches had
        driver = triton.runtime.driver.active
        self._gpu = driver.get_current_device(), driver.get_current_target()
        count = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)))
        self._workers = ForkedWorkers(count, self._compile)

    def __enter__(self) -> Self:
        triton.knobs.runtime.jit_cache_hook = self._take
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        triton.knobs.runtime.jit_cache_hook = None
        self._workers.finish()
        for kernel in self.future_kernels.values():
            kernel.result(ignore_errors=True)
        super().__exit__(*raised)

    def _take(self, **launch: Any) -> bool:
        kernel, told = launch["fn"], launch["compile"]
        types = tuple(told["signature"].values())
        is_first = types not in self._types
        self._types.add(types)
        self._latest = kernel.module, kernel.name, told["specialization_data"], is_first
        return False  # it is submitted next

    def submit(
        self, key: str, compile_it: Callable[[], Any], keep: Callable[[Any], None], *others: Any
    ) -> Any:
        """As in Triton. key: of which Triton makes the folder's name. others: of later Tritons."""
        kernel = self.future_kernels.get(key)
        if kernel is None:
            kernel = FutureKernel(keep, *others, SimpleNamespace(result=compile_it))
            self.future_kernels[key] = kernel
            keep(kernel)  # whoever launches it again need not work out its key
            if not _is_cached(key):
                self._workers.put(*self._latest)
        return kernel

    def _compile(self, module: str, name: str, how: str, is_first: bool) -> None:
        """In another process: leave a kernel on disk. how: in Triton's own JSON.

        is_first: of those with such arguments. Triton 3.6 compiles a function in C for their types.
        """
        driver = triton.runtime.driver.active
        device, target = self._gpu
        driver.get_current_device = lambda: device  # CUDA may not be asked behind a fork
        driver.get_current_target = lambda: target
        triton.knobs.runtime.jit_cache_hook = None
        active_mode.set(None)
        kernel = getattr(import_module(module), name).preload(how)
        if is_first:
            driver.launcher_cls(kernel.src, kernel.metadata)


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
