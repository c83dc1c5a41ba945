"""Parallel compilation of all kernels that a model's steps launch, before they are needed.

Triton compiles a kernel when it is first launched. Here a step is run in which launches are only
recorded, to find the kernels and their specialisations. Its tensors are not written, so their
values are undefined; those that other kernels use as indices are zero from the start. Forked
processes (forked_workers.py) compile what is recorded while the step goes on, into Triton's cache
on disk.
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

from quire.kernels.triton.attention.attention_plan import plan_kernel
from quire.kernels.triton.attention.decode_attention import decode_attention_kernel
from quire.kernels.triton.attention.kv_dequantization import (
    dequantization_plan_kernel,
    dequantize_kv_kernel,
)
from quire.kernels.triton.attention.prefill_attention import prefill_attention_kernel
from quire.kernels.triton.attention.prefill_tiles import prefill_work_kernel
from quire.kernels.triton.attention.shared_prefix_attention import (
    shared_attention_kernel,
    shared_plan_kernel,
)
from quire.kernels.triton.compile.forked_workers import ForkedWorkers
from quire.kernels.triton.gemm.skinny_gemm_kernel import skinny_gemm_kernel
from quire.kernels.triton.invariant.invariant_attention import invariant_attention_kernel
from quire.kernels.triton.ops.byte_words import dequantize_bytes_kernel
from quire.kernels.triton.ops.int4_weight import dequantize_int4_kernel
from quire.kernels.triton.ops.invariant_gemm import tile_gemm_kernel
from quire.kernels.triton.ops.paged_attention import has_hopper_kernels
from quire.kernels.triton.sampling.candidates import candidates_kernel
from quire.kernels.triton.sampling.draw_kernels import peaks_kernel, weigh_kernel
from quire.kernels.triton.sampling.penalties import penalise_kernel
from quire.kernels.triton.sampling.top_k_top_p import open_bin_kernel
from quire.kernels.triton.step.block_rounding import quantize_blocks_kernel
from quire.kernels.triton.step.elementwise import (
    embedding_kernel,
    norm_kernel,
    quantize_kernel,
    silu_kernel,
    silu_rounded_kernel,
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
    shared_plan_kernel, embedding_kernel, norm_kernel,
    silu_kernel, silu_rounded_kernel, quantize_kernel, rope_write_kv_kernel,
    angles_kernel, peaks_kernel, weigh_kernel, candidates_kernel, open_bin_kernel,
    penalise_kernel, change_blocks_kernel, build_inputs_kernel, finish_step_kernel, move_kernel,
    dequantize_int4_kernel, dequantization_plan_kernel, dequantize_kv_kernel,
    dequantize_bytes_kernel, quantize_blocks_kernel,
)  # fmt: skip


@contextmanager
def only_compiling() -> Iterator[None]:
    """A context in which launches of kernels are only recorded; when it ends, all are compiled.

    A kernel that does not compile raises when it is launched later.
    """
    with ExitStack() as stack:
        stack.enter_context(_Noting())
        for kernel in (*_ALL, *_hopper_kernels()):
            hash(kernel)  # always in this order: some hashes depend on those before
            stack.enter_context(_not_launching(kernel))
        yield


def _hopper_kernels() -> tuple[Any, ...]:
    """Kernels for Hopper only; none if the GPU or this version of Triton lacks support."""
    if not (torch.cuda.is_available() and has_hopper_kernels(torch.cuda.current_device())):
        return ()
    from quire.kernels.triton.hopper.hopper_block_gemm import hopper_block_gemm_kernel
    from quire.kernels.triton.hopper.hopper_byte_rows import hopper_byte_rows_kernel
    from quire.kernels.triton.hopper.hopper_decode import hopper_decode_kernel
    from quire.kernels.triton.hopper.hopper_fp8_gemm import hopper_fp8_gemm_kernel
    from quire.kernels.triton.hopper.hopper_gemm import hopper_gemm_kernel
    from quire.kernels.triton.hopper.hopper_int4_rows import hopper_int4_rows_kernel
    from quire.kernels.triton.hopper.hopper_ordered_gemm import hopper_ordered_gemm_kernel
    from quire.kernels.triton.hopper.hopper_prefill import hopper_prefill_kernel
    from quire.kernels.triton.invariant.hopper_split_attention import hopper_split_attention_kernel

    return (
        hopper_decode_kernel, hopper_gemm_kernel, hopper_prefill_kernel, hopper_fp8_gemm_kernel,
        hopper_ordered_gemm_kernel, hopper_split_attention_kernel, hopper_int4_rows_kernel,
        hopper_block_gemm_kernel, hopper_byte_rows_kernel,
    )  # fmt: skip


class _Noting(triton.AsyncCompileMode):  # type: ignore[misc]
    """Triton's hook for compilation: workers compile to disk, and the end loads all kernels."""

    def __init__(self) -> None:
        super().__init__(None, ignore_errors=True)
        self._latest: tuple[str, str, str, bool] = "", "", "", False  # see _compile
        self._types: set[tuple[Any, ...]] = set()  # of arguments, of all launches so far
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
        kernel, options = launch["fn"], launch["compile"]
        types = tuple(options["signature"].values())
        is_first = types not in self._types
        self._types.add(types)
        self._latest = kernel.module, kernel.name, options["specialization_data"], is_first
        return False  # Triton calls `submit` next

    def submit(
        self, key: str, compile_it: Callable[[], Any], keep: Callable[[Any], None], *others: Any
    ) -> Any:
        """Overrides Triton's. key: hashed to the cache folder's name. others: of later versions."""
        kernel = self.future_kernels.get(key)
        if kernel is None:
            kernel = FutureKernel(keep, *others, SimpleNamespace(result=compile_it))
            self.future_kernels[key] = kernel
            keep(kernel)  # so that the next launch of it need not compute its key
            if not _is_cached(key):
                self._workers.put(*self._latest)
        return kernel

    def _compile(self, module: str, name: str, how: str, is_first: bool) -> None:
        """In a worker: compile a kernel to disk. how: its specialisation, in Triton's JSON.

        is_first: the first kernel with such argument types, for which Triton 3.6 also compiles a
        launcher in C.
        """
        driver = triton.runtime.driver.active
        device, target = self._gpu
        driver.get_current_device = lambda: device  # CUDA cannot be called after a fork
        driver.get_current_target = lambda: target
        triton.knobs.runtime.jit_cache_hook = None
        active_mode.set(None)
        kernel = getattr(import_module(module), name).preload(how)
        if is_first:
            driver.launcher_cls(kernel.src, kernel.metadata)


def _is_cached(key: str) -> bool:
    """Whether a kernel is in Triton's cache, complete: its file list is written last."""
    manager = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    folder = getattr(manager, "cache_dir", None)  # other cache managers may have none
    return folder is not None and any(Path(folder).glob("__grp__*"))


@contextmanager
def _not_launching(kernel: Any) -> Iterator[None]:
    """A context in which a kernel's launches stop after its compilation."""
    run = kernel.run

    def compile_alone(*args: Any, **options: Any) -> Any:
        return run(*args, **options | {"warmup": True})

    kernel.run = compile_alone
    try:
        yield
    finally:
        del kernel.run  # the method of the class again
