"""House rules for imports and names of files: each imports what is below, and what it needs."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from child_process import run_to_end
from house_files import (
    FILES,
    NATIVE,
    PROGRAMS,
    ROOT,
    SOURCE,
    TESTS,
    expect_none,
    expect_only,
    nodes,
)
from house_levels import (
    KNOWN_CIRCLES,
    KNOWN_UPWARD_IMPORTS,
    LEVELS,
    SAME_NAMES,
    SUBLEVELS,
    TORCH_FREE,
)


def dotted_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {dotted_name(path) for path in FILES} - {"quire"}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def modules_in_strings(path: Path) -> Iterator[tuple[int, str]]:
    """Modules that a file names in strings, for importlib; not those that it runs with -m."""
    lists = [node.elts for node in nodes(path) if isinstance(node, ast.List)]
    runs = {
        after
        for elements in lists
        for before, after in itertools.pairwise(elements)
        if isinstance(before, ast.Constant) and before.value == "-m"
    }
    for node in nodes(path):
        if isinstance(node, ast.Constant) and node.value in MODULES and node not in runs:
            yield node.lineno, str(node.value)


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Every `quire` module that a file imports: at the top, in functions, for typing, by name."""
    yield from modules_in_strings(path)
    for node in nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "quire":
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            if node.module == "quire":
                for alias in node.names:
                    yield node.lineno, f"quire.{alias.name}"
            elif node.module is not None and node.module.startswith("quire."):
                yield node.lineno, node.module


MOVE_DOWN = "move what is needed to a lower room, or pass it in as an argument"


def wrong_imports(path: Path) -> Iterator[str]:
    room = room_of(module_name(path))
    if room not in LEVELS:
        yield f"{path}: {room} has no level: add it to LEVELS and to the table of ARCHITECTURE.md"
        return
    for line, module in imported_modules(path):
        other = room_of(module)
        if other not in LEVELS:
            yield f"{path}:{line}: {module} has no level: import a module that there is"
        elif other != room and LEVELS[other] >= LEVELS[room]:
            levels = f"(level {LEVELS[room]}) imports {other} (level {LEVELS[other]})"
            yield f"{path}:{line}: {room} {levels}: {MOVE_DOWN}"


def sub_room_of(module: str, room: str) -> str:
    """The longest name in a room's table that holds a module, or else its own name there."""
    inner = module.removeprefix(f"quire.{room}.")
    names = [name for name in SUBLEVELS[room] if f"{inner}.".startswith(f"{name}.")]
    return max(names, key=len, default=inner)


def upward_imports(room: str) -> Iterator[tuple[str, str]]:
    """Pairs of modules of one room whose sub-rooms' levels forbid the import."""
    levels = SUBLEVELS[room]
    for module, imported in import_graph().items():
        if not module.startswith(f"quire.{room}."):
            continue
        own = sub_room_of(module, room)
        for target in imported:
            other = sub_room_of(target, room)
            if other != own and levels.get(other, -1) >= levels[own]:
                yield module, target


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """Modules of the package, and those that each one imports at any depth of its code."""
    modules = {dotted_name(path): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        graph[module] = {name for _, name in modules_in_strings(path) if name != module}
        for node in nodes(path):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                full = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in modules else node.module for name in full]
            else:
                continue
            graph[module].update(name for name in names if name in modules)
    return graph


def reachable(start: str) -> set[str]:
    graph, found, todo = import_graph(), set[str](), [start]
    while todo:
        for name in graph[todo.pop()] - found:
            found.add(name)
            todo.append(name)
    return found


def test_rooms_import_downwards() -> None:
    expect_none(fault for path in FILES for fault in wrong_imports(path))


@pytest.mark.parametrize("room", SUBLEVELS)
def test_each_part_of_a_room_has_a_level(room: str) -> None:
    modules = [dotted_name(path) for path in FILES if path.name != "__init__.py"]
    parts = {sub_room_of(m, room) for m in modules if m.startswith(f"quire.{room}.")}
    expect_only(parts, set(SUBLEVELS[room]), f"put it in a sub-room of {room}, or in SUBLEVELS")


def test_sub_rooms_import_downwards() -> None:
    found = {pair for room in SUBLEVELS for pair in upward_imports(room)}
    upward = (f"{a} imports {b}, not below it" for a, b in sorted(found - KNOWN_UPWARD_IMPORTS))
    expect_none(upward, MOVE_DOWN)
    expect_none(
        f"{a} no longer imports {b}: delete it from KNOWN_UPWARD_IMPORTS"
        for a, b in sorted(KNOWN_UPWARD_IMPORTS - found)
    )


def test_no_modules_import_each_other_in_a_circle() -> None:
    reached = {module: reachable(module) for module in import_graph()}
    circles = {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in reached
        if module in reached[module]
    }
    found = (f"a circle: {' '.join(c)}" for c in sorted(circles - KNOWN_CIRCLES))
    expect_none(found, "move what they share to a module that imports none of them")
    expect_none(f"gone, delete it: {' '.join(c)}" for c in sorted(KNOWN_CIRCLES - circles))


@functools.cache
def top_names(path: Path) -> set[str]:
    """What a module defines, without running it; more than that where functions have own names."""
    found = set[str]()
    for node in nodes(path):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {alias.asname or alias.name for alias in names}
    return found


def missing_imports(path: Path) -> Iterator[str]:
    modules: dict[str, Path] = {}
    for node in nodes(path):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("quire"):
            continue
        module = SOURCE.parent.joinpath(*str(node.module).split("."))
        files = (module.with_suffix(".py"), module / "__init__.py")
        known = {name for file in files if file.is_file() for name in top_names(file)}
        for alias in node.names:
            file = module / f"{alias.name}.py"
            if file.is_file():
                modules[alias.asname or alias.name] = file
            elif alias.name not in known and not (module / alias.name).is_dir():
                yield f"{path}:{node.lineno}: {node.module} has no {alias.name}"
    for node in nodes(path):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in modules:
                if attribute not in top_names(modules[name]) and not attribute.startswith("__"):
                    yield f"{path}:{node.lineno}: {name} has no {attribute}"


def test_programs_use_names_that_there_are() -> None:
    """Benchmarks run seldom, and mypy reads neither them nor tests, some of which need a GPU."""
    expect_none(fault for path in (*PROGRAMS, *TESTS) for fault in missing_imports(path))


def test_no_two_files_have_one_name() -> None:
    folders: dict[str, set[str]] = {}
    for path in (*FILES, *NATIVE):
        folder = path.parent.relative_to(SOURCE).as_posix().replace(".", "")
        folders.setdefault(path.name, set()).add(folder)
    shared = {name: found for name, found in folders.items() if len(found) > 1}
    shared.pop("__init__.py")
    found, known = (
        {f"{name} in {' and in '.join(sorted(folders))}" for name, folders in files.items()}
        for files in (shared, SAME_NAMES)
    )
    expect_only(found, known, "give the new file a name of its own")


def test_the_levels_are_those_of_the_architecture() -> None:
    """Rooms are folders; the modules beside them share a line of its table."""
    table = re.findall(r"^\| (\d) \| (.*?) \|", (ROOT / "ARCHITECTURE.md").read_text(), re.M)
    folders = {
        f"{name}/ at level {level}"
        for level, cell in table
        for name in re.findall(r"`(\w+)/`", cell)
    }
    names = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    fix = "correct the table of rooms in ARCHITECTURE.md"
    expect_only({f"{name}/ at level {LEVELS[name]}" for name in names}, folders, fix)
    modules = {path.stem for path in SOURCE.glob("[!_]*.py")}
    expect_only(modules, {name for _, cell in table for name in re.findall(r"`(\w+)`", cell)}, fix)


def test_torch_free_rooms_import_without_torch() -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        "sys.modules['torch'] = None  # any import of it now fails\n"
        f"for name in {TORCH_FREE!r}:\n"
        "    module = importlib.import_module(name)\n"
        "    if name != 'quire':\n"
        "        for info in pkgutil.walk_packages(getattr(module, '__path__', []), name + '.'):\n"
        "            importlib.import_module(info.name)\n"
    )
    expect_to_run(code, "import torch where it is used, in a room that may, not at the top")


def expect_to_run(code: str, fix: str) -> None:
    """Fail with the traceback of the program and the fix, unless it runs to its end."""
    done = run_to_end([sys.executable, "-c", code])
    assert done.returncode == 0, f"{done.stderr}\n{fix}"


@pytest.mark.parametrize(
    ("modules", "unneeded"),
    [
        # a tenth of a second for a server's parent, and for each of its workers
        ("quire.cli.serve, quire.server.worker", ["numpy", "quire.models"]),
        ("quire.llm", ["quire.server", "quire.gguf.gguf_config"]),
    ],
)
def test_starts_import_what_they_need(modules: str, unneeded: list[str]) -> None:
    code = (
        f"import sys\n"
        f"sys.modules |= dict.fromkeys({unneeded})  # any import of them now fails\n"
        f"import {modules}"
    )
    expect_to_run(code, "import the module in the function that needs it, not at the top")


def test_import_takes_milliseconds() -> None:
    code = (
        "import time; begin = time.process_time(); import quire\n"
        "print((time.process_time() - begin) * 1000)"
    )
    runs = [float(run_to_end([sys.executable, "-c", code], check=True).stdout) for _ in range(3)]
    assert min(runs) < 100.0, "import in functions what `import quire` itself does not need"


def test_a_module_imported_by_its_name_counts_as_imported(tmp_path: Path) -> None:
    file = tmp_path / "planted.py"
    file.write_text("import_module('quire.llm'); run([sys.executable, '-m', 'quire.cli.serve'])")
    assert list(modules_in_strings(file)) == [(1, "quire.llm")]
