"""The house rules: what every file keeps to, whoever wrote it."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "quire"

# A room imports from rooms of a lower level, and from itself. Modules at the root are rooms too.
LEVELS = {
    "version": -3, "errors": -2, "processes": -2, "options": -1,
    "background": 0, "config": 0, "logs": 0,
    "hub": 1, "kernels": 1,
    "core": 2,
    "tokenizer": 3, "quantization": 3, "kvcache": 3, "sampling": 3,
    "scheduler": 4, "grammar": 4, "layers": 4, "bench": 4,
    "models": 5,
    "engine": 6,
    "server": 7,
    "llm": 8, "cli": 9, "__init__": 10, "__main__": 10,
}  # fmt: skip

TORCH_FREE = [
    "quire",
    "quire.cli",
    "quire.config",
    "quire.errors",
    "quire.hub",
    "quire.core",
    "quire.tokenizer",
    "quire.scheduler",
    "quire.grammar",
    "quire.kvcache.block_pool",
    "quire.kvcache.kv_cache_manager",
    "quire.kernels.ragged_batch",
    "quire.kernels.sampling_math",
    "quire.kernels.cpu.native",
    "quire.kernels.cpu.row_ops",
    "quire.kernels.cpu.native_structs",
    "quire.engine.frontend.async_engine",
    "quire.engine.core.input_batch",
    "quire.engine.startup.null_engine",
    "quire.engine.core.pooler",
    "quire.engine.processes.engine_process",
    "quire.engine.core.running_requests",
    "quire.engine.startup.start_engine",
    "quire.engine.processes.supervisor",
    "quire.sampling.sampler",
    "quire.llm",
    "quire.logs",
    "quire.server",
    "quire.bench",
]

FILES = sorted(SOURCE.rglob("*.py"))
PROGRAMS = sorted(
    path for room in ("training", "benchmarks") for path in (ROOT / room).rglob("*.py")
)


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(parsed(path)))


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Every `quire` module that a file imports: at the top, inside functions, or for typing."""
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


def wrong_imports(path: Path) -> Iterator[str]:
    room = room_of(module_name(path))
    for line, module in imported_modules(path):
        other = room_of(module)
        if other not in LEVELS:
            yield f"{path}:{line}: {module} is in no room of the table"
        elif other != room and LEVELS[other] >= LEVELS[room]:
            levels = f"(level {LEVELS[room]}) imports {other} (level {LEVELS[other]})"
            yield f"{path}:{line}: {room} {levels}"


def expect_none(faults: Iterable[str]) -> None:
    found = list(faults)
    assert not found, "\n".join(found)


def test_rooms_import_downwards() -> None:
    expect_none(fault for path in FILES for fault in wrong_imports(path))


def test_the_levels_are_those_of_the_architecture() -> None:
    """Rooms are folders; the modules beside them share a line of its table."""
    table = re.findall(r"^\| (\d) \| (.*?) \|", (ROOT / "ARCHITECTURE.md").read_text(), re.M)
    told = {room: int(level) for level, cell in table for room in re.findall(r"`(\w+)/`", cell)}
    assert told == {
        path.parent.name: LEVELS[path.parent.name] for path in SOURCE.glob("*/__init__.py")
    }


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_import_takes_milliseconds() -> None:
    code = (
        "import time; begin = time.process_time(); import quire\n"
        "print((time.process_time() - begin) * 1000)"
    )
    runs = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(runs) < 100.0


def test_files_say_what_they_own() -> None:
    silent = [path for path in (*FILES, *PROGRAMS) if not ast.get_docstring(parsed(path))]
    expect_none(f"{path} has no docstring" for path in silent)


FORBIDDEN_CALLS = {
    "hasattr": "test the type, or give the object a method",
    "globals": "pass what is needed as an argument",
    "eval": "never evaluate text",
    "exec": "never evaluate text",
}
PICKLES = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}


def forbidden_constructs(path: Path) -> Iterator[str]:
    # programs may measure against transformers; the package must do without
    forbidden_imports = PICKLES if path in PROGRAMS else PICKLES | {"transformers"}
    for node in nodes(path):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{path}:{node.lineno}: bare except"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if fix := FORBIDDEN_CALLS.get(node.func.id):
                yield f"{path}:{node.lineno}: {node.func.id}(): {fix}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if ast.unparse(node.func) == "torch.load":
                yield f"{path}:{node.lineno}: torch.load"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
            roots = {str(name).split(".")[0] for name in names}
            if roots & forbidden_imports:
                yield f"{path}:{node.lineno}: imports {roots}"


def test_forbidden_constructs() -> None:
    expect_none(fault for path in (*FILES, *PROGRAMS) for fault in forbidden_constructs(path))


def test_no_unfinished_marks() -> None:
    marks = ("TODO", "FIXME", "NotImplementedError")
    texts = {path: path.read_text() for path in (*FILES, *PROGRAMS)}
    expect_none(
        f"{path} says {mark}" for path, text in texts.items() for mark in marks if mark in text
    )


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by these names, and two of one name stop a run of everything."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)
