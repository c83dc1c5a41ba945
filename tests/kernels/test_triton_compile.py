"""Triton kernels compile for their target GPUs and fit in their multiprocessors."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

import machine_code
import pytest
from child_process import run_to_end

SHARED_MEMORY = {"80": 163, "89": 99, "90": 227, "100": 227}  # KiB a program may have
SCRIPT = Path(__file__).with_name("compile_kernels.py")
# compute capabilities other than 90 alone; all four for the one kernel that differs among them most
CAPABILITIES = {
    "skinny_fp8": ["80", "89", "90", "100"],
    "skinny_int8": ["80", "90"],
    "skinny_rope": ["80", "90"],
    "skinny_words": ["80", "90"],
    "skinny_words_nf4": ["80"],
    "skinny_words_nvfp4": ["80"],
    "skinny_words_1": ["80", "89"],
    "skinny_words_rope": ["80"],
    "tile_gemm_int8": ["80", "90"],
    "tile_gemm_bytes": ["80"],
    "prefill_float32": ["89"],
    "shared": ["89"],
}


def names_in(script: Path) -> list[str]:
    """The kernels of a script, which is read and not imported: that would take seconds."""
    for node in ast.parse(script.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "KERNELS":
            assert isinstance(node.value, ast.Dict)
            return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    raise AssertionError(f"{script} has no KERNELS")


KERNELS = {name: CAPABILITIES.get(name, ["90"]) for name in names_in(SCRIPT)}


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """What each takes; in a process of its own, as the interpreter is chosen for a whole one.

    Triton's own cache spares a machine to compile twice what has not changed.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    wanted = [f"{kernel}:{capability}" for kernel in KERNELS for capability in KERNELS[kernel]]
    done = run_to_end([sys.executable, SCRIPT, *wanted], env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# bytes of a thread, as measured with Triton 3.6 and 3.9: the larger of both. Mostly an address that
# each work item loads once, angles, or sums on their way to memory
SPILL = {
    "pieces": 8, "hopper_fp8": 8, "ring_bytes_wide_sums": 8, "ring_int4_heads_few": 8,
    "shared": 16, "ring_int4_wide": 16, "skinny_words": 16, "skinny_words_nf4": 8,
    "skinny_words_nvfp4": 8,
    "skinny_words_1": 88, "rows_bytes_320": 16, "rows_int4_parts": 32, "rows_int4_most": 40,
    "hopper_int8_split": 40, "hopper_bf16_halves": 112,
    "hopper_dequantized_halves": 120, "hopper_int8_halves": 136,
}  # fmt: skip
SPILL |= {"decode_float32_fp8": 488}  # which is there to be right, not fast
# where ptxas waits for each MMA, with one version or the other, which saves registers; as measured
SERIALIZED = {
    "ring_int4_heads_one", "ring_int4_silu", "ring_int4_two", "rows_bytes_384", "tile_gemm"
}  # fmt: skip


def test_exceptions_are_of_kernels() -> None:
    assert {*CAPABILITIES, *SPILL, *SERIALIZED} <= {*KERNELS}


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_compile_and_fit(kernel: str, compiled: dict[str, Any]) -> None:
    for capability in KERNELS[kernel]:
        taken = compiled[f"{kernel}:{capability}"]
        assert "error" not in taken, taken["error"]
        assert taken["spilled"] <= SPILL.get(kernel, 0)
        assert taken["barriers_left"] == 0
        assert not taken["serialized"] or kernel in SERIALIZED
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
