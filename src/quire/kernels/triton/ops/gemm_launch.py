"""Launches of the GEMMs for few rows: Hopper's ring of 16 and 8 bits, and the plain kernel."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from quire.kernels.operands import RopeWriteKV
from quire.kernels.triton.gemm.skinny_gemm_kernel import skinny_gemm_kernel
from quire.kernels.triton.gemm.split_k_config import shares_of
from quire.kernels.triton.launch.gemm_config import RingConfig, SkinnyConfig, tile_rows
from quire.kernels.triton.launch.row_memory import whole_boxes
from quire.kernels.triton.launch.workspace import NUM_PARTIALS, workspace


def rope_operands(rope: RopeWriteKV | None) -> tuple[tuple[Any, ...], dict[str, int]]:
    """The kernels' arguments for RoPE and KV write: (tensors and numbers, constants)."""
    if rope is None:
        return (None,) * 9 + (0.0, 0, 0, 0, 0), {"HEAD_DIM": 0, "KV_HEADS": 0, "CACHE_BLOCK": 0}
    norms, cache = rope.norms, rope.k_cache
    operands = (
        rope.cos, rope.sin, norms and norms.query, norms and norms.key, cache,
        rope.v_cache, rope.scales and rope.scales.keys, rope.scales and rope.scales.values,
        rope.slots, norms.eps if norms else 0.0, rope.cos.stride(0),
        *cache.stride()[:3],
    )  # fmt: skip
    constants = {"HEAD_DIM": rope.head_dim, "KV_HEADS": cache.shape[2]}
    return operands, constants | {"CACHE_BLOCK": cache.shape[1]}


def run_ring(
    config: RingConfig,
    rows: Tensor,
    w: Tensor,
    behind: tuple[Any, ...],
    out: Tensor,
    flags: dict[str, Any],
) -> None:
    """Launch Hopper's ring GEMM; arguments as `GpuLinear.run` has them."""
    from quire.kernels.triton.hopper.hopper_gemm import chunk_steps, hopper_gemm_kernel, tiles_of

    num_programs = triton.cdiv(len(w), config.block_n) * config.split
    block_m = tile_rows(len(rows))
    assert config.split == 1 or num_programs * config.block_n * block_m <= NUM_PARTIALS
    x_tiles = None
    if rows.dtype == w.dtype:
        if (rows.stride(0) * rows.itemsize | rows.data_ptr()) % 16:
            rows = rows.clone(memory_format=torch.contiguous_format)
        x_tiles = tiles_of(whole_boxes(rows, block_m), block_m)
    hopper_gemm_kernel[(num_programs,)](
        rows, x_tiles, tiles_of(w, config.block_n), *behind, out.stride(0),
        BLOCK_M=block_m, BLOCK_N=config.block_n, STAGES=config.stages, SPLIT=config.split,
        SHARES=shares_of(config.split, block_m, 1, workspace(w.device).num_sms, tokens=8),
        TILES=config.tiles,
        CHUNK=chunk_steps(block_m, config.warps, 128 * config.tiles // w.itemsize),
        maxnreg=registers(config, w.dtype), GROUP=0, SCALED=False, GROUP_ROWS=0, CODEBOOK=None,
        SCALES_FIRST=False,
        **flags,
    )  # fmt: skip


def registers(config: RingConfig, kind: torch.dtype) -> int | None:
    """The limit of registers for each thread, so that two programs fit on a multiprocessor.

    Of small programs three; those that round to bytes would take a few more than that allows.
    """
    if config.warps == 8:
        return 128
    return 168 if kind == torch.int8 and config.block_n == 64 else None


def run_skinny(
    config: SkinnyConfig,
    rows: Tensor,
    w: Tensor,
    behind: tuple[Any, ...],
    out: Tensor,
    flags: dict[str, Any],
) -> None:
    """Launch the plain Triton GEMM for few rows; arguments as `GpuLinear.run` has them.

    behind: begins with scales of W's rows, and of words scales and zeros of groups, and numbers.
    """
    n, k = len(w), rows.shape[1]
    block_m = max(config.min_block_m, triton.next_power_of_2(len(rows)))
    num_programs, parts = config.grid(n, k, workspace(rows.device).num_sms)
    num_units = triton.cdiv(n, config.block_n) * triton.cdiv(k, config.block_k)
    assert config.split or num_programs * num_units < 2**31  # see `run_begin`
    assert parts == 1 or 2 * num_programs * config.block_n * block_m <= NUM_PARTIALS
    skinny_gemm_kernel[(num_programs,)](
        rows, w, _descriptor(w, config), *behind, w.stride(0), out.stride(0),
        BLOCK_M=block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, STAGES=config.stages,
        SPLIT=parts if config.split else 0, MAX_PARTS=triton.next_power_of_2(parts),
        EVEN_N=n % config.block_n == 0, EVEN_K=k % config.block_k == 0,
        PRECISION="ieee" if rows.dtype == torch.float32 else "tf32", TMA=config.tma, **flags,
    )  # fmt: skip


def _descriptor(weight: Tensor, config: SkinnyConfig) -> TensorDescriptor | None:
    """A TMA descriptor of W, if the config uses TMA."""
    if not config.tma:
        return None
    return TensorDescriptor.from_tensor(weight, [config.block_n, config.block_k])
