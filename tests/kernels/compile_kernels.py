"""Compiles each kernel for GPUs that need not be here; run by test_triton_compile.py.

Given as kernel:capability; prints one line of JSON: what each takes of a multiprocessor, or why it
does not compile. All in one process, since importing Triton takes longer than compiling a kernel.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from functools import partial
from typing import Any

import torch
from aot_compile import Compiled, compile_kernel
from triton.experimental.gluon import language as gl

from quire.kernels.triton.attention.attention_plan import plan_kernel
from quire.kernels.triton.attention.decode_attention import decode_attention_kernel
from quire.kernels.triton.attention.kv_dequantization import (
    dequantization_plan_kernel,
    dequantize_kv_kernel,
)
from quire.kernels.triton.attention.prefill_attention import prefill_attention_kernel
from quire.kernels.triton.attention.shared_prefix_attention import shared_attention_kernel
from quire.kernels.triton.gemm.block_config import BlockConfig
from quire.kernels.triton.gemm.byte_config import scales_codes
from quire.kernels.triton.gemm.byte_rows_config import byte_rows_configs
from quire.kernels.triton.gemm.int4_rows_config import int4_rows_configs
from quire.kernels.triton.gemm.skinny_gemm_kernel import skinny_gemm_kernel
from quire.kernels.triton.gemm.split_k_config import shares_of, split_k_config
from quire.kernels.triton.gemm.table_config import has_table
from quire.kernels.triton.hopper.hopper_block_gemm import hopper_block_gemm_kernel
from quire.kernels.triton.hopper.hopper_byte_rows import hopper_byte_rows_kernel
from quire.kernels.triton.hopper.hopper_decode import hopper_decode_kernel
from quire.kernels.triton.hopper.hopper_fp8_gemm import COLUMNS, hopper_fp8_gemm_kernel
from quire.kernels.triton.hopper.hopper_gemm import hopper_gemm_kernel, tile_layout
from quire.kernels.triton.hopper.hopper_int4_rows import hopper_int4_rows_kernel
from quire.kernels.triton.hopper.hopper_ordered_gemm import hopper_ordered_gemm_kernel
from quire.kernels.triton.hopper.hopper_prefill import hopper_prefill_kernel
from quire.kernels.triton.invariant.hopper_split_attention import hopper_split_attention_kernel
from quire.kernels.triton.invariant.invariant_attention import invariant_attention_kernel
from quire.kernels.triton.launch.attention_config import prefill_config
from quire.kernels.triton.launch.attention_memory import (
    SHARED_STAGES,
    fitting_prefill,
    shared_tile,
)
from quire.kernels.triton.launch.gemm_config import RingConfig
from quire.kernels.triton.ops.int4_weight import byte_tables
from quire.kernels.triton.ops.invariant_gemm import tile_gemm_kernel
from quire.kernels.triton.sampling.candidates import candidates_kernel
from quire.kernels.triton.sampling.draw_kernels import peaks_kernel, weigh_kernel
from quire.kernels.triton.sampling.top_k_top_p import open_bin_kernel
from quire.kernels.triton.step.elementwise import norm_kernel, silu_rounded_kernel
from quire.kernels.triton.step.rope_kernels import rope_write_kv_kernel

BF16 = "*bf16"
Given = dict[str, Any]  # of `compile_kernel`
BYTES = {"i8", "fp8e4nv"}
TUNED = RingConfig(128, 3, 4, warps=8)


def plan(capability: int, *, whole: bool = False, most: int = 256, warps: int = 1) -> Compiled:
    """The plan of attention: where each program begins."""
    given = {"KEY_TILE": 64, "QUERY_TILE": 16, "WINDOW": 0, "NUM_KV_HEADS": 1 if whole else 8}
    given |= {"DECODES": True, "BLOCK_B": most, "BLOCK_P": 4, "MEMBERS": 16, "PDL": True}
    return compile_kernel(plan_kernel, capability, given | {"WHOLE": whole}, num_warps=warps)


def skinny(
    capability: int, weight_format: str = "plain", *, codes: str = "fp8e4nv", heads: bool = False,
    cache: str = BF16, one_row: bool = False, table: str | None = None, group: int = 64,
) -> Compiled:  # fmt: skip
    """The product before a norm, as an 8B model's layers have it."""
    kind = {"plain": "bf16", "codes": codes, "bytes": "u8", "words": "i32"}[weight_format]
    columns = 128 if weight_format == "plain" else 256
    is_words = weight_format == "words"
    pdl, tma = capability >= 90, capability == 90 and not is_words
    given: Given = {
        "group_scale_ptr": ("*u8" if group == 16 else "*fp16") if is_words else None,
        "zero_ptr": None, "table_ptr": table, "GROUP": group if is_words else 0, "ONE_ROW": one_row,
        "w_ptr": f"*{kind}", "w_desc": f"tensordesc<{kind}[64,{columns}]>" if tma else None,
        "bias_ptr": None, "squares_ptr": None, "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": columns,
        "STAGES": 4, "SPLIT": 0, "MAX_PARTS": 4, "EVEN_N": False, "EVEN_K": True,
        "HAS_BIAS": False, "HAS_RESIDUAL": True, "HAS_NORM": True, "HAS_SQUARES": False,
        "SILU": False, "PRECISION": "tf32", "TMA": tma, "PDL": pdl, "WEIGHT_FORMAT": weight_format,
    }  # fmt: skip
    has_scale = weight_format in ("codes", "bytes") or (is_words and group == 16)
    given |= {} if has_scale else {"w_scale_ptr": None}
    given = with_rope(given, heads, cache)
    return compile_kernel(
        skinny_gemm_kernel, capability, given, launch_pdl=pdl, maxnreg=128 if one_row else None
    )


ROPE = ["cos_ptr", "sin_ptr", "query_norm_ptr", "key_norm_ptr", "k_cache_ptr", "v_cache_ptr"]
ROPE += ["k_scale_ptr", "v_scale_ptr", "slots_ptr"]
WITHOUT_ROPE = dict.fromkeys(ROPE) | dict.fromkeys(
    ["stride_angles", "stride_block", "stride_slot", "stride_kv_head", "head_eps"], 0
)
WITHOUT_ROPE |= dict.fromkeys(["HEAD_DIM", "KV_HEADS", "CACHE_BLOCK"], 0)
HEADS = {"HEAD_DIM": 64, "KV_HEADS": 8, "CACHE_BLOCK": 16}
NO_NORM = {"HAS_RESIDUAL": False, "HAS_NORM": False} | dict.fromkeys(
    ["residual_ptr", "norm_ptr", "normalized_ptr", "squares_out_ptr"]
)


def kv_scales(kind: str) -> Given:
    """Scales of keys and values, which those in INT8 have."""
    return dict.fromkeys(["k_scale_ptr", "v_scale_ptr"], BF16 if kind.endswith("i8") else None)


def with_rope(given: Given, wanted: bool, cache: str = BF16) -> Given:
    """A GEMM's arguments with RoPE and KV writes fused into it, or without."""
    if not wanted:
        return given | WITHOUT_ROPE
    given = given | NO_NORM | HEADS | {"HAS_SQUARES": True, "squares_ptr": "*fp32"}
    return given | dict.fromkeys(["k_cache_ptr", "v_cache_ptr"], cache) | kv_scales(cache)


def skinny_fp8(capability: int) -> Compiled:
    """`skinny` with weights in FP8."""
    return skinny(capability, "codes" if capability >= 89 else "bytes")


def ring(
    capability: int, kind: str = "bf16", *, heads: bool = False, cache: str = BF16,
    block_m: int = 16,
) -> Compiled:  # fmt: skip
    """The product before a norm with W in a ring; x is rounded, or else it comes in W's type."""
    plain = kind == "bf16"
    given: Given = {
        "w_desc": tiles(kind, 64), "x_desc": tiles(kind, block_m) if plain else None,
        "bias_ptr": None, "BLOCK_M": block_m, "BLOCK_N": 64, "STAGES": 4, "TILES": 2, "CHUNK": 2,
        "SPLIT": 4, "SHARES": shares_of(4, block_m, 1, 132, tokens=8), "HAS_BIAS": False,
        "HAS_RESIDUAL": True, "HAS_NORM": True, "HAS_SQUARES": True, "SILU": False, "PDL": True,
        "group_scale_ptr": None, "zero_ptr": None, "GROUP": 0, "SCALED": False, "GROUP_ROWS": 0,
        "CODEBOOK": None, "SCALES_FIRST": False,
    }  # fmt: skip
    given |= {"w_scale_ptr": None} if plain else {}
    given = with_rope(given, heads, cache)
    return compile_kernel(hopper_gemm_kernel, capability, given, launch_pdl=True)


def tiles(kind: str, rows: int, columns: int | None = None) -> str:
    """The type of a descriptor of tiles, of 128 bytes of each row if not of so many columns."""
    itemsize = 1 if kind in BYTES else 2
    return f"tensordesc<{kind}[{rows}, {columns or 128 // itemsize}],{tile_layout(itemsize)!r}>"


def box(kind: str, sizes: str, *, swizzle: int = 0, rank: int = 2) -> str:
    """The type of a descriptor of boxes of these sizes. swizzle: bytes."""
    bits = {"i32": 32, "bf16": 16, "fp16": 16}.get(kind, 8)
    return f"tensordesc<{kind}[{sizes}],{gl.NVMMASharedLayout(swizzle, bits, rank)!r}>"


def _codebook(name: str, *, by_bits: bool) -> str:
    """As `ring_codebook` has it."""
    return "e2m1" if name != "nf4" and by_bits else byte_tables(name, torch.bfloat16)


def ring_int4(
    capability: int, rows: int = 1, block_n: int = 64, parts: int = 2, group: int = 128,
    *, zeros: bool = False, heads: bool = False, silu: bool = False, codebook: str | None = None,
    stages: int = 2, warps: int = 0, registers: int | None = None, codes: str | None = None,
    halves: bool = False, by_bits: bool = True,
) -> Compiled:  # fmt: skip
    """The same with weights in four bits.

    codes: of eight bits, "s8" or "e4m3"; group 0: they have scales of rows alone. halves: tiles
    of heads of 128 dimensions have parts of both their halves.
    """
    sizes = f"{parts},{block_n},32"
    if codes is not None:
        sizes = f"2,{sizes}"
        scaled = group == 0 or scales_codes(rows, group)
    else:
        scaled = codebook != "nf4" or not has_table(rows)
    if halves:
        sizes = f"1,{parts},2,{block_n // 2},32"
    given: Given = {
        "w_desc": box("i32", sizes, swizzle=128, rank=sizes.count(",") + 1),
        "x_desc": box("bf16", f"4,{parts},{rows},64", swizzle=128, rank=4),
        "bias_ptr": None, "BLOCK_M": rows, "BLOCK_N": block_n,
        "STAGES": stages, "TILES": parts, "CHUNK": 0, "HAS_BIAS": False,
        "SPLIT": 4, "SHARES": shares_of(4, rows, 1, 132, tokens=8),
        "HAS_RESIDUAL": True, "HAS_NORM": True, "HAS_SQUARES": True, "SILU": False, "PDL": True,
        "GROUP": group or 256, "SCALED": scaled, "GROUP_ROWS": 16,
        "CODEBOOK": codes if codebook is None else _codebook(codebook, by_bits=by_bits),
        "SCALES_FIRST": rows == 1 and codes is None and codebook is None,
    }  # fmt: skip
    if codebook in ("mxfp4", "nvfp4") or not group:
        given["group_scale_ptr"] = "*u8" if group else None
    given["zero_ptr"] = ("*u8" if codes is None else "*i8") if zeros else None
    given |= {"w_scale_ptr": None} if codes is None and codebook != "nvfp4" else {}
    given |= NO_NORM | {"SILU": True, "SPLIT": 1, "SHARES": 1} if silu else {}
    given = with_rope(given, heads or halves)
    if halves:
        given |= {"HEAD_DIM": 128, "query_norm_ptr": None, "key_norm_ptr": None}
    warps = warps or (8 if block_n == 128 and not 1 < rows <= 8 else 4)  # as `int4_config` has them
    return compile_kernel(
        hopper_gemm_kernel, capability, given, num_warps=warps, launch_pdl=True, maxnreg=registers
    )


def rows_int4(
    capability: int, block_m: int = 256, block_n: int = 64, group: int = 128,
    *, zeros: bool = False, codebook: str | None = None, split: int = 4,
) -> Compiled:  # fmt: skip
    """The result of more than 64 rows in FP8 with weights in four bits."""
    config = next(each for each in int4_rows_configs(block_m, 4096, 4096)
                  if (each.block_m, each.block_n) == (block_m, block_n))  # fmt: skip
    groups, rest = f"{256 // group},{block_n}", config.rest
    shares = shares_of(split, block_m, 1, 132)
    given: Given = {
        "x_desc": tiles("fp8e4nv", block_m - rest),
        "rest_desc": tiles("fp8e4nv", rest) if rest else None,
        "w_desc": box("i32", f"1,{block_n},32", swizzle=128, rank=3),
        "scale_desc": box("fp16" if codebook in (None, "nf4") else "u8", groups),
        "zero_desc": box("u8", groups) if zeros else None,
        "out_desc": tiles("bf16", min(64, (rest or block_m) // shares), block_n),
        "STAGES": config.stages, "SPLIT": split, "SHARES": shares,
        "CODEBOOK": codebook and byte_tables(codebook, torch.float16),
    }  # fmt: skip
    return within_plan(hopper_int4_rows_kernel, capability, given, config)


def within_plan(kernel: Any, capability: int, given: Given, config: Any) -> Compiled:
    """A kernel that takes no more shared memory than its config says."""
    compiled = compile_kernel(kernel, capability, given, num_warps=config.warps, launch_pdl=True)
    assert compiled.shared_memory <= config.shared_memory
    return compiled


def blocks(
    capability: int, block_m: int = 128, block_n: int = 64, split: int = 1, kind: str = "fp8e4nv",
    *, alone: bool = False,
) -> Compiled:  # fmt: skip
    """The result of many rows in eight bits with scales of blocks; of W alone for each output."""
    config, shares = BlockConfig(block_m, block_n, 3, split), shares_of(split, block_m, 1, 132)
    given: Given = {
        "x_desc": tiles(kind, block_m), "w_desc": tiles(kind, block_n), "x_scale_ptr": BF16,
        "out_desc": tiles("bf16", block_m // shares, block_n),
        "STAGES": 3, "TABLE": config.table(4096), "SPLIT": split, "SHARES": shares,
    }  # fmt: skip
    given |= {"group_scale_ptr": None} if alone else {}
    return compile_kernel(
        hopper_block_gemm_kernel, capability, given, num_warps=config.warps, launch_pdl=True,
        maxnreg=config.registers,
    )  # fmt: skip


def rows_bytes(
    capability: int, block_m: int = 256, block_n: int = 128, group: int = 128, split: int = 1,
    codes: str = "s8", *, zeros: bool = False,
) -> Compiled:  # fmt: skip
    """The result of more than 64 rows in bfloat16 with weights of a byte each."""
    config = next(each for each in byte_rows_configs(block_m, 4096, 4096)
                  if (each.block_m, each.block_n) == (block_m, block_n))  # fmt: skip
    rest, main = config.rest, block_m - config.rest
    shares, groups = shares_of(split, block_m, 1, 132), f"{128 // (group or 128)},{block_n}"
    x = partial(box, "bf16", swizzle=128, rank=3)
    given: Given = {
        "x_desc": x(f"{config.columns // 64},{main},64"),
        "rest_desc": x(f"{config.columns // 64},{rest},64") if rest else None,
        "w_desc": box("i32", f"1,{block_n},32", swizzle=128, rank=3),
        "scale_desc": box("fp16", groups) if group else None,
        "zero_desc": box("i8", groups) if zeros else None,
        "out_desc": tiles("bf16", main // shares, block_n),
        "rest_out_desc": tiles("bf16", rest // shares, block_n) if rest else None,
        "STAGES": config.stages, "CODES": codes, "SPLIT": split, "SHARES": shares,
    }  # fmt: skip
    return within_plan(hopper_byte_rows_kernel, capability, given, config)


def rows(
    capability: int, kind: str = "fp8e4nv", most: int = 128, config: RingConfig | None = TUNED
) -> Compiled:
    """The product of some rows with weights in eight bits; config: None for that of few tiles."""
    config = config or split_k_config(most, 1024, 8192, 132)
    assert config is not None
    shares = shares_of(config.split, most, 1, 132)
    given: Given = {
        "x_desc": tiles(kind, most), "w_desc": tiles(kind, config.block_n),
        "out_desc": tiles("bf16", most // shares, config.block_n),
        "STAGES": config.stages, "TILES": config.tiles, "SPLIT": config.split, "SHARES": shares,
        "EVERY": COLUMNS // (128 * config.tiles) if kind == "fp8e4nv" and most <= 128 else 0,
    }  # fmt: skip
    return compile_kernel(
        hopper_fp8_gemm_kernel, capability, given, num_warps=config.warps, launch_pdl=True
    )


def rows_in_order(capability: int) -> Compiled:
    """The batch-invariant product of 65 to 128 rows."""
    given: Given = {"x_desc": tiles("bf16", 128), "w_desc": tiles("bf16", 64)}
    given |= {"out_desc": tiles("bf16", 128), "x_scale_ptr": None, "w_scale_ptr": None}
    given |= {"STAGES": 4, "TILES": 1, "SPLIT": 1, "SHARES": 1, "EVERY": 0}
    return compile_kernel(hopper_fp8_gemm_kernel, capability, given, launch_pdl=True)


def many(capability: int, kind: str = "bf16") -> Compiled:
    """The batch-invariant product of many rows for Hopper."""
    given: Given = {"x_desc": tiles(kind, 128), "w_desc": tiles(kind, 256)}
    given |= {"out_desc": tiles("bf16", 64, 128), "STAGES": 4, "IN_LINE": 8}
    return compile_kernel(hopper_ordered_gemm_kernel, capability, given, launch_pdl=True)


SHARED = ["shared_index_ptr", "lens_ptr", "shared_sums_ptr", "shared_stats_ptr", "shared_plan_ptr"]
FP8_CACHE = dict.fromkeys(["k_ptr", "v_ptr"], "*fp8e4nv")
INT8_CACHE = dict.fromkeys(["k_ptr", "v_ptr"], "*i8") | kv_scales("i8")
HEAD: Given = {"NUM_KV_HEADS": 8, "GROUP": 4, "HEAD_DIM": 128, "BLOCK_SIZE": 16}
SHAPE = HEAD | {"TILE": 64, "WINDOW": 0, "SOFT_CAP": 0.0, "sinks_ptr": None} | kv_scales("bf16")
CAPPED = {"SOFT_CAP": 72.0, "sinks_ptr": BF16}
FLOATS = dict.fromkeys(["q_ptr", "k_ptr", "v_ptr", "out_ptr"], "*fp32") | {"PRECISION": "ieee"}
NOTHING: Given = {}


def decode(capability: int, changes: Given = NOTHING) -> Compiled:
    """Decode attention of an 8B model."""
    given = SHAPE | {"STAGES": 3, "BLOCK_B": 64, "CODES_PATH": "plain", "PRECISION": "tf32"}
    given |= dict.fromkeys(SHARED) | {"HAS_SHARED": False, "MEMBERS": 16, "PDL": False} | changes
    given |= {"BLOCK_D": given["HEAD_DIM"]}
    return compile_kernel(decode_attention_kernel, capability, given)


BY_INSTRUCTION = {"CODES_PATH": "instruction", "STAGES": 4}


def prefill(capability: int, changes: Given = NOTHING) -> Compiled:
    """Prefill attention of an 8B model."""
    given = SHAPE | {"ROWS": 64, "STAGES": 2, "FIELDS": 8, "PRECISION": "tf32"} | changes
    return compile_kernel(prefill_attention_kernel, capability, given)


def prefill_float32(capability: int) -> Compiled:
    """Prefill attention in float32 with heads of 256 dimensions, where that needs a small tile."""
    caches = torch.empty(1, 16, 8, 256, device="meta")
    config = fitting_prefill(prefill_config(caches, 2), caches, caches, 2, capacity_of(capability))
    options = {"GROUP": 2, "HEAD_DIM": 256, "ROWS": config.rows, "TILE": config.tile}
    return prefill(capability, FLOATS | options)


def shared(capability: int) -> Compiled:
    """Attention over shared prefixes with heads of 256 dimensions, eight for each key head."""
    query = torch.empty(16, 64, 256, dtype=torch.bfloat16, device="meta")
    tile = shared_tile(query, query.view(1, 16, 64, 256)[:, :, :8], capacity_of(capability))
    given = SHAPE | {"GROUP": 8, "HEAD_DIM": 256, "BLOCK_D": 256, "MEMBERS": 16, "TILE": tile}
    given |= {"STAGES": SHARED_STAGES, "PRECISION": "tf32"}
    kernel = shared_attention_kernel
    return compile_kernel(kernel, capability, known(kernel, given), num_warps=8)


def known(kernel: Any, given: Given) -> Given:
    """Those that a kernel has."""
    return {name: value for name, value in given.items() if name in kernel.arg_names}


def capacity_of(capability: int) -> int:
    """Bytes of shared memory that a program may have."""
    return {80: 163, 89: 99}.get(capability, 227) * 1024


def pieces(capability: int) -> Compiled:
    """Batch-invariant attention of an 8B model."""
    given = SHAPE | {"ROWS": 64, "STAGES": 2, "FIELDS": 8, "PRECISION": "tf32", "SPLIT": 256}
    given |= {"PDL": capability >= 90}
    return compile_kernel(invariant_attention_kernel, capability, given, launch_pdl=given["PDL"])


def hopper_pieces(capability: int, window: int = 0) -> Compiled:
    """Batch-invariant attention for Hopper; with a window, heads have 64 dimensions."""
    head_dim = 64 if window else 128
    given = HEAD | boxes_of("bf16", head_dim) | {"HEAD_DIM": head_dim, "WINDOW": window}
    given |= {"TILE": 64, "SPLIT": 256, "SLOTS": 384 // head_dim, "FIELDS": 8}
    return compile_kernel(
        hopper_split_attention_kernel, capability, given, launch_pdl=True, maxnreg=128
    )


def tile_gemm(capability: int, *, codes: str | None = None, converts: bool = False) -> Compiled:
    """The batch-invariant product of many rows. converts: codes to x's type."""
    rounds = codes is not None and not converts
    given: Given = {"BLOCK_M": 128, "BLOCK_N": 256, "IN_LINE": 8, "STAGES": 3, "PRECISION": "tf32"}
    given |= {"x_ptr": f"*{codes}" if rounds else BF16, "w_ptr": f"*{codes}" if codes else BF16}
    given |= {"BLOCK_K": 128 if rounds else 64, "EVEN_K": True, "HAS_BIAS": True}
    given |= {"X_SCALED": rounds, "W_SCALED": codes is not None}
    return compile_kernel(tile_gemm_kernel, capability, given, num_warps=8)


def dequantize_kv(capability: int, kind: str) -> Compiled:
    """The conversion of keys and values in 8 bits to 16 bits before attention."""
    given: Given = {"NUM_HEADS": 8, "HEADS": 8, "HEAD_DIM": 128, "BLOCK_SIZE": 16}
    given |= {"CHUNK": 16, "BLOCK_B": 256, "PDL": capability >= 90}
    given |= dict.fromkeys(["k_ptr", "v_ptr"], f"*{kind}") | kv_scales(kind)
    return compile_kernel(dequantize_kv_kernel, capability, given, num_warps=8)


def dequantization_plan(capability: int) -> Compiled:
    """Which prompts' keys are dequantized."""
    given = {"QUERY_TILE": 32, "TILE": 128, "WINDOW": 4096, "CHUNK": 16, "BLOCK_B": 256}
    return compile_kernel(dequantization_plan_kernel, capability, given)


def boxes_of(kind: str, head_dim: int, rows: int = 16) -> Given:
    """Types of a cache's boxes of some slots, of keys and of values."""
    swizzle = min(128, head_dim * (1 if kind in BYTES else 2))
    return dict.fromkeys(["k_desc", "v_desc"], box(kind, f"{rows}, {head_dim}", swizzle=swizzle))


def hopper(
    capability: int, kind: str = "bf16", head_dim: int = 64, tile: int = 64, *,
    split: bool = True, contiguous: bool = False,
) -> Compiled:  # fmt: skip
    """Prefill attention for Hopper, in its smallest form: the larger take three times as long.

    contiguous: over contiguous keys that the previous kernel leaves.
    """
    given = boxes_of(kind, head_dim, tile if contiguous else 16) | kv_scales(kind)
    given |= {"NUM_HEADS": 8, "GROUP": 4, "HEAD_DIM": head_dim, "PDL": contiguous}
    given |= {"BLOCK_SIZE": 0 if contiguous else 16, "FIELDS": 8, "TILE": tile, "WINDOW": 0}
    given |= {"SLOTS": 4 if split else 256 // head_dim, "SPLIT": split}
    return compile_kernel(hopper_prefill_kernel, capability, given, launch_pdl=contiguous)


def hopper_decode(
    capability: int, kind: str = "fp8e4nv", tile: int = 64, registers: int = 80
) -> Compiled:
    """Decode attention for Hopper of an 8B model with prefixes that several share.

    With as many registers of a thread as `decode_registers` gives it, or fewer.
    """
    given = HEAD | boxes_of(kind, 128) | kv_scales(kind) | {"WINDOW": 0, "TILE": tile, "SLOTS": 2}
    given |= {"PDL": True, "HAS_SHARED": True, "MEMBERS": 16}
    return compile_kernel(
        hopper_decode_kernel, capability, given, launch_pdl=True, maxnreg=registers
    )


def rope_write_kv(capability: int, cache: str = BF16) -> Compiled:
    """RopeWriteKV and writing with norms and partial RoPE."""
    pdl = capability >= 90
    given: Given = {"HEADS": 32, "KV_HEADS": 8, "HEAD_DIM": 128, "HALF": 48, "HAS_NORMS": True}
    given |= dict.fromkeys(["k_cache_ptr", "v_cache_ptr"], cache) | kv_scales(cache)
    given |= {"PDL": pdl, "BLOCK_SIZE": 16}
    return compile_kernel(rope_write_kv_kernel, capability, given, num_warps=8, launch_pdl=pdl)


def norm_fp8(capability: int) -> Compiled:
    """The residual's addition, norm and rounding of an 8B model's rows."""
    given: Given = {"out_ptr": "*fp8e4nv", "HAS_RESIDUAL": True, "HAS_SCALE": True, "BLOCK": 4096}
    return compile_kernel(
        norm_kernel, capability, given | {"PDL": True}, num_warps=8, launch_pdl=True
    )


def silu_rounded(capability: int, codes: str = "fp8e4nv") -> Compiled:
    """SiLU and rounding of rows of 28,672, as a 70B model has them."""
    given = {"codes_ptr": f"*{codes}", "BLOCK": 1024, "STRETCHES": 28, "PDL": True}
    return compile_kernel(silu_rounded_kernel, capability, given, num_warps=8, launch_pdl=True)


def sampling(kernel: Any, changes: dict[str, int], num_warps: int, capability: int) -> Compiled:
    """One of the launches that draw tokens from float32 logits."""
    given = known(kernel, {"PIECE": 1024, "BINS": 1024, "PDL": True} | changes)
    return compile_kernel(kernel, capability, given, num_warps=num_warps, enable_fp_fusion=False)


KERNELS = {
    "peaks": partial(sampling, peaks_kernel, {"MOST_PIECES": 128}, 4),
    "weigh": partial(sampling, weigh_kernel, {"MOST_PIECES": 128, "RANKED": 256}, 4),
    "candidates": partial(sampling, candidates_kernel, {"RANKED": 256}, 8),
    "open_bin": partial(sampling, open_bin_kernel, {"LISTED": 2048}, 8),
    "norm_fp8": norm_fp8,
    "silu_fp8": silu_rounded,
    "silu_int8": partial(silu_rounded, codes="i8"),
    "rope_write_kv": rope_write_kv,
    "rope_write_kv_fp8": partial(rope_write_kv, cache="*fp8e4nv"),
    "decode_fp8": partial(decode, changes=FP8_CACHE | BY_INSTRUCTION),
    "decode_int8": partial(decode, changes=INT8_CACHE | BY_INSTRUCTION),
    "prefill_int8": partial(prefill, changes=INT8_CACHE),
    "rope_int8": partial(rope_write_kv, cache="*i8"),
    "decode_capped": partial(decode, changes=CAPPED),
    "prefill_capped": partial(prefill, changes=CAPPED),
    "prefill_fp8": partial(prefill, changes=FP8_CACHE),
    "skinny": skinny,
    "skinny_fp8": skinny_fp8,
    "ring": ring,
    "ring_shared": partial(ring, block_m=64),
    "ring_int4_shared": partial(ring_int4, rows=32, parts=1, group=64, stages=3),
    "ring_rope_shared": partial(ring, block_m=64, heads=True),
    "ring_fp8": partial(ring, kind="fp8e4nv"),
    "ring_int8": partial(ring, kind="i8"),
    "skinny_int8": partial(skinny, weight_format="codes", codes="i8"),
    "skinny_words": partial(skinny, weight_format="words"),
    "skinny_words_nf4": partial(skinny, weight_format="words", table="*fp32"),
    "skinny_words_nvfp4": partial(skinny, weight_format="words", group=16),
    "skinny_words_1": partial(skinny, weight_format="words", one_row=True),
    "rows": rows,
    "rows_thirds": partial(rows, config=RingConfig(128, 3, 3, warps=8)),
    "rows_shared": partial(rows, most=256, config=None),
    "rows_shared_some": partial(rows, config=None),
    "rows_shared_few": partial(rows, most=64, config=None),
    "rows_whole": partial(rows, most=256, config=RingConfig(64, 5)),
    "rows_int8": partial(rows, kind="i8"),
    "rows_int8_most": partial(rows, kind="i8", most=256),
    "rows_in_order": rows_in_order,
    "many": many,
    "many_fp8": partial(many, kind="fp8e4nv"),
    "many_int8": partial(many, kind="i8"),
    "pieces": pieces,
    "hopper_pieces": hopper_pieces,
    "hopper_pieces_window": partial(hopper_pieces, window=4096),
    "skinny_rope": partial(skinny, heads=True),
    "skinny_words_rope": partial(skinny, weight_format="words", heads=True),
    "ring_int4": ring_int4,
    "ring_int4_zeros": partial(ring_int4, rows=16, parts=1, group=64, zeros=True),
    "ring_int4_few": partial(ring_int4, rows=4, parts=1, group=32, zeros=True),
    "plan_many": partial(plan, most=1024, warps=4),
    "ring_int4_parts": partial(ring_int4, rows=16, group=64),
    "ring_int4_many": partial(ring_int4, rows=128, block_n=128, parts=1),
    "ring_int4_most": partial(ring_int4, rows=64, parts=1, group=64),
    "ring_int4_sums": partial(ring_int4, rows=16, block_n=32),
    "ring_int4_heads_few": partial(
        ring_int4, rows=16, block_n=128, parts=1, group=64, heads=True, registers=128
    ),
    "ring_int4_heads_one": partial(ring_int4, block_n=128, group=64, heads=True, registers=128),
    "ring_int4_halves": partial(ring_int4, rows=8, parts=1, group=64, halves=True),
    "ring_int4_halves_one": partial(
        ring_int4, block_n=32, parts=4, group=32, halves=True, zeros=True
    ),
    "ring_int4_silu_few": partial(ring_int4, rows=16, parts=1, group=64, silu=True, registers=128),
    "ring_int4_silu_zeros": partial(
        ring_int4, rows=8, parts=1, silu=True, zeros=True, registers=128
    ),
    "ring_nf4": partial(ring_int4, group=64, codebook="nf4", stages=3),
    "ring_nf4_rope": partial(
        ring_int4, rows=8, block_n=128, group=64, codebook="nf4", heads=True, warps=8
    ),
    "ring_nf4_rope_16": partial(
        ring_int4, rows=16, block_n=128, parts=1, group=64, codebook="nf4", heads=True, warps=8
    ),
    "ring_nf4_silu": partial(
        ring_int4, rows=16, block_n=128, parts=1, group=64, codebook="nf4", silu=True, warps=4
    ),
    "ring_nf4_16": partial(ring_int4, rows=16, parts=1, group=64, codebook="nf4", stages=3),
    "ring_nf4_32": partial(ring_int4, rows=32, parts=1, group=64, codebook="nf4"),
    "ring_nf4_most": partial(ring_int4, rows=64, parts=1, group=64, codebook="nf4"),
    "ring_mxfp4": partial(ring_int4, group=32, codebook="mxfp4"),
    "ring_mxfp4_any_scale": partial(
        ring_int4, rows=16, parts=1, group=32, codebook="mxfp4", by_bits=False
    ),
    "ring_mxfp4_halves": partial(
        ring_int4, block_n=32, parts=4, group=32, codebook="mxfp4", heads=True, halves=True
    ),
    "ring_int4_two": partial(ring_int4, rows=2, block_n=32, group=64, silu=True, registers=80),
    "ring_mxfp4_many": partial(
        ring_int4, rows=128, block_n=128, parts=1, group=32, codebook="mxfp4"
    ),
    "ring_int4_silu": partial(ring_int4, block_n=32, silu=True, registers=104),
    "ring_int4_wide": partial(
        ring_int4, rows=64, block_n=128, parts=1, group=64, silu=True, registers=128
    ),
    "ring_bytes": partial(ring_int4, codes="s8"),
    "ring_bytes_alone": partial(ring_int4, rows=16, parts=1, codes="s8", group=0),
    "ring_bytes_zeros": partial(ring_int4, rows=16, parts=1, codes="s8", group=64, zeros=True),
    "ring_bytes_few": partial(ring_int4, rows=4, parts=1, codes="s8", group=32, zeros=True),
    "ring_bytes_wide": partial(
        ring_int4, rows=32, block_n=128, parts=1, codes="s8", silu=True, registers=128
    ),
    "ring_bytes_wide_sums": partial(
        ring_int4,
        rows=16,
        block_n=128,
        parts=1,
        group=64,
        codes="s8",
        silu=True,
        registers=128,
    ),
    "ring_bytes_most": partial(ring_int4, rows=64, parts=1, codes="s8"),
    "ring_bytes_many": partial(ring_int4, rows=128, block_n=128, parts=1, codes="s8", zeros=True),
    "ring_bytes_heads": partial(ring_int4, rows=2, block_n=128, parts=1, codes="s8", heads=True),
    "ring_bytes_heads_one": partial(ring_int4, codes="s8", heads=True),
    "ring_blocks": partial(ring_int4, codes="e4m3"),
    "ring_blocks_some": partial(ring_int4, rows=16, block_n=32, codes="e4m3", silu=True),
    "ring_blocks_most": partial(ring_int4, rows=64, parts=1, codes="e4m3"),
    "ring_blocks_many": partial(ring_int4, rows=128, block_n=128, parts=1, codes="e4m3"),
    "ring_fp8_alone": partial(ring_int4, codes="e4m3", group=0),
    "blocks": blocks,
    "blocks_split": partial(blocks, split=4),
    "blocks_few": partial(blocks, block_m=64, split=4),
    "blocks_wide": partial(blocks, block_n=128),
    "blocks_int8": partial(blocks, kind="i8"),
    "blocks_int8_alone": partial(blocks, block_n=128, kind="i8", alone=True),
    "rows_bytes": rows_bytes,
    "rows_bytes_192": partial(rows_bytes, block_m=192, group=32, split=2, zeros=True),
    "rows_bytes_320": partial(rows_bytes, block_m=320, split=4),
    "rows_bytes_384": partial(rows_bytes, block_m=384, codes="e4m3", group=0),
    "rows_bytes_alone": partial(rows_bytes, group=0),
    "rows_fp8_alone": partial(rows_bytes, codes="e4m3", group=0),
    "rows_bytes_zeros": partial(rows_bytes, group=32, split=2, zeros=True),
    "rows_bytes_small": partial(rows_bytes, block_m=128, block_n=64, split=2, zeros=True),
    "rows_bytes_few": partial(rows_bytes, block_m=128, group=64),
    "rows_bytes_fp8": partial(rows_bytes, block_m=128, block_n=64, codes="e4m3", group=64),
    "rows_int4": rows_int4,
    "rows_int4_zeros": partial(rows_int4, group=32, zeros=True),
    "rows_int4_wide": partial(rows_int4, block_m=128, block_n=128, group=32, zeros=True),
    "rows_int4_rest": partial(rows_int4, block_m=192, group=32, zeros=True),
    "rows_int4_parts": partial(rows_int4, block_m=320, group=32, zeros=True),
    "rows_int4_most": partial(rows_int4, block_m=384, split=1),
    "ring_nvfp4": partial(ring_int4, group=16, codebook="nvfp4"),
    "ring_nvfp4_16": partial(ring_int4, rows=16, parts=1, group=16, codebook="nvfp4"),
    "ring_nvfp4_many": partial(
        ring_int4, rows=128, block_n=128, parts=1, group=16, codebook="nvfp4"
    ),
    "rows_nf4": partial(rows_int4, group=64, codebook="nf4"),
    "rows_nvfp4": partial(rows_int4, group=16, codebook="nvfp4"),
    "rows_nvfp4_wide": partial(rows_int4, block_m=192, block_n=128, group=16, codebook="nvfp4"),
    "rows_mxfp4_wide": partial(rows_int4, block_m=192, block_n=128, group=32, codebook="mxfp4"),
    "rows_int4_small": partial(rows_int4, block_m=128),
    "ring_int4_heads": partial(ring_int4, rows=2, block_n=128, parts=1, heads=True),
    "skinny_rope_int8": partial(skinny, heads=True, cache="*i8"),
    "ring_rope_int8": partial(ring, heads=True, cache="*i8"),
    "ring_rope": partial(ring, kind="fp8e4nv", heads=True),
    "decode": decode,
    "plan": plan,
    "plan_whole": partial(plan, whole=True),
    "prefill": prefill,
    "tile_gemm": tile_gemm,
    "tile_gemm_fp8": partial(tile_gemm, codes="fp8e4nv"),
    "tile_gemm_int8": partial(tile_gemm, codes="i8"),
    "tile_gemm_bytes": partial(tile_gemm, codes="u8", converts=True),
    "decode_float32_fp8": partial(decode, changes=FLOATS | FP8_CACHE | {"HEAD_DIM": 64}),
    "prefill_float32": prefill_float32,
    "shared": shared,
    "hopper": hopper,
    "hopper_halves": partial(hopper, split=False),
    "hopper_fp8": partial(hopper, kind="fp8e4nv"),
    "hopper_int8": partial(hopper, kind="i8"),
    "hopper_int8_halves": partial(hopper, kind="i8", head_dim=128, tile=128, split=False),
    "hopper_bf16_halves": partial(hopper, kind="bf16", head_dim=128, tile=128, split=False),
    "hopper_dequantized": partial(hopper, contiguous=True),
    "hopper_dequantized_halves": partial(
        hopper, head_dim=128, tile=128, split=False, contiguous=True
    ),
    "dequantize_kv_fp8": partial(dequantize_kv, kind="fp8e4nv"),
    "dequantize_kv_int8": partial(dequantize_kv, kind="i8"),
    "dequantization_plan": dequantization_plan,
    "hopper_int8_split": partial(hopper, kind="i8", head_dim=128, split=True),
    "hopper_decode": hopper_decode,
    "hopper_decode_int8": partial(hopper_decode, kind="i8"),
    "hopper_decode_int8_few": partial(hopper_decode, kind="i8", tile=128, registers=136),
    "hopper_decode_bf16": partial(hopper_decode, kind="bf16"),
    # with fewer dimensions than tl.dot takes
    "small": partial(prefill, changes=FLOATS | {"GROUP": 2, "HEAD_DIM": 8}),
}


def taken(kernel: str, capability: str) -> dict[str, Any]:
    """Resources that one kernel uses, or its compile error, which does not affect other kernels."""
    try:
        return dataclasses.asdict(KERNELS[kernel](int(capability)))
    except Exception:
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    print(json.dumps({wanted: taken(*wanted.split(":")) for wanted in sys.argv[1:]}))
