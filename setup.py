"""Compiles the native library's files side by side, and only those that changed since the last
time; everything else is in pyproject.toml."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group


class ParallelBuild(build_ext):
    """One compiler process for each core; object files stay for the next build."""

    def finalize_options(self) -> None:
        """As the base class, but for editable installs too, whose own folder would be forgotten."""
        super().finalize_options()
        self.build_temp = f"build/temp.{self.plat_name}-{sys.implementation.cache_tag}"

    def build_extensions(self) -> None:
        """As the base class, with each file's compilation in a thread of its own."""
        compile_all = self.compiler.compile

        def compile_each(sources: list[str], depends: list[str], **options: Any) -> list[str]:
            def compile_one(file: str) -> str:
                [product] = self.compiler.object_filenames([file], output_dir=self.build_temp)
                if self.force or newer_group([file, *depends, "pyproject.toml"], product):
                    compile_all([file], depends=depends, **options)
                return product

            with ThreadPoolExecutor(os.cpu_count()) as threads:
                return list(threads.map(compile_one, sources))

        self.compiler.compile = compile_each
        super().build_extensions()


setup(cmdclass={"build_ext": ParallelBuild})
