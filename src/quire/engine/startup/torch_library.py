"""Torch's library, opened by a thread while Python imports what needs none.

Opening takes a third of the import of torch, and not the interpreter. A module with a library of
its own waits for it, since the system's loader opens one at a time: those come before.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

# What has libraries of its own in most Pythons, or asks for one by itself.
_BEFORE = (
    *("_bisect", "_blake2", "_bz2", "_contextvars", "_csv", "_datetime", "_decimal", "_hashlib"),
    *("_heapq", "_json", "_lzma", "_opcode", "_pickle", "_posixsubprocess", "_queue", "_random"),
    *("_sha512", "_socket", "_statistics", "_struct", "_uuid", "array", "binascii", "cmath"),
    *(
        "fcntl",
        "grp",
        "math",
        "mmap",
        "select",
        "zlib",
        "msgspec",
        "quire.models.checkpoints.large_pages",
    ),
)


@cache
def open_torch_library() -> threading.Thread:
    """Begin, once in a process; returns the thread that does it. The collector rests from now on.

    Python waits for it at its end: while the library opens, no handler of exits may run.
    """
    gc.disable()
    for name in _BEFORE:
        with suppress(ImportError):  # not every system has all
            import_module(name)
    import_numpy()
    thread = threading.Thread(target=_open, args=(torch_folder(),), name="quire-library")
    thread.start()
    return thread


def import_numpy() -> None:
    """Without a thread of its products' library, which would spin for 0.1 s and serve nobody."""
    with unless_set("OPENBLAS_NUM_THREADS", "1"):
        import numpy as np  # noqa: F401


def torch_folder() -> Path:
    """Where torch lies; nowhere if it is not installed, or otherwise than as files."""
    spec = PathFinder.find_spec("torch")
    places = (spec.submodule_search_locations if spec else None) or ("/nowhere",)
    return Path(*places[:1])


def is_for_gpus(folder: Path) -> bool:
    """Whether a torch has a GPU's libraries; it knows where those lie, and is left to itself."""
    return (folder / "lib" / "libtorch_cuda.so").exists()


@contextmanager
def unless_set(variable: str, value: str) -> Iterator[None]:
    """Within this context, an environment variable that nobody has set."""
    if variable in os.environ:
        yield
        return
    os.environ[variable] = value
    try:
        yield
    finally:
        os.environ.pop(variable, None)


def _open(folder: Path) -> None:
    """Have the system's loader open torch's library; who imports torch meanwhile waits for that.

    By a call of its own, since Python holds the interpreter's lock while it opens one.
    """
    if not is_for_gpus(folder):
        open_one = ctypes.CDLL(None).dlopen
        open_one.argtypes, open_one.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
        open_one(os.fsencode(folder / "lib" / "libtorch_cpu.so"), os.RTLD_NOW)
