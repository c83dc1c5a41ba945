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


# types of arguments by their names, where they are not those of `_usual_type`
_NAMED = {
    "*i32": "arrival bin_counts block_table chunks counter counters decode_tiles first_keys lens "
    "listed num_tiles other_tiles plan positions query_start query_tiles reaches rows runs "
    "seq_lens shared_index shared_plan status tiles tokens work",
    "*i64": "aims best bin_masses masses params ranked slots",
    "*u64": "levels",
    "*fp16": "group_scale",
    "*fp32": "logits lowest part partial row_scale scale scales shared_stats shared_sums squares "
    "squares_out stats sums w_scale x_scale",
}
_TYPES = {f"{name}_ptr": kind for kind, names in _NAMED.items() for name in names.split()}
_TYPES |= dict.fromkeys(["eps", "head_eps", "scale"], "fp32")


def _usual_type(name: str) -> str:
    """Triton's name of an argument's type: pointers are to bfloat16, all else is a number."""
    return _TYPES.get(name) or ("*bf16" if name.endswith("_ptr") else "i32")


def compile_kernel(
    kernel: Any,
    capability: int,
    given: Mapping[str, Any],
    *,
    num_warps: int = 4,
    launch_pdl: bool = False,
    enable_fp_fusion: bool = True,
    maxnreg: int | None = None,
) -> Compiled:
    """Compile for a compute capability such as 90.

    given: the constants, and of other arguments the types by Triton's names, such as "*bf16", that
    are not the usual ones. Pointers and strides are taken as divisible by 16.
    """
    types = {n: v for n, v in given.items() if isinstance(v, str) and not n.isupper()}
    constants = {n: v for n, v in given.items() if n not in types}
    # the workers of precompile.py would read such a text as the dtype, and compile another kernel
    assert not any(map(tl.dtype.is_dtype, constants.values())), f"names of dtypes in {constants}"
    names: list[str] = kernel.arg_names
    assert not set(given) - set(names), f"no arguments: {set(given) - set(names)}"
    missing = {n for n in names if n.isupper() and len(n) > 1} - set(constants)
    assert not missing, f"constants without a value: {missing}"
    signature = {
        name: "constexpr" if name in constants else types.get(name) or _usual_type(name)
        for name in names
    }
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
        command = [tool, what, file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout
