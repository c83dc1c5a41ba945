"""Compiles the native library's files side by side, and only those that changed since the last
time; everything else is in pyproject.toml.

The library runs on any processor of its architecture: which instructions a kernel may use stands in
its file, and the kernels are chosen when the library is loaded. So machine flags of the environment
(`CFLAGS=-march=native`) are left out.
"""

from __future__ import annotations

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

FLAGS = ("pyproject.toml", "setup.py")  # the files that set the compiler's flags
REQUIRE = "QUIRE_REQUIRE_NATIVE"  # in the environment: fail where the library cannot be compiled


def portable(command: list[str]) -> list[str]:
    """A compiler's command without flags such as -march=native or -mavx2."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return command
    kept = [part for part in command if not part.startswith("-m") or part == "-m64"]
    return [*kept, "-march=x86-64", "-mtune=generic"]


class ParallelBuild(build_ext):
    """One compiler process for each core; object files stay for the next build."""

    def finalize_options(self) -> None:
        """As the base class, but for editable installs too, whose own folder would be forgotten."""
        super().finalize_options()
        self.build_temp = f"build/temp.{self.plat_name}-{sys.implementation.cache_tag}"

    def build_extensions(self) -> None:
        """As the base class, with each file's compilation in a thread of its own."""
        compile_all = self.compiler.compile
        for name in ("compiler_so", "compiler_so_cxx", "compiler_cxx"):
            if command := getattr(self.compiler, name, None):
                setattr(self.compiler, name, portable(command))
        for extension in self.extensions:
            extension.optional = extension.optional and REQUIRE not in os.environ

        def compile_each(sources: list[str], depends: list[str], **options: Any) -> list[str]:
            def compile_one(file: str) -> str:
                [product] = self.compiler.object_filenames([file], output_dir=self.build_temp)
                if self.force or newer_group([file, *depends, *FLAGS], product):
                    compile_all([file], depends=depends, **options)
                return product

            with ThreadPoolExecutor(os.cpu_count()) as threads:
                return list(threads.map(compile_one, sources))

        self.compiler.compile = compile_each
        super().build_extensions()


if __name__ == "__main__":
    setup(cmdclass={"build_ext": ParallelBuild})
