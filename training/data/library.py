"""Owns the plain text of the training mix: Python's standard library, in windows."""

from __future__ import annotations

import ast
import pydoc_data.topics
import sysconfig
from functools import cache
from itertools import accumulate
from pathlib import Path
from random import Random

from data.split import held_document

EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings"}


@cache
def library(held: bool) -> list[str]:
    """Documents: docstrings by module and help topics, each of them twice, and source."""
    documents: list[str] = []
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not EXCLUDED & set(name.parts) and held_document(name.as_posix()) == held:
            documents += module_documents(path, name.as_posix())
    for topic, text in sorted(pydoc_data.topics.topics.items()):
        if held_document(topic) == held:
            documents += [text] * 2
    return [document for document in documents if len(document) > 200]


def module_documents(path: Path, name: str) -> list[str]:
    """The docstrings of a module, twice, and its source; nothing if it cannot be parsed."""
    try:
        source = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return []
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    parts = [
        f"{getattr(node, 'name', name)}\n{docstring}\n"
        for node in nodes
        if isinstance(node, documented) and (docstring := ast.get_docstring(node))
    ]
    return [*["\n".join(parts)] * 2, source] if parts else [source]


@cache
def running_lengths() -> list[int]:
    return list(accumulate(len(document) for document in library(False)))


def plain_text(rng: Random) -> str:
    """A window of a training document, starting at a line."""
    document = rng.choices(library(False), cum_weights=running_lengths())[0]
    size = rng.choice((400, 1000, 2500, 6000, 12000))
    start = rng.randrange(max(1, len(document) - size // 2))
    start = document.rfind("\n", 0, start) + 1
    return document[start : start + size]


def held_windows(count: int, rng: Random) -> list[str]:
    """Windows of held-out documents, one each, to measure a model's loss on."""
    documents = library(True)
    windows = []
    for document in rng.sample(documents, min(len(documents), count)):
        first = rng.randrange(max(1, len(document) - 4000))
        windows.append(document[first : first + 6000])
    return windows
