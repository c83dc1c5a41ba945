"""The native library: whether it is there, its instruction set, its threads.

Owns the loading of what was compiled from `native/`. The library is built at install where there is
a C++ compiler; without it, and on processors older than AVX2, PyTorch's operations serve. It is not
a Python module but plain C called by ctypes, which releases the interpreter's lock. No torch here.

The environment variable QUIRE_CPU_KERNELS names an instruction set (avx2, avx512, either with
_vnni, avx512_bf16, amx), or `torch` for none of them.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys

from quire.errors import ConfigError

VARIABLE = "QUIRE_CPU_KERNELS"

INTERFACE = 14  # as in quire_cpu.h

_threads = [os.cpu_count() or 1]  # of each call


def num_threads() -> int:
    """Threads that a call shares its work among."""
    return _threads[0]


def set_num_threads(count: int) -> None:
    """Set the threads of the kernels, and of PyTorch if it is imported."""
    _threads[0] = count
    if (for_torch := getattr(sys.modules.get("torch"), "set_num_threads", None)) is not None:
        for_torch(count)


def instruction_set() -> str:
    """The instruction set that the kernels use; empty where there are none."""
    if (loaded := library()) is None:
        return ""
    wanted = _wanted()
    name: bytes = loaded.quire_cpu_choose(wanted.encode() if wanted else None)
    return name.decode()


def identity() -> str:
    """Instruction set and build id of the kernels; empty where there are none."""
    if (loaded := library()) is None:
        return ""
    build = os.stat(loaded._name)
    return f"{instruction_set()} {INTERFACE} {build.st_size} {build.st_mtime_ns}"


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library with its instruction set chosen; None where PyTorch's operations have to serve.

    Raises ConfigError if the environment names an instruction set that is not to be had.
    """
    wanted = _wanted()
    spec = importlib.util.find_spec("quire.kernels.cpu._native")
    if wanted == "torch" or (spec is None and wanted is None):
        return None
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"{VARIABLE} is {wanted!r}, but the kernels were not built; install with a C++ compiler"
        )
    loaded = ctypes.CDLL(spec.origin)
    if not _fits(loaded):
        raise ConfigError(
            f"{spec.origin} was built for other code; install again, or set {VARIABLE}=torch"
        )
    loaded.quire_cpu_choose.restype = ctypes.c_char_p
    if loaded.quire_cpu_choose(wanted.encode() if wanted else None) is None:
        if wanted is None:
            return None
        raise ConfigError(f"{VARIABLE} is {wanted!r}, which this processor does not run; unset it")
    loaded.quire_cpu_linear.argtypes = [ctypes.c_char_p]  # a packed structure, in bytes
    loaded.quire_cpu_quantize.argtypes = [ctypes.c_char_p]
    return loaded


def _wanted() -> str | None:
    """The instruction set that the environment names; None where it is empty, too."""
    return os.environ.get(VARIABLE) or None


def _fits(loaded: ctypes.CDLL) -> bool:
    """Whether the library was built from this code; an editable installation may be older."""
    try:
        return bool(loaded.quire_cpu_interface() == INTERFACE)
    except AttributeError:
        return False


def compiled() -> ctypes.CDLL:
    """The library, for operations that are chosen only where it is."""
    found = library()
    assert found is not None
    return found
