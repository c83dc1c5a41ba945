"""Compiles the native library's files side by side; everything else is in pyproject.toml."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext


class ParallelBuild(build_ext):
    """One compiler process for each core."""

    def build_extensions(self) -> None:
        """As the base class, with each file's compilation in a thread of its own."""
        compile_all = self.compiler.compile

        def compile_each(sources: list[str], *args: Any, **kwargs: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                each = threads.map(lambda file: compile_all([file], *args, **kwargs), sources)
                return [name for names in each for name in names]

        self.compiler.compile = compile_each
        super().build_extensions()


setup(cmdclass={"build_ext": ParallelBuild})
