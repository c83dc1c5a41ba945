"""Compiles each kernel for GPUs that need not be here; run by test_triton_compile.py.

Given as kernel:capability; prints one line of JSON: what each takes of a multiprocessor, or why it
does not compile. All in one process, since importing Triton takes longer than compiling a kernel.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import traceback
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

BF16, INTS = "*bf16", "*i32"


def plan(capability: int, *, whole: bool = False, most: int = 256, warps: int = 1) -> Compiled:
    """The plan of attention: where each program begins."""
    names = ["query_start_ptr", "seq_lens_ptr", "decode_tiles_ptr", "query_tiles_ptr", "runs_ptr"]
    numbers = dict.fromkeys(["num_requests", "num_programs"], "i32")
    constants = {"KEY_TILE": 64, "QUERY_TILE": 16, "WINDOW": 0, "NUM_KV_HEADS": 1 if whole else 8}
    constants |= {"DECODES": True}
    constants |= {"BLOCK_B": most, "BLOCK_P": 4, "MEMBERS": 16, "PDL": True, "WHOLE": whole}
    names += ["shared_index_ptr", "lens_ptr"]
    types = dict.fromkeys(names, INTS) | numbers
    return compile_kernel(plan_kernel, types, constants, capability, num_warps=warps)


def skinny(
    capability: int,
    weight_format: str = "plain",
    *,
    codes: str = "fp8e4nv",
    heads: bool = False,
    cache: str = BF16,
) -> Compiled:
    """The product before a norm, as an 8B model's layers have it."""
    itemsize = 2 if weight_format == "plain" else 1
    pointers = dict.fromkeys(["x_ptr", "w_ptr", "out_ptr", "residual_ptr", "norm_ptr"], BF16)
    pointers |= {"normalized_ptr": BF16, "squares_out_ptr": "*fp32", "partial_ptr": "*fp32"}
    sizes = dict.fromkeys(
        ["M", "N", "K", "num_squares", "stride_x", "stride_w", "stride_out"], "i32"
    )
    constants: dict[str, Any] = {
        "w_desc": None, "w_scale_ptr": None, "bias_ptr": None, "squares_ptr": None,
        "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 256 // itemsize, "STAGES": 4, "SPLIT": 0,
        "MAX_PARTS": 4, "EVEN_N": False, "EVEN_K": True,
        "HAS_BIAS": False, "HAS_RESIDUAL": True, "HAS_NORM": True, "HAS_SQUARES": False,
        "SILU": False, "PRECISION": "tf32", "TMA": False, "PDL": False,
        "WEIGHT_FORMAT": weight_format,
    }  # fmt: skip
    kind = {"plain": "bf16", "codes": codes, "bytes": "u8"}[weight_format]
    if weight_format != "plain":
        pointers |= {"w_ptr": f"*{kind}", "w_scale_ptr": "*fp32"}
        del constants["w_scale_ptr"]
    pdl = capability >= 90
    if capability == 90:
        constants |= {"TMA": True}
        pointers |= {"w_desc": f"tensordesc<{kind}[64,{constants['BLOCK_K']}]>"}
        del constants["w_desc"]
    types, constants = with_rope(
        {**pointers, "counter_ptr": INTS, "eps": "fp32", **sizes},
        constants | {"PDL": pdl},
        heads,
        cache,
    )
    return compile_kernel(
        skinny_gemm_kernel,
        types,
        constants,
        capability,
        num_warps=4,
        launch_pdl=pdl,
    )


WITH_ROPE = {
    **dict.fromkeys(["cos_ptr", "sin_ptr", "query_norm_ptr", "key_norm_ptr"], BF16),
    **dict.fromkeys(["k_cache_ptr", "v_cache_ptr"], BF16),
    **dict.fromkeys(["stride_angles", "stride_block", "stride_slot", "stride_kv_head"], "i32"),
    **dict.fromkeys(["k_scale_ptr", "v_scale_ptr"], BF16),
    "slots_ptr": "*i64",
    "head_eps": "fp32",
}
WITHOUT_ROPE = dict.fromkeys(WITH_ROPE, 0) | dict.fromkeys(
    n for n in WITH_ROPE if n.endswith("_ptr")
)
WITHOUT_ROPE |= dict.fromkeys(["HEAD_DIM", "KV_HEADS", "CACHE_BLOCK"], 0)
HEADS = {"HEAD_DIM": 64, "KV_HEADS": 8, "CACHE_BLOCK": 16}
ALONE = {"HAS_RESIDUAL": False, "HAS_NORM": False, "HAS_SQUARES": True} | dict.fromkeys(
    ["residual_ptr", "norm_ptr", "normalized_ptr", "squares_out_ptr"]
)


def with_rope(
    types: dict[str, str], constants: dict[str, Any], wanted: bool, cache: str = BF16
) -> tuple[Any, Any]:
    """A GEMM's arguments with RoPE and KV writes fused into it, or unchanged."""
    if not wanted:
        return types, constants | WITHOUT_ROPE
    types = types | WITH_ROPE | {"squares_ptr": "*fp32"}
    if cache == BF16:
        scales = dict.fromkeys(["k_scale_ptr", "v_scale_ptr"])
        constants = constants | scales
        types = {name: kind for name, kind in types.items() if name not in scales}
    types |= dict.fromkeys(["k_cache_ptr", "v_cache_ptr"], cache)
    constants = {name: value for name, value in constants.items() if name != "squares_ptr"}
    return {name: kind for name, kind in types.items() if name not in ALONE}, (
        constants | ALONE | HEADS
    )


def skinny_fp8(capability: int) -> Compiled:
    """`skinny` with weights in FP8."""
    return skinny(capability, "codes" if capability >= 89 else "bytes")


def ring(
    capability: int, kind: str = "bf16", *, heads: bool = False, cache: str = BF16,
    block_m: int = 16,
) -> Compiled:  # fmt: skip
    """The product before a norm with W in a ring; x is rounded, or else it comes in W's type."""
    pointers = dict.fromkeys(
        ["x_ptr", "out_ptr", "residual_ptr", "norm_ptr", "normalized_ptr"], BF16
    )
    pointers |= dict.fromkeys(["squares_out_ptr", "squares_ptr", "partial_ptr"], "*fp32")
    sizes = dict.fromkeys(["M", "N", "K", "num_squares", "stride_x", "stride_out"], "i32")
    itemsize = 2 if kind == "bf16" else 1
    layout = tile_layout(itemsize)
    types = {
        **pointers, **sizes, "counter_ptr": INTS, "eps": "fp32",
        "w_desc": f"tensordesc<{kind}[64, {128 // itemsize}],{layout!r}>",
        "x_desc": f"tensordesc<{kind}[{block_m}, {128 // itemsize}],{layout!r}>",
    }  # fmt: skip
    constants: dict[str, Any] = {
        "bias_ptr": None, "BLOCK_M": block_m, "BLOCK_N": 64, "STAGES": 4, "TILES": 2, "CHUNK": 2,
        "SPLIT": 4, "SHARES": shares_of(4, block_m, 1, 132, tokens=8), "HAS_BIAS": False,
        "HAS_RESIDUAL": True, "HAS_NORM": True, "HAS_SQUARES": True, "SILU": False, "PDL": True,
        "group_scale_ptr": None, "zero_ptr": None, "GROUP": 0, "SCALED": False, "GROUP_ROWS": 0,
        "CODEBOOK": None, "SCALES_FIRST": False,
    }  # fmt: skip
    if itemsize == 1:
        types |= {"w_scale_ptr": "*fp32"}
        del types["x_desc"]
    absent = {"w_scale_ptr", "x_desc"} - set(types)
    types, constants = with_rope(types, constants | dict.fromkeys(absent), heads, cache)
    return compile_kernel(
        hopper_gemm_kernel, types, constants, capability, num_warps=4, launch_pdl=True
    )


def _codebook(name: str, *, by_bits: bool) -> str:
    """As `ring_codebook` has it."""
    return "e2m1" if name == "mxfp4" and by_bits else byte_tables(name, torch.bfloat16)


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
    pointers = ["x_ptr", "out_ptr", "residual_ptr", "norm_ptr", "normalized_ptr"]
    floats = ["squares_out_ptr", "squares_ptr", "partial_ptr"]
    sizes = ["M", "N", "K", "num_squares", "stride_x", "stride_out"]
    words, columns = gl.NVMMASharedLayout(128, 32, 3), gl.NVMMASharedLayout(128, 16, 4)
    w_box = f"{parts},{block_n},32"
    if codes is not None:
        words, w_box = gl.NVMMASharedLayout(128, 32, 4), f"2,{w_box}"
    if halves:
        words, w_box = gl.NVMMASharedLayout(128, 32, 5), f"1,{parts},2,{block_n // 2},32"
    if codes is not None:
        scaled = group == 0 or scales_codes(rows, group)
    else:
        scaled = codebook != "nf4" or not has_table(rows)
    types = {
        **dict.fromkeys(pointers, BF16), **dict.fromkeys(floats, "*fp32"),
        **dict.fromkeys(sizes, "i32"), "counter_ptr": INTS, "eps": "fp32",
        "group_scale_ptr": "*u8" if codebook == "mxfp4" else "*fp16",
        "zero_ptr": "*u8" if codes is None else "*i8",
        "w_desc": f"tensordesc<i32[{w_box}],{words!r}>", "w_scale_ptr": "*fp32",
        "x_desc": f"tensordesc<bf16[4,{parts},{rows},64],{columns!r}>",
    }  # fmt: skip
    constants: dict[str, Any] = {
        "bias_ptr": None, "BLOCK_M": rows, "BLOCK_N": block_n,
        "STAGES": stages, "TILES": parts, "CHUNK": 0, "HAS_BIAS": False,
        "SPLIT": 4, "SHARES": shares_of(4, rows, 1, 132, tokens=8),
        "HAS_RESIDUAL": True, "HAS_NORM": True, "HAS_SQUARES": True, "SILU": False, "PDL": True,
        "GROUP": group or 256, "SCALED": scaled,
        "GROUP_ROWS": 16,
        "CODEBOOK": codes if codebook is None else _codebook(codebook, by_bits=by_bits),
        "SCALES_FIRST": rows == 1 and codes is None and codebook is None,
    }  # fmt: skip
    absent = [] if zeros else ["zero_ptr"]
    absent += ["w_scale_ptr"] if codes is None else []
    absent += [] if group else ["group_scale_ptr"]
    if silu:
        absent += ["residual_ptr", "norm_ptr", "normalized_ptr", "squares_out_ptr"]
        constants |= {
            "HAS_RESIDUAL": False,
            "HAS_NORM": False,
            "SILU": True,
            "SPLIT": 1,
            "SHARES": 1,
        }
    types = {name: kind for name, kind in types.items() if name not in absent}
    constants |= dict.fromkeys(absent)
    types, constants = with_rope(types, constants, heads or halves)
    if halves:
        norms = dict.fromkeys(["query_norm_ptr", "key_norm_ptr"])
        constants |= {"HEAD_DIM": 128, **norms}
        types = {name: kind for name, kind in types.items() if name not in norms}
    warps = warps or (8 if block_n == 128 and not 1 < rows <= 8 else 4)  # as `int4_config` has them
    return compile_kernel(
        hopper_gemm_kernel,
        types,
        constants,
        capability,
        num_warps=warps,
        launch_pdl=True,
        maxnreg=registers,
    )


def rows_int4(
    capability: int, block_m: int = 256, block_n: int = 64, group: int = 128,
    *, zeros: bool = False, codebook: str | None = None, split: int = 4,
) -> Compiled:  # fmt: skip
    """The result of more than 64 rows in FP8 with weights in four bits."""
    config = next(each for each in int4_rows_configs(block_m, 4096, 4096)
                  if (each.block_m, each.block_n) == (block_m, block_n))  # fmt: skip
    words, groups = gl.NVMMASharedLayout(128, 32, 3), f"{256 // group},{block_n}"
    columns, rest = tile_layout(1), config.rest
    shares = shares_of(split, block_m, 1, 132)
    chunk = min(64, (rest or block_m) // shares)
    scale, scale_bits = ("u8", 8) if codebook == "mxfp4" else ("fp16", 16)
    types = {
        "x_desc": f"tensordesc<fp8e4nv[{block_m - rest},128],{columns!r}>",
        "rest_desc": f"tensordesc<fp8e4nv[{rest},128],{columns!r}>",
        "w_desc": f"tensordesc<i32[1,{block_n},32],{words!r}>",
        "scale_desc": f"tensordesc<{scale}[{groups}],{gl.NVMMASharedLayout(0, scale_bits, 2)!r}>",
        "zero_desc": f"tensordesc<u8[{groups}],{gl.NVMMASharedLayout(0, 8, 2)!r}>",
        "out_desc": f"tensordesc<bf16[{chunk},{block_n}],{tile_layout(2)!r}>",
        "bias_ptr": BF16, "arrival_ptr": INTS, **dict.fromkeys(["M", "N", "K"], "i32"),
        **dict.fromkeys(["x_scale_ptr", "row_scale_ptr", "partial_ptr"], "*fp32"),
    }  # fmt: skip
    constants: dict[str, Any] = {
        "STAGES": config.stages, "SPLIT": split, "SHARES": shares,
        "CODEBOOK": codebook and byte_tables(codebook, torch.float16),
    }  # fmt: skip
    for name in ([] if zeros else ["zero_desc"]) + ([] if rest else ["rest_desc"]):
        constants[name] = None
        del types[name]
    compiled = compile_kernel(
        hopper_int4_rows_kernel,
        types,
        constants,
        capability,
        num_warps=config.warps,
        launch_pdl=True,
    )
    assert compiled.shared_memory <= config.shared_memory
    return compiled


def blocks(
    capability: int, block_m: int = 128, block_n: int = 64, split: int = 1, kind: str = "fp8e4nv",
    *, alone: bool = False,
) -> Compiled:  # fmt: skip
    """The result of many rows in eight bits with scales of blocks; of W alone for each output."""
    config, shares = BlockConfig(block_m, block_n, 3, split), shares_of(split, block_m, 1, 132)
    codes = f"tensordesc<{kind}[{{}}, 128],{tile_layout(1)!r}>"
    types = {
        "x_desc": codes.format(block_m), "w_desc": codes.format(block_n),
        "out_desc": f"tensordesc<bf16[{block_m // shares}, {block_n}],{tile_layout(2)!r}>",
        "x_scale_ptr": BF16, "group_scale_ptr": "*fp16", "bias_ptr": BF16,
        **dict.fromkeys(["row_scale_ptr", "partial_ptr"], "*fp32"), "arrival_ptr": INTS,
        **dict.fromkeys(["M", "N", "K"], "i32"),
    }  # fmt: skip
    constants: dict[str, Any] = {"STAGES": 3, "TABLE": config.table(4096)}
    constants |= {"SPLIT": split, "SHARES": shares}
    if alone:
        del types["group_scale_ptr"]
        constants["group_scale_ptr"] = None
    return compile_kernel(
        hopper_block_gemm_kernel,
        types,
        constants,
        capability,
        num_warps=config.warps,
        launch_pdl=True,
        maxnreg=config.registers,
    )


def rows_bytes(
    capability: int, block_m: int = 256, block_n: int = 128, group: int = 128, split: int = 1,
    codes: str = "s8", *, zeros: bool = False,
) -> Compiled:  # fmt: skip
    """The result of more than 64 rows in bfloat16 with weights of a byte each."""
    config = next(each for each in byte_rows_configs(block_m, 4096, 4096)
                  if (each.block_m, each.block_n) == (block_m, block_n))  # fmt: skip
    rest, main = config.rest, block_m - config.rest
    shares = shares_of(split, block_m, 1, 132)
    words, columns = gl.NVMMASharedLayout(128, 32, 3), gl.NVMMASharedLayout(128, 16, 3)
    groups = f"{128 // (group or 128)},{block_n}"
    types = {
        "x_desc": f"tensordesc<bf16[{config.columns // 64},{main},64],{columns!r}>",
        "rest_desc": f"tensordesc<bf16[{config.columns // 64},{rest},64],{columns!r}>",
        "w_desc": f"tensordesc<i32[1,{block_n},32],{words!r}>",
        "scale_desc": f"tensordesc<fp16[{groups}],{gl.NVMMASharedLayout(0, 16, 2)!r}>",
        "zero_desc": f"tensordesc<i8[{groups}],{gl.NVMMASharedLayout(0, 8, 2)!r}>",
        "out_desc": f"tensordesc<bf16[{main // shares}, {block_n}],{tile_layout(2)!r}>",
        "rest_out_desc": f"tensordesc<bf16[{rest // shares}, {block_n}],{tile_layout(2)!r}>",
        "bias_ptr": BF16, "arrival_ptr": INTS,
        **dict.fromkeys(["row_scale_ptr", "partial_ptr"], "*fp32"),
        **dict.fromkeys(["M", "N", "K"], "i32"),
    }  # fmt: skip
    constants: dict[str, Any] = {"STAGES": config.stages, "CODES": codes}
    constants |= {"SPLIT": split, "SHARES": shares}
    absent = ([] if zeros else ["zero_desc"]) + ([] if group else ["scale_desc"])
    absent += [] if rest else ["rest_desc", "rest_out_desc"]
    compiled = compile_kernel(
        hopper_byte_rows_kernel,
        {name: kind for name, kind in types.items() if name not in absent},
        constants | dict.fromkeys(absent),
        capability,
        num_warps=config.warps,
        launch_pdl=True,
    )
    assert compiled.shared_memory <= config.shared_memory
    return compiled


TUNED = RingConfig(128, 3, 4, warps=8)


def rows(
    capability: int, kind: str = "fp8e4nv", most: int = 128,
    config: RingConfig | None = TUNED,
) -> Compiled:  # fmt: skip
    """The product of some rows with weights in eight bits; config: None for that of few tiles."""
    config = config or split_k_config(most, 1024, 8192, 132)
    assert config is not None
    shares = shares_of(config.split, most, 1, 132)
    codes = f"tensordesc<{kind}[{{}}, 128],{tile_layout(1)!r}>"
    types = {
        "x_desc": codes.format(most), "w_desc": codes.format(config.block_n), "bias_ptr": BF16,
        "out_desc": f"tensordesc<bf16[{most // shares}, {config.block_n}],{tile_layout(2)!r}>",
        **dict.fromkeys(["x_scale_ptr", "w_scale_ptr", "partial_ptr"], "*fp32"),
        "arrival_ptr": INTS, **dict.fromkeys(["M", "N", "K"], "i32"),
    }  # fmt: skip
    every = COLUMNS // (128 * config.tiles) if kind == "fp8e4nv" and most <= 128 else 0
    constants = {"STAGES": config.stages, "TILES": config.tiles, "SPLIT": config.split}
    constants |= {"SHARES": shares, "EVERY": every}
    return compile_kernel(
        hopper_fp8_gemm_kernel,
        types,
        constants,
        capability,
        num_warps=config.warps,
        launch_pdl=True,
    )


def rows_in_order(capability: int) -> Compiled:
    """The batch-invariant product of 65 to 128 rows."""
    tiles, layout = "tensordesc<bf16[{}, 64],{!r}>", tile_layout(2)
    types = {
        "x_desc": tiles.format(128, layout), "w_desc": tiles.format(64, layout),
        "out_desc": tiles.format(128, layout), "bias_ptr": BF16,
        "partial_ptr": "*fp32", "arrival_ptr": INTS, **dict.fromkeys(["M", "N", "K"], "i32"),
    }  # fmt: skip
    constants: dict[str, Any] = {"x_scale_ptr": None, "w_scale_ptr": None}
    constants |= {"STAGES": 4, "TILES": 1, "SPLIT": 1, "SHARES": 1, "EVERY": 0}
    return compile_kernel(
        hopper_fp8_gemm_kernel, types, constants, capability, num_warps=4, launch_pdl=True
    )


def many(capability: int, kind: str = "bf16") -> Compiled:
    """The batch-invariant product of many rows for Hopper."""
    itemsize = 2 if kind == "bf16" else 1
    columns, layout = 128 // itemsize, tile_layout(itemsize)
    types = {
        "x_desc": f"tensordesc<{kind}[128, {columns}],{layout!r}>",
        "w_desc": f"tensordesc<{kind}[256, {columns}],{layout!r}>",
        "out_desc": f"tensordesc<bf16[64, 128],{tile_layout(2)!r}>",
        "bias_ptr": BF16, **dict.fromkeys(["x_scale_ptr", "w_scale_ptr"], "*fp32"),
        **dict.fromkeys(["M", "N", "K"], "i32"),
    }  # fmt: skip
    constants: dict[str, Any] = {"STAGES": 4, "IN_LINE": 8}
    return compile_kernel(
        hopper_ordered_gemm_kernel, types, constants, capability, num_warps=4, launch_pdl=True
    )


ATTENTION = {
    **dict.fromkeys(["q_ptr", "k_ptr", "v_ptr", "out_ptr"], BF16),
    **dict.fromkeys(["block_table_ptr", "query_start_ptr", "seq_lens_ptr", "tiles_ptr"], INTS),
    **dict.fromkeys(["work_ptr", "num_tiles_ptr"], INTS),
    **dict.fromkeys(["num_requests", "stride_q_token", "stride_q_head", "stride_block"], "i32"),
    **dict.fromkeys(["stride_slot", "stride_kv_head", "stride_table", "stride_out_token"], "i32"),
    "scale": "fp32",
}
NO_CHANGE: dict[str, str] = {}
NO_OPTIONS: dict[str, Any] = {}
SHARED = ["shared_index_ptr", "lens_ptr", "shared_sums_ptr", "shared_stats_ptr", "shared_plan_ptr"]
NOTHING_SHARED = dict.fromkeys(SHARED) | {"HAS_SHARED": False, "MEMBERS": 16}
FP8_CACHE = dict.fromkeys(["k_ptr", "v_ptr"], "*fp8e4nv")
SHAPE: dict[str, Any] = {"GROUP": 4, "HEAD_DIM": 128, "BLOCK_SIZE": 16, "TILE": 64, "WINDOW": 0}
SHAPE |= {"SOFT_CAP": 0.0, "sinks_ptr": None, "k_scale_ptr": None, "v_scale_ptr": None}
SHAPE |= {"NUM_KV_HEADS": 8}
INT8_CACHE = dict.fromkeys(["k_ptr", "v_ptr"], "*i8")
INT8_CACHE |= dict.fromkeys(["k_scale_ptr", "v_scale_ptr"], BF16)
CAPPED: dict[str, Any] = {"SOFT_CAP": 72.0}
SINKS = {"sinks_ptr": BF16}


def decode(
    capability: int,
    changes: dict[str, str] = NO_CHANGE,
    codes_path: str = "plain",
    stages: int = 3,
    options: dict[str, Any] = NO_OPTIONS,
) -> Compiled:
    """Decode attention of an 8B model."""
    constants = SHAPE | options
    return compile_kernel(
        decode_attention_kernel,
        {
            **ATTENTION,
            "partial_ptr": "*fp32",
            **dict.fromkeys(["counter_ptr", "runs_ptr"], INTS),
            **dict.fromkeys(["num_tokens", "plan_is_fresh", "opens_early"], "i32"),
            **changes,
        },
        {
            **{name: value for name, value in constants.items() if name not in changes},
            "STAGES": stages,
            "BLOCK_B": 64,
            "BLOCK_D": constants["HEAD_DIM"],
            "CODES_PATH": codes_path,
        }
        | {"PRECISION": constants.get("PRECISION", "tf32"), "PDL": False}
        | NOTHING_SHARED,
        capability,
        num_warps=4,
    )


def decode_fp8(capability: int) -> Compiled:
    """Decode attention over a cache in FP8."""
    return decode(capability, FP8_CACHE, "instruction", stages=4)


def decode_int8(capability: int) -> Compiled:
    """Decode attention over a cache in INT8."""
    return decode(capability, INT8_CACHE, "instruction", stages=4)


def decode_capped(capability: int) -> Compiled:
    """Decode attention with a soft cap and sinks."""
    return decode(capability, SINKS, options=CAPPED)


def prefill(
    capability: int, changes: dict[str, str] = NO_CHANGE, options: dict[str, Any] = NO_OPTIONS
) -> Compiled:
    """Prefill attention of an 8B model."""
    constants = {**SHAPE, "ROWS": 64, "STAGES": 2, "FIELDS": 8, "PRECISION": "tf32"} | options
    constants = {name: value for name, value in constants.items() if name not in changes}
    types = ATTENTION | changes
    return compile_kernel(prefill_attention_kernel, types, constants, capability, num_warps=4)


def decode_float32_fp8(capability: int) -> Compiled:
    """Decode attention of float32 queries over a cache in FP8."""
    types = FP8_CACHE | dict.fromkeys(["q_ptr", "out_ptr"], "*fp32")
    return decode(capability, types, options={"HEAD_DIM": 64, "PRECISION": "ieee"})


def prefill_float32(capability: int) -> Compiled:
    """Prefill attention in float32 with heads of 256 dimensions, where that needs a small tile."""
    caches = torch.empty(1, 16, 8, 256, device="meta")
    config = fitting_prefill(prefill_config(caches, 2), caches, caches, 2, capacity_of(capability))
    types = dict.fromkeys(["q_ptr", "k_ptr", "v_ptr", "out_ptr"], "*fp32")
    options = {"GROUP": 2, "HEAD_DIM": 256, "ROWS": config.rows, "TILE": config.tile}
    return prefill(capability, types, options | {"PRECISION": "ieee"})


def shared(capability: int) -> Compiled:
    """Attention over shared prefixes with heads of 256 dimensions, eight for each key head."""
    query = torch.empty(16, 64, 256, dtype=torch.bfloat16, device="meta")
    names = ["rows_ptr", "lens_ptr", "plan_ptr"]
    types = ATTENTION | dict.fromkeys(names, INTS)
    types |= dict.fromkeys(["sums_ptr", "stats_ptr"], "*fp32")
    constants = SHAPE | {"GROUP": 8, "HEAD_DIM": 256, "BLOCK_D": 256, "MEMBERS": 16}
    tile = shared_tile(query, query.view(1, 16, 64, 256)[:, :, :8], capacity_of(capability))
    constants |= {"TILE": tile, "STAGES": SHARED_STAGES, "PRECISION": "tf32"}
    known = shared_attention_kernel.arg_names
    return compile_kernel(
        shared_attention_kernel,
        {name: kind for name, kind in types.items() if name in known},
        {name: value for name, value in constants.items() if name in known},
        capability,
        num_warps=8,
    )


def capacity_of(capability: int) -> int:
    """Bytes of shared memory that a program may have."""
    return {80: 163, 89: 99}.get(capability, 227) * 1024


def pieces(capability: int) -> Compiled:
    """Batch-invariant attention of an 8B model."""
    names = invariant_attention_kernel.arg_names
    types = ATTENTION | {"part_ptr": "*fp32", "counter_ptr": INTS}
    types |= dict.fromkeys(["num_tokens", "most_splits"], "i32")
    types = {name: kind for name, kind in types.items() if name in names}
    constants = {**SHAPE, "ROWS": 64, "STAGES": 2, "FIELDS": 8, "PRECISION": "tf32"}
    constants |= {"SPLIT": 256, "PDL": capability >= 90}
    return compile_kernel(
        invariant_attention_kernel,
        types,
        constants,
        capability,
        num_warps=4,
        launch_pdl=capability >= 90,
    )


def hopper_pieces(capability: int, window: int = 0) -> Compiled:
    """Batch-invariant attention for Hopper; with a window, heads have 64 dimensions."""
    head_dim = 64 if window else 128
    names = hopper_split_attention_kernel.arg_names
    types = ATTENTION | boxes_of("bf16", head_dim) | {"part_ptr": "*fp32", "counter_ptr": INTS}
    types |= dict.fromkeys(["num_tokens", "most_splits"], "i32")
    types = {name: kind for name, kind in types.items() if name in names}
    shape = {"NUM_KV_HEADS": 8, "GROUP": 4, "HEAD_DIM": head_dim, "BLOCK_SIZE": 16}
    cut = {"TILE": 64, "SPLIT": 256, "SLOTS": 384 // head_dim, "FIELDS": 8, "WINDOW": window}
    return compile_kernel(
        hopper_split_attention_kernel,
        types,
        shape | cut,
        capability,
        num_warps=4,
        launch_pdl=True,
        maxnreg=128,
    )


def tile_gemm(capability: int, *, codes: str | None = None, converts: bool = False) -> Compiled:
    """The batch-invariant product of many rows. converts: codes to x's type."""
    constants = {"BLOCK_M": 128, "BLOCK_N": 256, "IN_LINE": 8, "STAGES": 3, "PRECISION": "tf32"}
    types = dict.fromkeys(["x_ptr", "w_ptr", "bias_ptr", "out_ptr"], BF16)
    types |= dict.fromkeys(["M", "N", "K", "stride_x", "stride_w", "stride_out"], "i32")
    types |= {"x_scale_ptr": "*fp32", "w_scale_ptr": "*fp32"}
    rounds = codes is not None and not converts
    if codes is not None:
        types |= {"x_ptr": f"*{codes}"} if rounds else {}
        types |= {"w_ptr": f"*{codes}"}
    constants |= {"BLOCK_K": 128 if rounds else 64, "EVEN_K": True, "HAS_BIAS": True}
    constants |= {"X_SCALED": rounds, "W_SCALED": codes is not None}
    return compile_kernel(tile_gemm_kernel, types, constants, capability, num_warps=8)


def prefill_fp8(capability: int) -> Compiled:
    """Prefill attention over a cache in FP8."""
    return prefill(capability, FP8_CACHE)


def prefill_capped(capability: int) -> Compiled:
    """Prefill attention with a soft cap and sinks."""
    return prefill(capability, SINKS, CAPPED)


def dequantize_kv(capability: int, kind: str) -> Compiled:
    """The conversion of keys and values in 8 bits to 16 bits before attention."""
    names = ["seq_lens_ptr", "chunks_ptr", "first_keys_ptr", "rows_ptr", "block_table_ptr"]
    types = dict.fromkeys(names, INTS) | dict.fromkeys(["num_requests", "stride_table"], "i32")
    types |= {"k_ptr": f"*{kind}", "v_ptr": f"*{kind}", "k_out_ptr": BF16, "v_out_ptr": BF16}
    constants: dict[str, Any] = {"NUM_HEADS": 8, "HEADS": 8, "HEAD_DIM": 128, "BLOCK_SIZE": 16}
    constants |= {"CHUNK": 16, "BLOCK_B": 256, "PDL": capability >= 90}
    pair = dict.fromkeys(["k_scale_ptr", "v_scale_ptr"], BF16 if kind == "i8" else None)
    (types if kind == "i8" else constants).update(pair)
    return compile_kernel(dequantize_kv_kernel, types, constants, capability, num_warps=8)


def dequantization_plan(capability: int) -> Compiled:
    """Which prompts' keys are dequantized."""
    types = {name: INTS for name in dequantization_plan_kernel.arg_names if name.endswith("_ptr")}
    types |= dict.fromkeys(["num_requests", "least_queries", "most_keys"], "i32")
    constants = {"QUERY_TILE": 32, "TILE": 128, "WINDOW": 4096, "CHUNK": 16, "BLOCK_B": 256}
    return compile_kernel(dequantization_plan_kernel, types, constants, capability, num_warps=4)


def boxes_of(kind: str, head_dim: int, rows: int = 16) -> dict[str, str]:
    """Types of a cache's boxes of some slots, of keys and of values."""
    bits = 8 if kind in ("fp8e4nv", "i8") else 16
    layout = gl.NVMMASharedLayout(min(128, head_dim * bits // 8), bits, 2)
    return dict.fromkeys(["k_desc", "v_desc"], f"tensordesc<{kind}[{rows}, {head_dim}],{layout!r}>")


def hopper(
    capability: int, kind: str = "bf16", head_dim: int = 64, tile: int = 64, *,
    split: bool = True, contiguous: bool = False,
) -> Compiled:  # fmt: skip
    """Prefill attention for Hopper, in its smallest form: the larger take three times as long.

    contiguous: over contiguous keys that the previous kernel leaves.
    """
    names = hopper_prefill_kernel.arg_names
    types = {name: kind for name, kind in ATTENTION.items() if name in names}
    types |= boxes_of(kind, head_dim, tile if contiguous else 16)
    shape: dict[str, Any] = {"NUM_HEADS": 8, "GROUP": 4, "HEAD_DIM": head_dim}
    shape |= {"BLOCK_SIZE": 0 if contiguous else 16, "PDL": contiguous}
    pair = dict.fromkeys(["k_scale_ptr", "v_scale_ptr"], BF16 if kind == "i8" else None)
    (types if kind == "i8" else shape).update(pair)
    cut = {"FIELDS": 8, "TILE": tile, "SLOTS": 4 if split else 256 // head_dim, "WINDOW": 0}
    cut |= {"SPLIT": split}
    return compile_kernel(
        hopper_prefill_kernel, types, shape | cut, capability, num_warps=4, launch_pdl=contiguous
    )


def hopper_halves(capability: int) -> Compiled:
    """Prefill attention for Hopper with separate queries for each warpgroup."""
    return hopper(capability, split=False)


def hopper_decode(
    capability: int, kind: str = "fp8e4nv", tile: int = 64, registers: int = 80
) -> Compiled:
    """Decode attention for Hopper of an 8B model with prefixes that several share.

    With as many registers of a thread as `decode_registers` gives it, or fewer.
    """
    names = hopper_decode_kernel.arg_names
    types = ATTENTION | boxes_of(kind, 128) | {"partial_ptr": "*fp32"}
    types |= dict.fromkeys(["counter_ptr", "runs_ptr", "shared_index_ptr", "lens_ptr"], INTS)
    types |= {"shared_sums_ptr": "*fp32", "shared_stats_ptr": "*fp32", "shared_plan_ptr": INTS}
    types |= dict.fromkeys(["num_tokens", "plan_is_fresh", "opens_early"], "i32")
    types = {name: kind for name, kind in types.items() if name in names}
    shape: dict[str, Any] = {"NUM_KV_HEADS": 8, "GROUP": 4, "HEAD_DIM": 128, "BLOCK_SIZE": 16}
    shape |= {"WINDOW": 0}
    pair = dict.fromkeys(["k_scale_ptr", "v_scale_ptr"], BF16 if kind == "i8" else None)
    (types if kind == "i8" else shape).update(pair)
    cut = {"TILE": tile, "SLOTS": 2, "PDL": True, "HAS_SHARED": True, "MEMBERS": 16}
    return compile_kernel(
        hopper_decode_kernel,
        types,
        shape | cut,
        capability,
        num_warps=4,
        launch_pdl=True,
        maxnreg=registers,
    )


def small(capability: int) -> Compiled:
    """Prefill attention in float32 with fewer dimensions than tl.dot takes."""
    types = {name: "*fp32" if kind == BF16 else kind for name, kind in ATTENTION.items()}
    constants = {**SHAPE, "GROUP": 2, "HEAD_DIM": 8, "ROWS": 64, "STAGES": 2, "FIELDS": 8}
    constants |= {"PRECISION": "ieee"}
    return compile_kernel(prefill_attention_kernel, types, constants, capability, num_warps=4)


def rope_fp8(capability: int) -> Compiled:
    """RoPE and KV writes to a cache in FP8."""
    return rope_write_kv(capability, "*fp8e4nv")


def rope_int8(capability: int) -> Compiled:
    """RoPE and KV writes to a cache in INT8."""
    return rope_write_kv(capability, "*i8", scales=BF16)


def rope_write_kv(capability: int, cache: str = BF16, scales: str | None = None) -> Compiled:
    """RopeWriteKV and writing with norms and partial RoPE."""
    pointers = ["heads_ptr", "out_ptr", "query_norm_ptr", "key_norm_ptr", "cos_ptr", "sin_ptr"]
    strides = ["token", "head", "angles", "block", "slot", "kv_head"]
    types = {
        **dict.fromkeys(pointers, BF16),
        **dict.fromkeys(["k_cache_ptr", "v_cache_ptr"], cache),
        **{f"stride_{name}": "i32" for name in strides},
        "slots_ptr": "*i64",
        "eps": "fp32",
    }
    constants: dict[str, Any] = {"HEADS": 32, "KV_HEADS": 8, "HEAD_DIM": 128, "HALF": 48}
    constants |= {"HAS_NORMS": True, "PDL": capability >= 90, "BLOCK_SIZE": 16}
    pair = dict.fromkeys(["k_scale_ptr", "v_scale_ptr"], scales)
    (types if scales else constants).update(pair)
    return compile_kernel(
        rope_write_kv_kernel,
        types,
        constants,
        capability,
        num_warps=8,
        launch_pdl=capability >= 90,
    )


ROUNDED = {"out_ptr": "*fp8e4nv", "scale_ptr": "*fp32"}


def norm_fp8(capability: int) -> Compiled:
    """The residual's addition, norm and rounding of an 8B model's rows."""
    pointers = dict.fromkeys(["x_ptr", "residual_ptr", "weight_ptr"], BF16) | ROUNDED
    sizes = dict.fromkeys(["size", "stride_token", "stride_head"], "i32")
    constants = {"HAS_RESIDUAL": True, "HAS_SCALE": True, "BLOCK": 4096, "PDL": True}
    types = {**pointers, **sizes, "eps": "fp32"}
    return compile_kernel(norm_kernel, types, constants, capability, num_warps=8, launch_pdl=True)


def silu_rounded(capability: int, codes: str = "fp8e4nv") -> Compiled:
    """SiLU and rounding of rows of 28,672, as a 70B model has them."""
    types = {"x_ptr": BF16, **ROUNDED, "width": "i32", "stride": "i32"}
    types["codes_ptr"] = f"*{codes}"
    del types["out_ptr"]
    constants = {"BLOCK": 1024, "STRETCHES": 28, "PDL": True}
    return compile_kernel(
        silu_rounded_kernel, types, constants, capability, num_warps=8, launch_pdl=True
    )


def sampling(kernel: Any, constants: dict[str, int], num_warps: int, capability: int) -> Compiled:
    """One of the launches that draw tokens from float32 logits."""
    names = dict.fromkeys(["rows_ptr", "status_ptr", "tokens_ptr", "positions_ptr"], INTS)
    names |= dict.fromkeys(["counters_ptr", "bin_counts_ptr", "listed_ptr"], INTS)
    names |= {"reaches_ptr": INTS, "levels_ptr": "*u64"}
    names |= dict.fromkeys(["best_ptr", "masses_ptr", "bin_masses_ptr"], "*i64")
    names |= dict.fromkeys(["ranked_ptr"], "*i64")
    names |= dict.fromkeys(["params_ptr", "aims_ptr"], "*i64")
    names |= dict.fromkeys(["logits_ptr", "scales_ptr", "lowest_ptr"], "*fp32")
    names |= dict.fromkeys(["stride", "vocab", "num_pieces"], "i32")
    types = {name: kind for name, kind in names.items() if name in kernel.arg_names}
    constants = {"PIECE": 1024, "BINS": 1024, "PDL": True} | constants
    constants = {name: each for name, each in constants.items() if name in kernel.arg_names}
    return compile_kernel(
        kernel, types, constants, capability, num_warps=num_warps, enable_fp_fusion=False
    )


KERNELS = {
    "peaks": functools.partial(sampling, peaks_kernel, {"MOST_PIECES": 128}, 4),
    "weigh": functools.partial(sampling, weigh_kernel, {"MOST_PIECES": 128, "RANKED": 256}, 4),
    "candidates": functools.partial(sampling, candidates_kernel, {"RANKED": 256}, 8),
    "open_bin": functools.partial(sampling, open_bin_kernel, {"LISTED": 2048}, 8),
    "norm_fp8": norm_fp8,
    "silu_fp8": silu_rounded,
    "silu_int8": functools.partial(silu_rounded, codes="i8"),
    "rope_write_kv": rope_write_kv,
    "rope_write_kv_fp8": rope_fp8,
    "decode_fp8": decode_fp8,
    "decode_int8": decode_int8,
    "prefill_int8": functools.partial(prefill, changes=INT8_CACHE),
    "rope_int8": rope_int8,
    "decode_capped": decode_capped,
    "prefill_capped": prefill_capped,
    "prefill_fp8": prefill_fp8,
    "skinny": skinny,
    "skinny_fp8": skinny_fp8,
    "ring": ring,
    "ring_shared": functools.partial(ring, block_m=64),
    "ring_int4_shared": functools.partial(ring_int4, rows=32, parts=1, group=64, stages=3),
    "ring_rope_shared": functools.partial(ring, block_m=64, heads=True),
    "ring_fp8": functools.partial(ring, kind="fp8e4nv"),
    "ring_int8": functools.partial(ring, kind="i8"),
    "skinny_int8": functools.partial(skinny, weight_format="codes", codes="i8"),
    "rows": rows,
    "rows_thirds": functools.partial(rows, config=RingConfig(128, 3, 3, warps=8)),
    "rows_shared": functools.partial(rows, most=256, config=None),
    "rows_shared_some": functools.partial(rows, config=None),
    "rows_shared_few": functools.partial(rows, most=64, config=None),
    "rows_whole": functools.partial(rows, most=256, config=RingConfig(64, 5)),
    "rows_int8": functools.partial(rows, kind="i8"),
    "rows_int8_most": functools.partial(rows, kind="i8", most=256),
    "rows_in_order": rows_in_order,
    "many": many,
    "many_fp8": functools.partial(many, kind="fp8e4nv"),
    "many_int8": functools.partial(many, kind="i8"),
    "pieces": pieces,
    "hopper_pieces": hopper_pieces,
    "hopper_pieces_window": functools.partial(hopper_pieces, window=4096),
    "skinny_rope": functools.partial(skinny, heads=True),
    "ring_int4": ring_int4,
    "ring_int4_zeros": functools.partial(ring_int4, rows=16, parts=1, group=64, zeros=True),
    "ring_int4_few": functools.partial(ring_int4, rows=4, parts=1, group=32, zeros=True),
    "plan_many": functools.partial(plan, most=1024, warps=4),
    "ring_int4_parts": functools.partial(ring_int4, rows=16, group=64),
    "ring_int4_many": functools.partial(ring_int4, rows=128, block_n=128, parts=1),
    "ring_int4_most": functools.partial(ring_int4, rows=64, parts=1, group=64),
    "ring_int4_sums": functools.partial(ring_int4, rows=16, block_n=32),
    "ring_int4_heads_few": functools.partial(
        ring_int4, rows=16, block_n=128, parts=1, group=64, heads=True, registers=128
    ),
    "ring_int4_heads_one": functools.partial(
        ring_int4, block_n=128, group=64, heads=True, registers=128
    ),
    "ring_int4_halves": functools.partial(ring_int4, rows=8, parts=1, group=64, halves=True),
    "ring_int4_halves_one": functools.partial(
        ring_int4, block_n=32, parts=4, group=32, halves=True, zeros=True
    ),
    "ring_int4_silu_few": functools.partial(
        ring_int4, rows=16, parts=1, group=64, silu=True, registers=128
    ),
    "ring_int4_silu_zeros": functools.partial(
        ring_int4, rows=8, parts=1, silu=True, zeros=True, registers=128
    ),
    "ring_nf4": functools.partial(ring_int4, group=64, codebook="nf4", stages=3),
    "ring_nf4_rope": functools.partial(
        ring_int4, rows=8, block_n=128, group=64, codebook="nf4", heads=True, warps=8
    ),
    "ring_nf4_rope_16": functools.partial(
        ring_int4, rows=16, block_n=128, parts=1, group=64, codebook="nf4", heads=True, warps=8
    ),
    "ring_nf4_silu": functools.partial(
        ring_int4, rows=16, block_n=128, parts=1, group=64, codebook="nf4", silu=True, warps=4
    ),
    "ring_nf4_16": functools.partial(
        ring_int4, rows=16, parts=1, group=64, codebook="nf4", stages=3
    ),
    "ring_nf4_32": functools.partial(ring_int4, rows=32, parts=1, group=64, codebook="nf4"),
    "ring_nf4_most": functools.partial(ring_int4, rows=64, parts=1, group=64, codebook="nf4"),
    "ring_mxfp4": functools.partial(ring_int4, group=32, codebook="mxfp4"),
    "ring_mxfp4_any_scale": functools.partial(
        ring_int4, rows=16, parts=1, group=32, codebook="mxfp4", by_bits=False
    ),
    "ring_mxfp4_halves": functools.partial(
        ring_int4, block_n=32, parts=4, group=32, codebook="mxfp4", heads=True, halves=True
    ),
    "ring_int4_two": functools.partial(
        ring_int4, rows=2, block_n=32, group=64, silu=True, registers=80
    ),
    "ring_mxfp4_many": functools.partial(
        ring_int4, rows=128, block_n=128, parts=1, group=32, codebook="mxfp4"
    ),
    "ring_int4_silu": functools.partial(ring_int4, block_n=32, silu=True, registers=104),
    "ring_int4_wide": functools.partial(
        ring_int4, rows=64, block_n=128, parts=1, group=64, silu=True, registers=128
    ),
    "ring_bytes": functools.partial(ring_int4, codes="s8"),
    "ring_bytes_alone": functools.partial(ring_int4, rows=16, parts=1, codes="s8", group=0),
    "ring_bytes_zeros": functools.partial(
        ring_int4, rows=16, parts=1, codes="s8", group=64, zeros=True
    ),
    "ring_bytes_few": functools.partial(
        ring_int4, rows=4, parts=1, codes="s8", group=32, zeros=True
    ),
    "ring_bytes_wide": functools.partial(
        ring_int4, rows=32, block_n=128, parts=1, codes="s8", silu=True, registers=128
    ),
    "ring_bytes_most": functools.partial(ring_int4, rows=64, parts=1, codes="s8"),
    "ring_bytes_many": functools.partial(
        ring_int4, rows=128, block_n=128, parts=1, codes="s8", zeros=True
    ),
    "ring_bytes_heads": functools.partial(
        ring_int4, rows=2, block_n=128, parts=1, codes="s8", heads=True
    ),
    "ring_bytes_heads_one": functools.partial(ring_int4, codes="s8", heads=True),
    "ring_blocks": functools.partial(ring_int4, codes="e4m3"),
    "ring_blocks_some": functools.partial(ring_int4, rows=16, block_n=32, codes="e4m3", silu=True),
    "ring_blocks_most": functools.partial(ring_int4, rows=64, parts=1, codes="e4m3"),
    "ring_blocks_many": functools.partial(ring_int4, rows=128, block_n=128, parts=1, codes="e4m3"),
    "ring_fp8_alone": functools.partial(ring_int4, codes="e4m3", group=0),
    "blocks": blocks,
    "blocks_split": functools.partial(blocks, split=4),
    "blocks_few": functools.partial(blocks, block_m=64, split=4),
    "blocks_wide": functools.partial(blocks, block_n=128),
    "blocks_int8": functools.partial(blocks, kind="i8"),
    "blocks_int8_alone": functools.partial(blocks, block_n=128, kind="i8", alone=True),
    "rows_bytes": rows_bytes,
    "rows_bytes_192": functools.partial(rows_bytes, block_m=192, group=32, split=2, zeros=True),
    "rows_bytes_320": functools.partial(rows_bytes, block_m=320, split=4),
    "rows_bytes_384": functools.partial(rows_bytes, block_m=384, codes="e4m3", group=0),
    "rows_bytes_alone": functools.partial(rows_bytes, group=0),
    "rows_fp8_alone": functools.partial(rows_bytes, codes="e4m3", group=0),
    "rows_bytes_zeros": functools.partial(rows_bytes, group=32, split=2, zeros=True),
    "rows_bytes_small": functools.partial(rows_bytes, block_m=128, block_n=64, split=2, zeros=True),
    "rows_bytes_few": functools.partial(rows_bytes, block_m=128, group=64),
    "rows_bytes_fp8": functools.partial(
        rows_bytes, block_m=128, block_n=64, codes="e4m3", group=64
    ),
    "rows_int4": rows_int4,
    "rows_int4_zeros": functools.partial(rows_int4, group=32, zeros=True),
    "rows_int4_wide": functools.partial(rows_int4, block_m=128, block_n=128, group=32, zeros=True),
    "rows_int4_rest": functools.partial(rows_int4, block_m=192, group=32, zeros=True),
    "rows_int4_parts": functools.partial(rows_int4, block_m=320, group=32, zeros=True),
    "rows_int4_most": functools.partial(rows_int4, block_m=384, split=1),
    "rows_nf4": functools.partial(rows_int4, group=64, codebook="nf4"),
    "rows_mxfp4_wide": functools.partial(
        rows_int4, block_m=192, block_n=128, group=32, codebook="mxfp4"
    ),
    "rows_int4_small": functools.partial(rows_int4, block_m=128),
    "ring_int4_heads": functools.partial(ring_int4, rows=2, block_n=128, parts=1, heads=True),
    "skinny_rope_int8": functools.partial(skinny, heads=True, cache="*i8"),
    "ring_rope_int8": functools.partial(ring, heads=True, cache="*i8"),
    "ring_rope": functools.partial(ring, kind="fp8e4nv", heads=True),
    "decode": decode,
    "plan": plan,
    "plan_whole": functools.partial(plan, whole=True),
    "prefill": prefill,
    "tile_gemm": tile_gemm,
    "tile_gemm_fp8": functools.partial(tile_gemm, codes="fp8e4nv"),
    "tile_gemm_int8": functools.partial(tile_gemm, codes="i8"),
    "tile_gemm_bytes": functools.partial(tile_gemm, codes="u8", converts=True),
    "decode_float32_fp8": decode_float32_fp8,
    "prefill_float32": prefill_float32,
    "shared": shared,
    "hopper": hopper,
    "hopper_halves": hopper_halves,
    "hopper_fp8": functools.partial(hopper, kind="fp8e4nv"),
    "hopper_int8": functools.partial(hopper, kind="i8"),
    "hopper_int8_halves": functools.partial(hopper, kind="i8", head_dim=128, tile=128, split=False),
    "hopper_bf16_halves": functools.partial(
        hopper, kind="bf16", head_dim=128, tile=128, split=False
    ),
    "hopper_dequantized": functools.partial(hopper, contiguous=True),
    "hopper_dequantized_halves": functools.partial(
        hopper, head_dim=128, tile=128, split=False, contiguous=True
    ),
    "dequantize_kv_fp8": functools.partial(dequantize_kv, kind="fp8e4nv"),
    "dequantize_kv_int8": functools.partial(dequantize_kv, kind="i8"),
    "dequantization_plan": dequantization_plan,
    "hopper_int8_split": functools.partial(hopper, kind="i8", head_dim=128, split=True),
    "hopper_decode": hopper_decode,
    "hopper_decode_int8": functools.partial(hopper_decode, kind="i8"),
    "hopper_decode_int8_few": functools.partial(hopper_decode, kind="i8", tile=128, registers=136),
    "hopper_decode_bf16": functools.partial(hopper_decode, kind="bf16"),
    "small": small,
}


def taken(kernel: str, capability: str) -> dict[str, Any]:
    """Resources that one kernel uses, or its compile error, which does not affect other kernels."""
    try:
        return dataclasses.asdict(KERNELS[kernel](int(capability)))
    except Exception:
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    print(json.dumps({wanted: taken(*wanted.split(":")) for wanted in sys.argv[1:]}))
