"""Parts of torch that an engine never looks into wait until somebody does.

Much of what `import torch` runs is there to trace, compile, train or distribute models. Such a
module is made at once, and empty. While torch is imported, one that is asked for a name runs as it
would have. Later the first look into any of them runs all, in the order in which torch asked for
them: who wants one of them has all of torch, as it always is.
"""

from __future__ import annotations

import sys
import threading
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader

OF_ANY_TORCH = ("torch._meta_registrations",)  # imported last, and nobody else looks into it
TRIED_TORCH = "2.13."  # where these wait, too; all with what is in them
OF_TRIED_TORCH = (
    "torch._dynamo",
    "torch._export",
    "torch._guards",
    "torch._higher_order_ops",
    "torch._native",
    "torch._subclasses",
    "torch.ao",
    "torch.compiler",
    "torch.distributions",
    "torch.export",
    "torch.func",
    "torch.fx",
    "torch.hub",
    "torch.masked",
    "torch.multiprocessing",
    "torch.nested",
    "torch.nn.attention",
    "torch.nn.intrinsic",
    "torch.nn.qat",
    "torch.nn.quantizable",
    "torch.nn.quantized",
    "torch.optim",
    "torch.profiler",
    "torch.quantization",
    "torch.utils.data",
    "torchgen",
    "unittest.mock",
)
# But not these: torch's import asks them for names, and they need nothing of their packages.
AT_ONCE = (
    "torch.fx._compatibility",
    "torch.fx.experimental.sym_node",  # by the library, where nothing else may run meanwhile
    "torch.fx.operator_schemas",
    "torch.multiprocessing._atfork",
)
# Functions that torch has under its own name, too: what stands there meanwhile passes calls on.
ALSO_TORCHS = {"torch._higher_order_ops": ("cond", "while_loop"), "torch.func": ("vmap",)}


def names_that_wait(torch_folder: Path) -> Sequence[str]:
    """Of this torch: fewer where it is not one for CPUs of a version that this was tried with."""
    try:
        told = (torch_folder / "version.py").read_text(encoding="utf-8")
    except OSError:  # not where it usually is, or not there
        return OF_ANY_TORCH
    is_tried = f"'{TRIED_TORCH}" in told and "+cpu'" in told and sys.platform == "linux"
    return OF_ANY_TORCH + OF_TRIED_TORCH if is_tried else OF_ANY_TORCH


class Waiting:
    """Finds those modules for Python's import; torch is imported within this context."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self.modules: dict[str, _Module] = {}  # in the order in which torch asked for them
        self.turn = threading.RLock()  # of who runs them
        self.is_importing, self._is_awake = True, False

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *details: object) -> None:
        self.is_importing = False

    def holds(self, name: str) -> bool:
        """Whether a module of this name waits."""
        parts = name.split(".")
        above = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
        return name not in AT_ONCE and not self._names.isdisjoint(above)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec with another loader; None for what does not wait."""
        if not self.holds(name):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Module(self, spec.loader)  # type: ignore[assignment]
        return spec

    def wake(self) -> None:
        """Run all; other threads that look into one wait for that."""
        with self.turn:
            if self._is_awake:
                return
            self._is_awake = True
            sys.meta_path.remove(self)
            for module in list(self.modules.values()):
                module.run()
            for name in ALSO_TORCHS.keys() & self.modules.keys():
                for function in ALSO_TORCHS[name]:
                    real = getattr(sys.modules[name], function)
                    setattr(sys.modules["torch"], function, real)


class _Module:
    """Loads one by leaving it empty, with a `__getattr__` that is asked for what is missing."""

    def __init__(self, waiting: Waiting, loader: Loader) -> None:
        self._waiting, self._loader = waiting, loader
        self._begun = False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Have the first look into the module run it."""
        self._module, self._asked = module, self._look_up
        self._waiting.modules[module.__name__] = self
        module.__dict__["__getattr__"] = self._asked

    def run(self) -> None:
        """As Python would have, behind its package; unless it runs already, or did."""
        module = self._module
        if package := self._waiting.modules.get(module.__name__.rpartition(".")[0]):
            package.run()
        if self._begun:
            return
        self._begun = True
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if vars(module).get("__getattr__") is self._asked:  # else it has one of its own
            del module.__dict__["__getattr__"]

    def _look_up(self, name: str) -> Any:
        module, waiting = self._module, self._waiting
        if waiting.is_importing and name in ALSO_TORCHS.get(module.__name__, ()):
            return _passing_on(module, name)
        with waiting.turn:
            if self._begun and vars(module).get("__getattr__") is self._asked:  # it runs
                raise AttributeError(f"{module.__name__} has no {name} yet")
            if not waiting.is_importing:
                waiting.wake()
            self.run()
        return getattr(module, name)


def _passing_on(module: ModuleType, name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(module, name)(*args, **kwargs)

    return call
