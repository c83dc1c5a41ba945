"""Less to do while Python imports torch, in a process that is all the engine's.

The garbage collector rests: nothing of what is imported is garbage. Where torch asks what module
its code is in, the answer comes by name and not by the paths of all modules. And what torch
registers so that models can be traced, a quarter of its import, waits until someone looks into the
module that does it. Torch's library is opened by a thread, which takes a quarter of the import and
not the interpreter, while the engine's modules that need no torch are imported. A program that has
an engine in it keeps torch as it is.
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
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType

from quire.config import EngineConfig
from quire.engine.head_start import give_head_start

LATER = "torch._meta_registrations"  # which torch imports last, and nobody else looks into


def import_lean() -> None:
    """Import torch. `gc.enable()` ends the collector's rest."""
    gc.disable()
    sys.meta_path.insert(0, _Postponing())
    import msgspec  # noqa: F401  # these have libraries of their own, which would wait
    import numpy as np  # noqa: F401

    threading.Thread(target=_open_library, name="quire-library", daemon=True).start()
    import quire.engine.core
    import quire.engine.footprint
    import quire.engine.grammars
    import quire.tokenizer.tokenizer  # noqa: F401

    with _quick_look_ups():
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


def _open_library() -> None:
    """Have the system's loader open torch's library; who imports torch meanwhile waits for that.

    By a call of its own, since Python holds the interpreter's lock while it opens one. A torch with
    a GPU's libraries is left to itself: it knows where those lie.
    """
    spec = PathFinder.find_spec("torch")
    for folder in spec.submodule_search_locations or () if spec else ():
        library = Path(folder, "lib", "libtorch_cpu.so")
        if not library.with_name("libtorch_cuda.so").exists():
            open_one = ctypes.CDLL(None).dlopen
            open_one.argtypes, open_one.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
            open_one(os.fsencode(library), os.RTLD_NOW)  # if it fails, torch will say why


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


class _Postponing(MetaPathFinder):
    """Finds that one module, and has its loader wait."""

    def find_spec(
        self, name: str, path: object, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec with another loader; None for all others."""
        if name != LATER:
            return None
        spec = PathFinder.find_spec(name, path, target)  # type: ignore[arg-type]
        if spec is not None and spec.loader is not None:
            spec.loader = _Postponed(spec.loader)
        return spec


class _Postponed(Loader):
    """Leaves a module empty until an attribute is missing."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        """Have the first look-up run the module; other threads' wait until it has run."""
        turn, begun = threading.RLock(), False

        def run(name: str) -> object:
            nonlocal begun
            with turn:
                if begun and vars(module).get("__getattr__") is run:  # it looks into itself
                    raise AttributeError(f"{module.__name__} has no {name} yet")
                if not begun:
                    begun = True
                    self._loader.exec_module(module)
                    if vars(module).get("__getattr__") is run:
                        del module.__dict__["__getattr__"]
            return getattr(module, name)

        module.__dict__["__getattr__"] = run
