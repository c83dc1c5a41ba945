"""How the native library is compiled: for any processor, whatever the environment says."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
from pathlib import Path

import pytest
from child_process import run_to_end

ROOT = Path(__file__).parents[2]
LIBRARY = importlib.util.find_spec("quire.kernels.cpu._native")
OBJDUMP, QEMU = shutil.which("objdump"), shutil.which("qemu-x86_64")

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="kernels are for x86-64")
needs_library = pytest.mark.skipif(LIBRARY is None, reason="needs the compiled library")

# Instructions that SSE2, which every such processor has, does not know: VEX and EVEX, tiles, masks,
# BMI. (tzcnt is written for bsf, and runs as that where it is not known.)
LATER = re.compile(
    r"v(?!err|erw|mcall)|tile|[ls]dtilecfg|tdp|k(mov|or|and|shift|unpck|xor|xnor|not|test|add)"
    r"|pdep$|pext$|bzhi|mulx|rorx|s[ah][lr]x|andn$|blsr|blsi|lzcnt|popcnt|pshufb|pblend|crc32|movbe"
)
# Kernels' functions: in an instruction set's namespace, or with its name at the end.
KERNELS = re.compile(r"\b(avx2|avx512|amx)(_\w+)?::|_(avx2|avx512|amx|vnni|bf16)\b")


def test_machine_flags_of_the_environment_are_left_out() -> None:
    given = ["g++", "-march=native", "-mtune=native", "-mavx512f", "-m64", "-O2", "-fPIC"]
    expected = ["g++", "-m64", "-O2", "-fPIC", "-march=x86-64", "-mtune=generic"]
    code = "import sys, setup; print(*setup.portable(sys.argv[1:]))"  # setuptools has to come first
    ran = run_to_end([sys.executable, "-c", code, *given], cwd=ROOT)
    assert ran.stdout.split() == expected, ran.stderr


@needs_library
@pytest.mark.skipif(OBJDUMP is None, reason="needs objdump")
def test_only_kernels_of_an_instruction_set_use_its_instructions() -> None:
    """What chooses the kernels, packs weights and runs threads has to run everywhere."""
    assert LIBRARY is not None
    assert OBJDUMP is not None
    command = [OBJDUMP, "-d", "-C", "--no-show-raw-insn", str(LIBRARY.origin)]
    listed = run_to_end(command, check=True).stdout
    wrong, num_kernels, function = set(), 0, ""
    for line in listed.splitlines():
        if begin := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            function = begin[1]
            num_kernels += bool(KERNELS.search(function))
        elif (used := re.match(r"\s+[0-9a-f]+:\s+(\S+)", line)) and not KERNELS.search(function):
            wrong |= {(function, used[1])} if LATER.match(used[1]) else set()
    assert num_kernels > 100
    assert wrong == set()


@needs_library
@pytest.mark.skipif(QEMU is None, reason="needs qemu-user")
@pytest.mark.parametrize(("processor", "chosen"), [("Nehalem", ""), ("Haswell", "avx2")])
def test_it_loads_on_older_processors(processor: str, chosen: str) -> None:
    assert QEMU is not None
    script = "from quire.kernels.cpu import native; print(native.instruction_set())"
    command = [QEMU, "-cpu", processor, sys.executable, "-c", script]
    environment = {k: v for k, v in os.environ.items() if k != "QUIRE_CPU_KERNELS"}
    done = run_to_end(command, env=environment)
    assert (done.returncode, done.stdout.strip()) == (0, chosen), done.stderr
