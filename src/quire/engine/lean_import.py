"""Less to do while Python imports torch, in a process that is all the engine's.

The garbage collector rests: nothing of what is imported is garbage. Where torch asks what module
its code is in, the answer comes by name and not by the paths of all modules. Half of torch waits
until someone looks into it (`waiting.py`). Torch's library is opened by a thread, which takes
a third of the import and not the interpreter, while the engine's modules that need no torch are
imported. A program that has an engine in it keeps torch as it is.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType, ModuleType

from quire.config import EngineConfig
from quire.engine.head_start import give_head_start
from quire.engine.waiting import Waiting, names_that_wait


def import_lean() -> None:
    """Import torch. `gc.enable()` ends the collector's rest."""
    gc.disable()
    # These have libraries of their own, which would wait for the thread's.
    import queue  # noqa: F401
    import shutil  # noqa: F401
    import statistics  # noqa: F401
    import subprocess  # noqa: F401

    import msgspec  # noqa: F401
    import numpy as np  # noqa: F401

    folder = _torch_folder()
    # Python waits for it at its end: while the library opens, no handler of exits may run.
    threading.Thread(target=_open_library, args=(folder,), name="quire-library").start()
    import quire.engine.core
    import quire.engine.footprint
    import quire.engine.grammars
    import quire.tokenizer.tokenizer  # noqa: F401

    with _quick_look_ups(), Waiting(names_that_wait(folder)):
        import torch  # noqa: F401


@contextmanager
def lean_start(config: EngineConfig) -> Iterator[None]:
    """Around the start of an engine by a command whose process is all the engine's."""
    if config.model.load_format == "null" or "torch" in sys.modules:
        yield  # nothing to import, or somebody's program
        return
    give_head_start(config)
    import_lean()
    try:
        yield
    finally:
        gc.freeze()  # what is there by now stays
        gc.enable()


def _torch_folder() -> Path:
    """Where it lies; nowhere if it is not installed, or otherwise than as files."""
    spec = PathFinder.find_spec("torch")
    return Path(*(spec.submodule_search_locations or ())[:1]) if spec else Path("/nowhere")


def _open_library(folder: Path) -> None:
    """Have the system's loader open torch's library; who imports torch meanwhile waits for that.

    By a call of its own, since Python holds the interpreter's lock while it opens one. A torch with
    a GPU's libraries is left to itself: it knows where those lie.
    """
    if not (folder / "lib" / "libtorch_cuda.so").exists():
        open_one = ctypes.CDLL(None).dlopen
        open_one.argtypes, open_one.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
        open_one(os.fsencode(folder / "lib" / "libtorch_cpu.so"), os.RTLD_NOW)


@contextmanager
def _quick_look_ups() -> Iterator[None]:
    """Meanwhile `inspect` finds a frame's module by its name, and that of all else as ever."""
    look_up = inspect.getmodule

    def module_of(thing: object, file: str | None = None) -> ModuleType | None:
        if isinstance(thing, FrameType):
            return sys.modules.get(thing.f_globals.get("__name__", ""))
        return look_up(thing, file)

    vars(inspect)["getmodule"] = module_of
    try:
        yield
    finally:
        vars(inspect)["getmodule"] = look_up
