"""The compiled kernels of this room: whether they are there, and what they were compiled for.

Owns the way from Python to `native/`: the loaded library, its structures, its choice of instruction
set. The library is built at install where there is a C++ compiler; without it, and on processors
older than AVX2, PyTorch's operations serve. It is no Python module but plain C called by ctypes,
which releases the interpreter's lock.

The environment variable QUIRE_CPU_KERNELS names an instruction set (avx2, avx512, either with
_vnni, avx512_bf16, amx), or `torch` for none of them.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from typing import ClassVar

import torch
from torch import Tensor

from quire.errors import ConfigError
from quire.kernels.cpu import elementwise

VARIABLE = "QUIRE_CPU_KERNELS"

INTERFACE = 5  # as in quire_cpu.h

DTYPES = {torch.float32: 0, torch.bfloat16: 1}  # `Dtype` in quire_cpu.h


class RmsNormArgs(ctypes.Structure):
    """As in quire_cpu.h."""

    _fields_: ClassVar = [
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("dtype", ctypes.c_int32),
        ("threads", ctypes.c_int32),
    ]


class PackArgs(ctypes.Structure):
    """As in quire_cpu.h."""

    _fields_: ClassVar = [
        ("codes", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("half", ctypes.c_int64),
        ("group", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("threads", ctypes.c_int32),
    ]


def identity() -> str:
    """What the kernels are: their instruction set, and which build; empty where there are none."""
    loaded = library()
    if loaded is None:
        return ""
    wanted, build = os.environ.get(VARIABLE), os.stat(loaded._name)
    name = loaded.quire_cpu_choose(wanted.encode() if wanted else None).decode()
    return f"{name} {INTERFACE} {build.st_size} {build.st_mtime_ns}"


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library with its instruction set chosen; None where PyTorch's operations have to serve.

    Raises ConfigError if the environment names an instruction set that is not to be had.
    """
    wanted = os.environ.get(VARIABLE)
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


def _fits(loaded: ctypes.CDLL) -> bool:
    """Whether the library was built from this code: an installation for developers may be older."""
    try:
        return bool(loaded.quire_cpu_interface() == INTERFACE)
    except AttributeError:
        return False


def compiled() -> ctypes.CDLL:
    """The library, for operations that are chosen only where it is."""
    found = library()
    assert found is not None
    return found


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Twin of `reference.rms_norm`; between its steps float32 is not rounded to bfloat16."""
    if x.dtype not in DTYPES:
        return elementwise.rms_norm(x, weight, eps)
    x = x.contiguous()
    out = torch.empty_like(x)
    size = x.shape[-1]
    args = RmsNormArgs(
        x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.numel() // size, size, eps,
        DTYPES[x.dtype], torch.get_num_threads(),
    )  # fmt: skip
    compiled().quire_cpu_rms_norm(ctypes.byref(args))
    return out


def pack(
    codes: Tensor,
    scale: Tensor | None,
    zeros: Tensor | None,
    out: Tensor,
    sizes: tuple[int, int, int, int, int],
) -> None:
    """Bring a weight's codes, or its numbers, into the order that products read.

    sizes: outputs, inputs, half of the outputs if they come by turns, inputs that share a scale,
    and `Format` in quire_cpu.h.
    """
    addresses = (None if each is None else each.data_ptr() for each in (codes, scale, zeros, out))
    args = PackArgs(*addresses, *sizes, torch.get_num_threads())
    compiled().quire_cpu_pack(ctypes.byref(args))
