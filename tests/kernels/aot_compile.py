"""Ahead-of-time compilation of a kernel for any GPU, on a machine without one."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine_code
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource


@dataclass(frozen=True, slots=True)
class Compiled:
    """The resources of a multiprocessor that a compiled kernel uses."""

    registers: int  # for each thread
    spilled: int  # bytes of registers spilled to memory, for each thread
    shared_memory: int  # bytes for each program
    barriers_left: int  # mbarriers that are not invalidated, see hopper_barriers.py
    serialized: bool  # whether ptxas waits for each warpgroup MMA before the next one
    overwritten: list[str]  # instructions that write what one in flight may still read
    misaligned: list[int]  # where TMA stores in shared memory beside multiples of 128 bytes


def compile_kernel(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    capability: int,
    *,
    num_warps: int,
    launch_pdl: bool = False,
    enable_fp_fusion: bool = True,
    maxnreg: int | None = None,
) -> Compiled:
    """Compile for a compute capability such as 90.

    types: arguments' types by Triton's names, such as "*bf16", "i32"; pointers and strides are
    taken as divisible by 16. constants: values of all other arguments.
    """
    # the workers of precompile.py would read such a text as the dtype, and compile another kernel
    assert not any(map(tl.dtype.is_dtype, constants.values())), f"names of dtypes in {constants}"
    names: list[str] = kernel.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    source = (GluonASTSource if kernel.is_gluon() else ASTSource)(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {
            (index,): [["tt.divisibility", 16]]
            for index, name in enumerate(names)
            if signature[name].startswith("*") or name.startswith("stride")
        },
    )
    options = {"num_warps": num_warps, "enable_fp_fusion": enable_fp_fusion, "maxnreg": maxnreg}
    if capability >= 90:
        options["launch_pdl"] = launch_pdl
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    usage = _resources(binary.asm["cubin"])
    ptx = binary.asm["ptx"]
    left = ptx.count("mbarrier.init.") - ptx.count("mbarrier.inval.")
    spilled = usage["STACK"] + usage["LOCAL"]
    code = _shown(binary.asm["cubin"], "-sass") if "wgmma.mma_async" in ptx else ""
    return Compiled(
        usage["REG"], spilled, binary.metadata.shared, left, machine_code.serializes(code),
        machine_code.overwritten(code), _misaligned(ptx),
    )  # fmt: skip


def _misaligned(ptx: str) -> list[int]:
    """Offsets of TMA's boxes that are known in the text, which are those before a ring's loop."""
    boxes = set(re.findall(r"cp\.async\.bulk\.tensor\S+ +\[(%r\d+)\],", ptx))
    offsets = re.findall(r"add\.s32 \t(%r\d+), %r\d+, (\d+);", ptx)
    return sorted({int(at) for register, at in offsets if register in boxes and int(at) % 128})


def _resources(cubin: bytes) -> dict[str, int]:
    """The resources of a cubin's only function, by the names that cuobjdump uses."""
    found = re.findall(r"(\w+):(\d+)", _shown(cubin, "-res-usage"))
    return {name: int(value) for name, value in found}


def _shown(cubin: bytes, what: str) -> str:
    """What cuobjdump prints of a cubin."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, what, file.name], capture_output=True, text=True, check=True)
    return done.stdout
