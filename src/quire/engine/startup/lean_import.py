"""Less to do while Python imports torch, in a process that is all the engine's.

The garbage collector rests: nothing of what is imported is garbage. While a thread opens torch's
library (`torch_library.py`), what needs no torch is imported, and torch's modules are read
(`read_modules.py`). Half of them wait until someone looks into one (`deferred_imports.py`). Where
torch asks what module its code is in, the answer comes by name and not by the paths of all modules.
A program that has an engine in it keeps torch as it is.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType, ModuleType

from quire.config import EngineConfig
from quire.engine.startup.deferred_imports import Waiting, names_that_wait
from quire.engine.startup.prefetch import expects_torch, give_head_start
from quire.engine.startup.read_modules import FOLDERS, OUR_FOLDERS, ReadModules
from quire.engine.startup.torch_library import (
    import_numpy,
    open_torch_library,
    torch_folder,
    unless_set,
)
from quire.errors import ConfigError

_OURS = Path(__file__).parents[2]
# Of the standard library, what torch imports.
_STANDARD = (
    *("argparse", "ast", "copy", "csv", "email.message", "glob", "importlib.metadata", "inspect"),
    *("importlib.resources", "multiprocessing.reduction", "pickletools", "pkgutil", "platform"),
    *("pprint", "shutil", "socket", "statistics", "subprocess", "tarfile", "tempfile", "timeit"),
    *("unittest", "uuid", "zipfile"),
)


_is_lean = [False]  # this process, now


def import_lean() -> None:
    """Import torch, and what starts an engine with it, while the collector rests."""
    library, folder = open_torch_library(), torch_folder()
    _import_what_needs_no_torch()
    waiting, modules = Waiting(names_that_wait(folder)), ReadModules()

    def is_wanted(name: str) -> bool:
        return library.is_alive() and name not in sys.modules and not waiting.holds(name)

    for top, inner in [(folder, each) for each in FOLDERS] + [
        (_OURS, each) for each in OUR_FOLDERS
    ]:
        package = ".".join((top.name, *Path(inner).parts))
        modules.read(package, top / inner, is_wanted)
    with (
        _quick_look_ups(),
        modules.as_finder(),
        waiting,
        unless_set("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"),  # looks into each installed package
    ):
        import torch  # noqa: F401

        import quire.engine.startup.torch_start  # noqa: F401


def _import_what_needs_no_torch() -> None:
    for name in _STANDARD:
        import_module(name)
    import quire.engine.core.engine_core
    import quire.engine.core.grammar_matchers
    import quire.engine.core.step_sizes
    import quire.engine.frontend.engine_info
    import quire.engine.startup.footprint
    import quire.engine.startup.memory_plan
    import quire.kernels.operands
    import quire.tokenizer.tokenizer  # noqa: F401


def import_torch() -> None:
    """In a program that has an engine in it as ever, within `lean_start` leanly.

    Raises ConfigError if there is none.
    """
    if "torch" not in sys.modules and PathFinder.find_spec("torch") is None:
        raise ConfigError("this start needs PyTorch, which is not installed; pip install torch")
    if _is_lean[0]:
        import_lean()
    import torch  # noqa: F401


@contextmanager
def lean_start(config: EngineConfig) -> Iterator[None]:
    """Around the start of an engine whose process is all its own."""
    if config.model.load_format == "null" or "torch" in sys.modules:
        yield  # nothing to import, or somebody's program
        return
    gc.disable()
    if expects_torch(config):
        open_torch_library()
    give_head_start(config)
    import_numpy()
    _is_lean[0] = True
    try:
        yield
    finally:
        _is_lean[0] = False
        gc.freeze()  # what is there by now stays
        gc.enable()


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
