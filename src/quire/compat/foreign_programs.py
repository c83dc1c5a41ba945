"""Modules of other engines that are run by `python -m`, and Quire's command in their place."""

from __future__ import annotations

import shlex
import sys
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

# by the module's name without its package, such as vllm
PROGRAMS = {
    "entrypoints.api_server": ["serve"],
    "entrypoints.cli.main": [],
    "entrypoints.openai.api_server": ["serve"],
    "entrypoints.openai.run_batch": ["run-batch"],
    "launch_server": ["serve"],  # SGLang's
    "server": ["serve"],  # llama-cpp-python's
}


def program_spec(name: str) -> ModuleSpec | None:
    """The spec of `package.module.__main__`, which ends with the command; None for others."""
    module = name.partition(".")[2].removesuffix(".__main__")
    if module not in PROGRAMS:
        return None
    return ModuleSpec(name, _Program(module))  # type: ignore[arg-type]  # a loader by its methods


class _Program:
    """The loader of a program that says what to use."""

    def __init__(self, module: str) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> None:
        """Raise ImportError: it can only be run."""
        raise ImportError(f"quire has no module {self._module}", name=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Never called; Python asks whether it is there."""

    def get_code(self, _: str) -> CodeType:
        """Code that ends with the command, with the options that this one was called with."""
        command = shlex.join(["quire", *PROGRAMS[self._module], *sys.argv[1:]])
        text = f"quire has no program {self._module}; use `{command}`"
        return compile(f"raise SystemExit({text!r})", f"<{self._module}>", "exec")
