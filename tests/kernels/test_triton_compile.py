"""Triton kernels compile for their target GPUs and fit in their multiprocessors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import machine_code
import pytest

SHARED_MEMORY = {"80": 163, "89": 99, "90": 227, "100": 227}  # KiB a program may have


# all four for the one kernel that differs among them most; a compilation takes two seconds
KERNELS = {
    "skinny": ["90"],
    "skinny_fp8": ["80", "89", "90", "100"],
    "skinny_int8": ["80", "90"],
    "ring": ["90"],
    "ring_fp8": ["90"],
    "ring_int8": ["90"],
    "ring_int4": ["90"],
    "ring_int4_zeros": ["90"],
    "ring_int4_few": ["90"],
    "ring_int4_parts": ["90"],
    "plan_many": ["90"],
    "ring_int4_many": ["90"],
    "ring_int4_most": ["90"],
    "ring_int4_sums": ["90"],
    "ring_nf4": ["90"],
    "ring_nf4_most": ["90"],
    "ring_mxfp4": ["90"],
    "ring_mxfp4_many": ["90"],
    "ring_int4_silu": ["90"],
    "ring_int4_wide": ["90"],
    "ring_int4_heads": ["90"],
    "ring_int4_heads_few": ["90"],
    "ring_int4_halves": ["90"],
    "ring_int4_halves_one": ["90"],
    "ring_bytes": ["90"],
    "ring_bytes_zeros": ["90"],
    "ring_bytes_many": ["90"],
    "ring_blocks_most": ["90"],
    "ring_fp8_alone": ["90"],
    "rows_fp8_alone": ["90"],
    "rows_bytes": ["90"],
    "rows_bytes_192": ["90"],
    "rows_bytes_320": ["90"],
    "rows_bytes_few": ["90"],
    "rows_bytes_zeros": ["90"],
    "rows_bytes_small": ["90"],
    "blocks": ["90"],
    "blocks_split": ["90"],
    "blocks_few": ["90"],
    "blocks_wide": ["90"],
    "blocks_int8": ["90"],
    "rows_int4": ["90"],
    "rows_int4_zeros": ["90"],
    "rows_int4_wide": ["90"],
    "rows_int4_rest": ["90"],
    "rows_int4_parts": ["90"],
    "rows_int4_most": ["90"],
    "rows_nf4": ["90"],
    "rows_mxfp4_wide": ["90"],
    "rows_int4_small": ["90"],
    "rows": ["90"],
    "rows_int8": ["90"],
    "rows_int8_most": ["90"],
    "rows_in_order": ["90"],
    "many": ["90"],
    "many_fp8": ["90"],
    "many_int8": ["90"],
    "pieces": ["90"],
    "hopper_pieces": ["90"],
    "hopper_pieces_window": ["90"],
    "skinny_rope": ["80", "90"],
    "ring_rope": ["90"],
    "decode": ["90"],
    "plan": ["90"],
    "plan_whole": ["90"],
    "decode_fp8": ["90"],
    "decode_capped": ["90"],
    "decode_int8": ["90"],
    "prefill_int8": ["90"],
    "rope_int8": ["90"],
    "prefill_capped": ["90"],
    "prefill_fp8": ["90"],
    "rope_write_kv_fp8": ["90"],
    "prefill": ["90"],
    "tile_gemm": ["90"],
    "tile_gemm_fp8": ["90"],
    "tile_gemm_int8": ["80", "90"],
    "tile_gemm_bytes": ["80"],
    "decode_float32_fp8": ["90"],
    "prefill_float32": ["89"],
    "shared": ["89"],
    "hopper": ["90"],
    "hopper_halves": ["90"],
    "hopper_fp8": ["90"],
    "hopper_int8": ["90"],
    "hopper_dequantized": ["90"],
    "dequantize_kv_fp8": ["90"],
    "dequantize_kv_int8": ["90"],
    "dequantization_plan": ["90"],
    "hopper_decode": ["90"],
    "hopper_decode_bf16": ["90"],
    "hopper_decode_int8": ["90"],
    "hopper_decode_int8_few": ["90"],  # tiles for few requests
    "skinny_rope_int8": ["90"],
    "ring_rope_int8": ["90"],
    "small": ["90"],
    "norm_fp8": ["90"],
    "silu_fp8": ["90"],
    "rope_write_kv": ["90"],
    "peaks": ["90"],
    "weigh": ["90"],
    "candidates": ["90"],
    "open_bin": ["90"],
}


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """What each takes; in a process of its own, as the interpreter is chosen for a whole one.

    Triton's own cache spares a machine to compile twice what has not changed.
    """
    script = Path(__file__).with_name("compile_kernels.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    wanted = [f"{kernel}:{capability}" for kernel in KERNELS for capability in KERNELS[kernel]]
    done = subprocess.run(
        [sys.executable, script, *wanted],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# two sums; an address that each work item loads once; angles; so that two programs fit; sums that
# are stored
SPILL = {"pieces": 8, "hopper_fp8": 8, "ring_int4_heads_few": 8, "shared": 8, "ring_int4_wide": 16,
         "rows_int4_parts": 32}  # fmt: skip
SPILL |= {"decode_float32_fp8": 1024}  # which is there to be right, not fast


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_compile_and_fit(kernel: str, compiled: dict[str, Any]) -> None:
    for capability in KERNELS[kernel]:
        taken = compiled[f"{kernel}:{capability}"]
        assert "error" not in taken, taken["error"]
        assert taken["spilled"] <= SPILL.get(kernel, 0)
        assert taken["barriers_left"] == 0
        assert not taken["serialized"]
        assert not taken["overwritten"]
        assert not taken["misaligned"]
        assert 0 < taken["registers"] <= 255
        assert taken["shared_memory"] <= SHARED_MEMORY[capability] * 1024


LOOP = """
        /*0100*/                   LDS.64 R6, [R4] ;
        /*0110*/                   HGMMA.64x64x16.F32.BF16 R24, R88, gdesc[UR4], R24, gsb0 ;
        /*0120*/                   WARPGROUP.DEPBAR.LE gsb0, 0x{left} ;
        /*0130*/                   IMAD.MOV.U32 R92, RZ, RZ, R6 ;
        /*0140*/              @!P1 LDS.64 R90, [R4] ;
        /*0150*/               @P1 BRA 0x100 ;
"""


def test_numbers_that_an_mma_in_flight_reads_are_not_to_be_written() -> None:
    assert machine_code.overwritten(LOOP.format(left=0)) == []
    assert set(machine_code.overwritten(LOOP.format(left=1))) == {"LDS.64 R90, [R4]"}
    assert machine_code.serializes(LOOP.format(left=0))
    assert not machine_code.serializes(LOOP.format(left=1))
