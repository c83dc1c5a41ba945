"""The import of PyTorch and NumPy at the start of an engine that has a process of its own.

Owns what makes it shorter there: no garbage collection, PyTorch's library loaded by a thread, and
one module of it left out. A program that runs an engine beside other work (`LLM`) imports them
unchanged. docs/decisions/starts.md has the measurements. No torch at import.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from quire.config import EngineConfig
from quire.engine.startup.device_policy import is_cpu_build, torch_library
from quire.engine.startup.prefetch import expects_torch, start_prefetch
from quire.errors import ConfigError
from quire.processes import exit_on_interrupt, try_start

# Shape functions for tracing models: a quarter of PyTorch's import, which nothing here needs.
_LEFT_OUT = "torch._meta_registrations"
_STATUS = Path("/proc/self/stat")  # of this process, on Linux
_FLAGS, _NUM_THREADS = 6, 17  # fields after the name
_IS_FORK = 0x40  # a flag: PF_FORKNOEXEC
_LONGEST_LOOP = 5  # seconds; it takes a millisecond


def import_torch() -> None:
    """Import PyTorch. Raises ConfigError if it is not installed.

    Ctrl-C waits until it is imported (a second one, later than `PATIENCE`, does not): half of it
    cannot be imported again, and where PyTorch imports NumPy, it clears every error.
    """
    if "torch" not in sys.modules and PathFinder.find_spec("torch") is None:
        raise ConfigError("this start needs PyTorch, which is not installed; pip install torch")
    from quire.engine.core.deferred_interrupt import DeferredInterrupt

    with DeferredInterrupt():
        import torch  # noqa: F401


def can_run_torch() -> bool:
    """Whether loops of PyTorch, if the program has imported it, end in this process.

    They do not in a fork of one in which PyTorch has run: OpenMP's threads are not forked. Nothing
    says so but such a loop, in a process that the system ends. Only Linux tells what is a fork. One
    with threads that are not Python's may have run PyTorch itself.
    """
    if "torch" not in sys.modules or not _STATUS.exists():
        return True
    fields = _STATUS.read_text().rpartition(")")[2].split()
    has_others = int(fields[_NUM_THREADS]) > threading.active_count()
    if has_others or not int(fields[_FLAGS]) & _IS_FORK:
        return True
    import torch

    if (child := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LONGEST_LOOP)
        torch.set_num_threads(2)
        torch.ones(1 << 17).exp_()  # parallel above 2**15 numbers
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGALRM


@contextmanager
def dedicated_start(config: EngineConfig) -> Iterator[None]:
    """Around the start of an engine whose process does nothing else.

    Prefetches files and drivers (prefetch.py) and shortens the import of PyTorch, if one follows.
    """
    if config.model.load_format == "null" or "torch" in sys.modules:
        yield
        return
    gc.disable()  # nothing that is imported becomes garbage
    with exit_on_interrupt():
        if expects_torch(config):
            # Not a daemon: no exit handler may run while the library loads.
            try_start(_load_torch_library, "quire-library", daemon=False)
        start_prefetch(config)
        _import_numpy()
        placeholder = sys.modules[_LEFT_OUT] = ModuleType(_LEFT_OUT)
        vars(placeholder)["__getattr__"] = _from_left_out
        try:
            yield
        finally:
            if sys.modules.get(_LEFT_OUT) is placeholder:
                del sys.modules[_LEFT_OUT]
            gc.freeze()  # later collections need not look at what was imported
            gc.enable()


def _from_left_out(name: str) -> Any:
    """An attribute of the module that was left out: imports the module now."""
    if name.startswith("__"):  # of which `inspect` asks every module
        raise AttributeError(name)
    sys.modules.pop(_LEFT_OUT, None)
    return getattr(import_module(_LEFT_OUT), name)


def _import_numpy() -> None:
    """Without threads of its BLAS library: they would spin for 0.1 s, and nothing uses them."""
    name = "OPENBLAS_NUM_THREADS"
    is_set = name in os.environ
    os.environ.setdefault(name, "1")
    import numpy as np  # noqa: F401

    if not is_set:
        del os.environ[name]


def _load_torch_library() -> None:
    """Load PyTorch's CPU library without the interpreter's lock, which an import would hold."""
    library = torch_library()
    # A build for GPUs finds its other libraries by itself, and only when imported as a whole.
    if library is not None and is_cpu_build(library):
        dlopen = ctypes.CDLL(None).dlopen
        dlopen.argtypes, dlopen.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
        dlopen(os.fsencode(library), os.RTLD_NOW)


def give_back_code() -> int:
    """Unmap pages of PyTorch's libraries that only its import needed; Linux only.

    The import runs thousands of functions, one for each operator, all over a library of 400 MB, and
    the system maps pages around each. They are the file's, so what is run again comes back from the
    page cache. Returns how many bytes they may lie in.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return 0
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    total = 0
    for line in maps.read_text().splitlines():
        span, access, *_, path = line.split(maxsplit=5)
        if access == "r-xp" and Path(path).name.startswith("libtorch"):  # never written
            begin, end = (int(address, 16) for address in span.split("-"))
            advise(begin, end - begin, mmap.MADV_DONTNEED)
            total += end - begin
    return total
