"""The files that the house rules are about, and how a rule fails."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "quire"
FILES = sorted(SOURCE.rglob("*.py"))
NATIVE = sorted(path for end in ("*.cpp", "*.h") for path in SOURCE.rglob(end))
PROGRAMS = sorted(
    path for room in ("training", "benchmarks") for path in (ROOT / room).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def load_program(path: Path) -> ModuleType:
    """A program that is not part of the package, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(parsed(path)))


def expect_none(faults: Iterable[str], fix: str = "") -> None:
    """Fail with one line per fault. fix: what to do, where the faults do not say it themselves."""
    found = list(faults)
    assert not found, "\n".join([*found, fix]).rstrip()


def expect_only(found: set[str], allowed: set[str], fix: str) -> None:
    """Fail unless the two are equal. fix: what to do about an item that is not allowed."""
    expect_none((f"not allowed: {name}" for name in sorted(found - allowed)), fix)
    gone = (f"no longer there: {name}" for name in sorted(allowed - found))
    expect_none(gone, "delete it where it is listed")
