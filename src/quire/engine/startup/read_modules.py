"""Modules that are found and read before they are imported: a third of what that takes.

Which they are nobody knows before, so whole folders are read of which torch, or an engine, imports
nearly all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

# Below torch's, and below this package's.
FOLDERS = (
    *("", "nn/modules", "jit", "cuda", "package", "nn/utils", "autograd", "_library", "nn"),
    *("distributed", "distributed/rpc", "distributed/_pycute", "nn/parallel", "xpu", "backends"),
    *("testing", "accelerator", "mtia", "mps", "_logging", "_strobelight", "amp", "cpu", "signal"),
    *("utils", "cuda/amp", "_vendor/packaging", "package/analyze"),
)
OUR_FOLDERS = ("engine", "kernels", "kernels/cpu", "layers", "sampling", "models")


class ReadModules:
    """Finds those for Python's import, each once."""

    def __init__(self) -> None:
        self._found: dict[str, ModuleSpec] = {}

    @contextmanager
    def as_finder(self) -> Iterator[None]:
        """Within this context."""
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """As it was found."""
        return self._found.pop(name, None)

    def read(self, package: str, folder: Path, is_wanted: Callable[[str], bool]) -> None:
        """All modules right in a package's folder that are wanted, and that can be read."""
        for file in sorted(folder.glob("*.py")) + sorted(folder.glob("*/__init__.py")):
            inner = file.parent.name if file.stem == "__init__" else file.stem
            name = f"{package}.{inner}"
            if is_wanted(name) and (spec := PathFinder.find_spec(name, [str(folder)])):
                with suppress(Exception):  # who imports it, if anybody does, will be told
                    _read_code(spec)
                    self._found[name] = spec


def _read_code(spec: ModuleSpec) -> None:
    """Have a module's loader do now what it would do when the module is run."""
    loader = spec.loader
    if isinstance(loader, SourceFileLoader):
        code = loader.get_code(spec.name)

        def get_code(_: str) -> CodeType | None:
            del vars(loader)["get_code"]  # else the code would stay in memory
            return code

        vars(loader)["get_code"] = get_code
