"""Linear layers for few rows, with fused norm, bias, SiLU, residual or RoPE: the launches.

Few are up to 64, with four-bit weights up to 512.

Floor: the bytes of W over the memory bandwidth; x, out and partial results are a few percent.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from quire.kernels.operands import (
    Fp8Weight,
    Int4Words,
    Int8Weight,
    ResidualState,
    RopeWriteKV,
)
from quire.kernels.triton.gemm.gemm_tuning import (
    holds_whole_heads,
    rope_gemm_config,
    skinny_gemm_config,
)
from quire.kernels.triton.gemm.int4_config import (
    Int4Config,
    block_rows,
    group_rows,
    int4_config,
    scales_codes,
)
from quire.kernels.triton.gemm.skinny_gemm_kernel import skinny_gemm_kernel
from quire.kernels.triton.launch.gemm_config import (
    GemmConfig,
    RingConfig,
    SkinnyConfig,
    tile_rows,
)
from quire.kernels.triton.launch.workspace import (
    NUM_COUNTERS,
    NUM_PARTIALS,
    launches_early,
    workspace,
)
from quire.kernels.triton.ops.int4_weight import byte_tables
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu

MAX_ROWS = 64
ByteWeight: TypeAlias = Fp8Weight | Int8Weight  # a code is a byte
GpuWeight: TypeAlias = Tensor | ByteWeight | Int4Words  # of a linear layer [N, K]


def skinny_gemm(
    x: Tensor | ResidualState,
    weight: GpuWeight,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    config: GemmConfig | Int4Config | None = None,
    pdl: bool | None = None,
) -> Tensor:
    """x · weightᵀ + bias + residual: x [M, K], weight [N, K] → [M, N]; M <= 64, in 4 bits 512.

    With a weight in FP8 or INT8, x is rounded to it, too, where the GPU multiplies such codes. A
    `ResidualState` x with squares stands for its normalized rows. config: chosen by the shape if
    None. pdl: launch before the previous kernel has ended; None: where the GPU can.
    """
    return _launch(x, weight, bias, residual, None, 0.0, False, None, config, pdl)[0]


def skinny_gemm_silu(
    x: Tensor | ResidualState,
    weight: GpuWeight,
    *,
    bias: Tensor | None = None,
    config: GemmConfig | Int4Config | None = None,
    pdl: bool | None = None,
) -> Tensor:
    """silu(gate) · up, with gate and up rows interleaved in W [N, K]: [M, N / 2]."""
    return _launch(x, weight, bias, None, None, 0.0, True, None, config, pdl)[0]


def skinny_gemm_norm(
    x: Tensor | ResidualState,
    weight: GpuWeight,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
    *,
    bias: Tensor | None = None,
    config: GemmConfig | Int4Config | None = None,
    pdl: bool | None = None,
) -> ResidualState:
    """residual + x · weightᵀ with the norm that follows: residual [M, N], norm_weight [N].

    The kernel stores the sum, the sum times the norm's weight and, for each of its tiles of
    columns, the sums of squares. So the norm costs no launch and no pass over memory.
    """
    out, normalized, squares = _launch(
        x, weight, bias, residual, norm_weight, eps, False, None, config, pdl
    )
    return ResidualState(out, normalized, norm_weight, eps, squares)


def skinny_gemm_rope(
    x: Tensor | ResidualState,
    weight: GpuWeight,
    rope: RopeWriteKV,
    config: GemmConfig | Int4Config,
    *,
    bias: Tensor | None = None,
    pdl: bool | None = None,
) -> Tensor:
    """QKV projection with RoPE and KV write: queries [M, Hq, D].

    config: one whose tiles contain whole heads, as `choose_rope_gemm_config` returns.
    """
    out, _, _ = _launch(x, weight, bias, None, None, 0.0, False, rope, config, pdl)
    return out.view(len(out), -1, rope.head_dim)


def interleave_gate_up(weight: Tensor, _: torch.dtype | None = None) -> Tensor:
    """W [2I, ...] of all gate rows, then all up rows, as gate, up, gate, up, ..."""
    gate, up = weight.chunk(2)
    return torch.stack([gate, up], dim=1).flatten(0, 1)


def _launch(
    x: Tensor | ResidualState,
    weight: GpuWeight,
    bias: Tensor | None,
    residual: Tensor | None,
    norm_weight: Tensor | None,
    eps: float,
    silu: bool,
    rope: RopeWriteKV | None,
    config: GemmConfig | Int4Config | None,
    pdl: bool | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Launch the kernel: (out, out times the norm's weight or None, sums of out² or None)."""
    w, w_scale, weight_format = _operand(weight)
    pdl = launches_early(w.device) if pdl is None else pdl
    rows = x.rows if isinstance(x, ResidualState) else x
    assert isinstance(rows, Tensor)
    if isinstance(weight, Int4Words) and weight.permutation is not None:
        rows = rows[:, weight.permutation]
    (num_rows, k), n = rows.shape, len(w)
    config = config or _default_config(num_rows, weight)
    assert num_rows <= MAX_ROWS or isinstance(weight, Int4Words)
    assert rows.stride(1) == w.stride(1) == 1
    assert residual is None or residual.is_contiguous()
    space = workspace(w.device)
    num_tiles = triton.cdiv(n, config.block_n)
    assert num_tiles <= NUM_COUNTERS
    operands, head_constants = _rope_operands(rope)
    stored = (
        2 * head_constants["KV_HEADS"] * head_constants["HEAD_DIM"]
    )  # columns that go to the caches
    out = w.new_empty(num_rows, n // 2 if silu else n - stored, dtype=rows.dtype)
    normalized = squares = None
    if norm_weight is not None:
        normalized = torch.empty_like(out)
        squares = w.new_empty(num_tiles, num_rows, dtype=torch.float32)
    incoming = x.squares if isinstance(x, ResidualState) else None
    assert incoming is not None or not isinstance(x, ResidualState)
    behind = (
        out, bias, residual, norm_weight, normalized, squares, incoming, *operands[:9],
        space.partials, space.counters, num_rows, n, k, 0 if incoming is None else len(incoming),
        x.eps if isinstance(x, ResidualState) else eps, *operands[9:], rows.stride(0),
    )  # fmt: skip
    flags = {
        "HAS_BIAS": bias is not None, "HAS_RESIDUAL": residual is not None,
        "HAS_NORM": norm_weight is not None, "HAS_SQUARES": incoming is not None, "SILU": silu,
        "PDL": pdl, "num_warps": config.warps, "launch_pdl": pdl,
    } | head_constants  # fmt: skip
    assert not silu or residual is None
    if isinstance(weight, Int4Words):
        assert isinstance(config, Int4Config)
        _run_int4(config, rows, weight, behind, out, flags)
    elif isinstance(config, RingConfig):
        _run_ring(config, rows, w, (w_scale, None, None, *behind), out, flags)
    else:
        assert isinstance(config, SkinnyConfig)
        _run_skinny(
            config, rows, w, (w_scale, *behind), out, flags | {"WEIGHT_FORMAT": weight_format}
        )
    return out, normalized, squares


def _default_config(num_rows: int, weight: GpuWeight) -> GemmConfig | Int4Config:
    w, num_sms = _operand(weight)[0], workspace(_operand(weight)[0].device).num_sms
    n, k = w.shape
    if isinstance(weight, Int4Words):
        found = int4_config_of(num_rows, weight)
        assert found is not None
        return found
    return skinny_gemm_config(num_rows, n, k, w.itemsize, num_sms, hopper=has_hopper_gpu(w.device))


def int4_config_of(num_rows: int, weight: Int4Words, head_dim: int = 0) -> Int4Config | None:
    """The config of four-bit weights, see `int4_config`."""
    n, num_sms = len(weight.words), workspace(weight.words.device).num_sms
    zeros, group = weight.zeros is not None, weight.group
    return int4_config(num_rows, n, weight.inputs, group, num_sms, zeros=zeros, head_dim=head_dim)


def choose_rope_gemm_config(
    x: ResidualState, weight: GpuWeight, rope: RopeWriteKV
) -> GemmConfig | Int4Config | None:
    """The config of `skinny_gemm_rope` for these operands, or None if it does not serve them."""
    rows = x.rows
    if x.squares is None or not isinstance(rows, Tensor) or len(rows) == 0:
        return None
    if rope.cos.shape[1] != rope.head_dim:  # partial RoPE is not served
        return None
    w = _operand(weight)[0]
    if isinstance(weight, Int4Words):
        kv_heads, head_dim = rope.k_cache.shape[2], rope.head_dim
        whole = int4_config_of(len(rows), weight, head_dim) if head_dim in (64, 128) else None
        holds = whole is not None and holds_whole_heads(whole, len(w), kv_heads, head_dim)
        return whole if holds else None
    shape = (len(rows), *w.shape, w.itemsize, workspace(w.device).num_sms)
    kv_heads = rope.k_cache.shape[2]
    return rope_gemm_config(*shape, kv_heads, rope.head_dim, hopper=has_hopper_gpu(w.device))


def _rope_operands(rope: RopeWriteKV | None) -> tuple[tuple[Any, ...], dict[str, int]]:
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


def _run_ring(
    config: RingConfig,
    rows: Tensor,
    w: Tensor,
    behind: tuple[Any, ...],
    out: Tensor,
    flags: dict[str, Any],
) -> None:
    from quire.kernels.triton.hopper.hopper_gemm import chunk_steps, hopper_gemm_kernel, tiles_of

    num_programs = triton.cdiv(len(w), config.block_n) * config.split
    block_m = tile_rows(len(rows))
    assert config.split == 1 or num_programs * config.block_n * block_m <= NUM_PARTIALS
    x_tiles = None
    if rows.dtype == w.dtype:
        if (rows.stride(0) * rows.itemsize | rows.data_ptr()) % 16:
            rows = rows.clone(memory_format=torch.contiguous_format)
        x_tiles = tiles_of(rows, block_m)
    hopper_gemm_kernel[(num_programs,)](
        rows, x_tiles, tiles_of(w, config.block_n), *behind, out.stride(0),
        BLOCK_M=block_m, BLOCK_N=config.block_n, STAGES=config.stages, SPLIT=config.split,
        TILES=config.tiles,
        CHUNK=chunk_steps(block_m, config.warps, 128 * config.tiles // w.itemsize),
        maxnreg=registers(config, w.dtype), GROUP=0, SCALED=False, GROUP_ROWS=0, CODEBOOK=None,
        **flags,
    )  # fmt: skip


def _run_int4(
    config: Int4Config,
    rows: Tensor,
    weight: Int4Words,
    behind: tuple[Any, ...],
    out: Tensor,
    flags: dict[str, Any],
) -> None:
    from quire.kernels.triton.hopper.hopper_gemm import hopper_gemm_kernel
    from quire.kernels.triton.hopper.hopper_int4_ring import column_boxes, word_boxes

    (m, k), n = rows.shape, len(weight.words)
    codebook = None if weight.codebook is None else byte_tables(weight.codebook)
    if k % 256 or (rows.stride(0) * rows.itemsize | rows.data_ptr()) % 16:
        rows = F.pad(rows, (0, -k % 256)).contiguous()
    block_m, m_tiles = block_rows(m), triton.cdiv(m, block_rows(m))
    tiles = triton.cdiv(n, config.block_n) * m_tiles
    assert tiles <= NUM_COUNTERS
    assert config.split == 1 or tiles * config.split * config.block_n * block_m <= NUM_PARTIALS
    hopper_gemm_kernel[(tiles * config.split,)](
        rows, column_boxes(rows, config.parts, block_m),
        word_boxes(weight.words, config.parts, config.block_n), None, weight.scale, weight.zeros,
        *behind, out.stride(0),
        BLOCK_M=block_m, BLOCK_N=config.block_n, STAGES=config.stages, SPLIT=config.split,
        TILES=config.parts, CHUNK=0, maxnreg=None, GROUP=weight.group,
        SCALED=config.scaled or scales_codes(m, weight.group),
        GROUP_ROWS=group_rows(k, weight.group, config), CODEBOOK=codebook, **flags,
    )  # fmt: skip


def registers(config: RingConfig, kind: torch.dtype) -> int | None:
    """The limit of registers for each thread, so that two programs fit on a multiprocessor.

    Of small programs three; those that round to bytes would take a few more than that allows.
    """
    if config.warps == 8:
        return 128 if config.block_n < 256 else None
    return 168 if kind == torch.int8 and config.block_n == 64 else None


def _run_skinny(
    config: SkinnyConfig,
    rows: Tensor,
    w: Tensor,
    behind: tuple[Any, ...],
    out: Tensor,
    flags: dict[str, Any],
) -> None:
    n, k = w.shape
    block_m = max(config.min_block_m, triton.next_power_of_2(len(rows)))
    num_programs, parts = config.grid(n, k, workspace(rows.device).num_sms)
    num_units = triton.cdiv(n, config.block_n) * triton.cdiv(k, config.block_k)
    assert num_programs * num_units < 2**31
    assert parts == 1 or 2 * num_programs * config.block_n * block_m <= NUM_PARTIALS
    skinny_gemm_kernel[(num_programs,)](
        rows, w, _descriptor(w, config), *behind, w.stride(0), out.stride(0),
        BLOCK_M=block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, STAGES=config.stages,
        SPLIT=parts if config.split else 0, MAX_PARTS=triton.next_power_of_2(parts),
        EVEN_N=n % config.block_n == 0, EVEN_K=k % config.block_k == 0,
        PRECISION="ieee" if rows.dtype == torch.float32 else "tf32", TMA=config.tma, **flags,
    )  # fmt: skip


def _operand(weight: GpuWeight) -> tuple[Tensor, Tensor | None, str]:
    """(the tensor that the kernel reads, its scales or None, the kernel's WEIGHT_FORMAT)."""
    if isinstance(weight, Int4Words):
        return weight.words, None, "words"
    if isinstance(weight, Tensor):
        return weight, None, "plain"
    if isinstance(weight, Int8Weight) or multiplies_fp8(weight.codes.device):
        return weight.codes, weight.scale, "codes"
    return weight.codes.view(torch.uint8), weight.scale, "bytes"


@functools.cache
def multiplies_fp8(device: torch.device) -> bool:
    """Whether the device's tensor cores multiply FP8; Triton's interpreter does."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)


def _descriptor(weight: Tensor, config: SkinnyConfig) -> TensorDescriptor | None:
    """A TMA descriptor of W, if the config uses TMA."""
    if not config.tma:
        return None
    return TensorDescriptor.from_tensor(weight, [config.block_n, config.block_k])
