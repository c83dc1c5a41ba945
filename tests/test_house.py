"""The house rules: what every file has to keep to."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import house_words
import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "quire"

# A room imports from rooms of a lower level, and from itself. Modules at the root are rooms too.
LEVELS = {
    "version": -3, "array_types": -3, "dtypes": -3, "errors": -2, "processes": -2, "options": -1,
    "compat": 0, "background": 0, "line_writer": -1, "logs": 0, "model_folder": -1, "config": 0.5,
    "last_use": -1, "fair_queue": 0.5, "shared_memory": 0, "framed_child": 0.5,
    "killable_process": 0.6, "gguf": 0, "hub": 1, "kernels": 1,
    "core": 2,
    "tokenizer": 3, "quantization": 3, "kvcache": 3, "sampling": 3,
    "scheduler": 4, "grammar": 4, "layers": 4, "bench": 4,
    "models": 5,
    "engine": 6, "compress": 6,
    "server": 7,
    "llm_options": 7, "llm": 8, "cli": 9, "__init__": 10, "__main__": 10,
}  # fmt: skip

# The same inside rooms: a sub-room or a module at a room's root imports from lower ones and itself.
SUBLEVELS = {
    "engine": {"core": 0, "gpu": 1, "startup": 2, "frontend": 3, "processes": 4, "profile": 4},
    "server": {
        "http": 0, "parsing": 0, "settings": 1, "system_fingerprint": 1,
        "admission": 2, "model_registry": 3, "model_loading": 4,
        "api.common": 5, "api.openai": 6, "api.anthropic": 6, "api.llama_cpp": 6, "api.ollama": 6,
        "ops": 7, "app": 8, "uvicorn_server": 8, "worker": 9,
    },
    "kernels.triton": {
        "launch": 0, "step": 1, "sampling": 1, "attention": 1, "gemm": 2, "hopper": 3,
        "ops": 4, "invariant": 5, "triton_operations": 6, "compile": 7,
    },
    "models": {
        "checkpoints": 0, "checkpoint_formats": 1, "families": 1, "config": 2, "prepared": 3,
        "loading": 4, "runtimes": 4,
    },
}  # fmt: skip

# Imports that break this today. Whoever corrects one deletes its line; none may be added.
KNOWN_UPWARD_IMPORTS: set[tuple[str, str]] = set()

# Circles of imports between modules, today. Whoever breaks one deletes its line.
KNOWN_CIRCLES: set[tuple[str, str]] = set()

# Files of one name, where the folders make the difference plain.
SAME_NAMES = {
    "options.py": {"", "cli"},  # what an option is; options of the command line
    "chat.py": {"cli", "server/api/openai"},  # `quire chat`; the route of chat completions
    "demo.py": {"cli", "bench"},  # `quire demo`; the requests that it sends
}

TORCH_FREE = [
    "quire",
    "quire.cli",
    "quire.compat",
    "quire.config",
    "quire.errors",
    "quire.hub",
    "quire.core",
    "quire.tokenizer",
    "quire.quantization",
    "quire.scheduler",
    "quire.grammar",
    "quire.kvcache.block_pool",
    "quire.kvcache.kv_cache_manager",
    "quire.kernels.formats",
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
    "quire.engine.processes.server_supervisor",
    "quire.sampling.sampler",
    "quire.llm",
    "quire.logs",
    "quire.server",
    "quire.bench",
]


def dotted_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


FILES = sorted(SOURCE.rglob("*.py"))
NATIVE = sorted(path for end in ("*.cpp", "*.h") for path in SOURCE.rglob(end))
MODULES = {dotted_name(path) for path in FILES} - {"quire"}
PROGRAMS = sorted(
    path for room in ("training", "benchmarks") for path in (ROOT / room).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))


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


def expect_none(faults: Iterable[str], fix: str = "") -> None:
    """Fail with one line per fault. fix: what to do, where the faults do not say it themselves."""
    found = list(faults)
    assert not found, "\n".join([*found, fix]).rstrip()


def expect_only(found: set[str], allowed: set[str], fix: str) -> None:
    """Fail unless the two are equal. fix: what to do about an item that is not allowed."""
    expect_none((f"not allowed: {name}" for name in sorted(found - allowed)), fix)
    gone = (f"no longer there: {name}" for name in sorted(allowed - found))
    expect_none(gone, "delete it where it is listed")


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
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
    runs = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(runs) < 100.0, "import in functions what `import quire` itself does not need"


def test_files_say_what_they_own() -> None:
    silent = [path for path in (*FILES, *PROGRAMS) if not ast.get_docstring(parsed(path))]
    expect_none((f"{path} has no docstring" for path in silent), "say there what the file owns")


def old_words_in(path: Path) -> Iterator[str]:
    """Old words among the parts of a file's name and of each identifier in it."""
    old = {word for words in house_words.OLD_WORDS for word in words.split()}
    if path in NATIVE:
        code = re.sub(r"//.*|/\*.*?\*/|\"(\\.|[^\"\\])*\"", "", path.read_text(encoding="utf-8"))
        names = re.findall(r"[A-Za-z_]\w*", code)
    else:
        with path.open("rb") as file:
            names = [t.string for t in tokenize.tokenize(file.readline) if t.type == tokenize.NAME]
    for before, name in itertools.pairwise(("", path.stem, *names)):
        if not {name, f"{before}.{name}"} & house_words.ALLOWED:
            parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
            yield from {part.lower() for part in parts} & old


@pytest.mark.parametrize(
    ("files", "known"),
    [
        (FILES, house_words.KNOWN),
        (NATIVE, house_words.KNOWN_IN_NATIVE),
        (PROGRAMS, house_words.KNOWN_IN_PROGRAMS),
        (TESTS, house_words.KNOWN_IN_TESTS),
    ],
    ids=["src", "native", "programs", "tests"],
)
def test_names_are_the_terms_of_the_field(files: list[Path], known: dict[str, int]) -> None:
    found = {path: Counter(old_words_in(path)) for path in files}
    total = sum(found.values(), Counter[str]())
    instead = {w: new for words, new in house_words.OLD_WORDS.items() for w in words.split()}
    expect_none(
        f"{path}: {words[word]} of {total[word]} names with {word!r}, at most "
        f"{known.get(word, 0)} are left: say {instead[word]}"
        for path, words in found.items()
        for word in words
        if total[word] > known.get(word, 0)
    )


def old_phrases_in(path: Path) -> Iterator[str]:
    """Old phrases in a file, also those that are broken over lines of text or of a comment."""
    text = path.read_text(encoding="utf-8").lower()
    for phrase, instead in house_words.OLD_TEXT.items():
        for match in re.finditer(phrase.replace(" ", r"[\s#/]+"), text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: {match[0]!r}: say {instead}"


def test_no_file_has_old_phrases() -> None:
    """Code, comments and docstrings, C++ and the pages."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
    files = [path for path in (*FILES, *PROGRAMS, *TESTS) if path.stem != house_words.__name__]
    expect_none(fault for path in (*files, *NATIVE, *pages) for fault in old_phrases_in(path))


@pytest.mark.parametrize("text", ["WI{}SHES", "what\n    # is{} so", "// whose\n// they{} are"])
def test_an_old_phrase_is_found(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n" + text.format(""))
    assert [fault.split(": ")[0] for fault in old_phrases_in(page)] == [f"{page}:2"]
    page.write_text(text.format("x"))
    assert list(old_phrases_in(page)) == []


def test_texts_are_plain() -> None:
    """Messages, help and docstrings."""
    expect_none(
        f"{path}:{node.lineno}: {node.value.strip()[:60]!r}: say {instead}"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for phrase, instead in house_words.OLD_PHRASES.items()
        if re.search(phrase, node.value)
    )


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the text of each docstring in a file."""
    for node in nodes(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            yield from [(node.body[0].lineno, text)] if text else []


# A question, the manner or a field before the thing itself.
EVASIONS = (
    r"(What|How|Whose|Where|Who|Which|The same|As (?:far|which)|So (?:many|that))\b|[a-z]\w*: "
)


def evasive_docstrings(path: Path) -> Iterator[str]:
    for line, text in docstrings(path):
        if begin := re.match(EVASIONS, text):
            yield f"{path}:{line}: begins with {begin[0]!r}: name the thing, or what it returns"


def public_definitions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Functions, classes and their methods whose names are public."""
    for node in body:
        is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if is_definition and not node.name.startswith("_"):
            yield node
            yield from public_definitions(node.body if isinstance(node, ast.ClassDef) else [])


def test_public_names_have_docstrings() -> None:
    silent = (
        f"{path}:{node.lineno}: {node.name} has no docstring"
        for path in FILES
        for node in public_definitions(parsed(path).body)
        if not ast.get_docstring(node)
        and not any("overload" in ast.unparse(each) for each in node.decorator_list)
    )
    expect_none(silent, "say what it is or returns, with shapes and units")


# Functions of one body that stay apart, since the names in it mean other things in each module.
SAME_BODIES = {
    "normalized_rows",  # the reference; with the GPU's rms_norm
    "stop",  # of two timers of a connection
}


def test_no_function_is_written_twice() -> None:
    """Of bodies with three statements or more."""
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in nodes(path):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            body = node.body[1:] if ast.get_docstring(node) else node.body
            size = sum(isinstance(each, ast.stmt) for line in body for each in ast.walk(line))
            if size >= 3 and node.name not in SAME_BODIES:
                text = "\n".join(ast.dump(line) for line in body)
                homes.setdefault(text, []).append(f"{path}:{node.lineno} {node.name}")
    twice = (f"one body: {', '.join(where)}" for where in homes.values() if len(where) > 1)
    expect_none(twice, "keep one, in the lower room, and call it")


def test_docstrings_name_the_thing() -> None:
    expect_none(fault for path in (*FILES, *PROGRAMS) for fault in evasive_docstrings(path))


@pytest.mark.parametrize("begin", ["What", "size: "])
def test_an_evasive_docstring_is_found(tmp_path: Path, begin: str) -> None:
    file = tmp_path / "planted.py"
    file.write_text(f'"""Whole numbers."""\n\ndef f():\n    """{begin} it\n    is."""\n')
    (fault,) = evasive_docstrings(file)
    assert fault.startswith(f"{file}:4: begins with {begin!r}")


NO_PICKLE = "a pickle can run any code: use msgspec, or safetensors for tensors"
FORBIDDEN_CALLS = {
    "hasattr": "test the type, or give the object a method",
    "globals": "pass what is needed as an argument",
    "eval": "never evaluate text",
    "exec": "never evaluate text",
    "torch.load": NO_PICKLE,
}
FORBIDDEN_IMPORTS = {
    **dict.fromkeys(("pickle", "cloudpickle", "dill", "marshal", "shelve"), NO_PICKLE),
    "transformers": "import it in tests and programs only, where it is the reference",
}


def forbidden_constructs(path: Path) -> Iterator[str]:
    # programs may measure against transformers; the package must do without
    allowed = {"transformers"} if path in PROGRAMS else set()
    for node in nodes(path):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{path}:{node.lineno}: bare except: name the exceptions"
        elif isinstance(node, ast.Call):
            if fix := FORBIDDEN_CALLS.get(ast.unparse(node.func)):
                yield f"{path}:{node.lineno}: {ast.unparse(node.func)}(): {fix}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
            roots = {str(name).split(".")[0] for name in names}
            for root in roots & FORBIDDEN_IMPORTS.keys() - allowed:
                yield f"{path}:{node.lineno}: imports {root}: {FORBIDDEN_IMPORTS[root]}"


def test_forbidden_constructs() -> None:
    expect_none(fault for path in (*FILES, *PROGRAMS) for fault in forbidden_constructs(path))


def test_no_unfinished_marks() -> None:
    marks = ("TODO", "FIXME", "NotImplementedError")
    texts = {path: path.read_text() for path in (*FILES, *PROGRAMS)}
    found = (
        f"{path} says {mark}" for path, text in texts.items() for mark in marks if mark in text
    )
    expect_none(
        found, "finish it, or refuse by an error of errors.py that names what to do instead"
    )


def test_a_module_imported_by_its_name_counts_as_imported(tmp_path: Path) -> None:
    file = tmp_path / "planted.py"
    file.write_text("import_module('quire.llm'); run([sys.executable, '-m', 'quire.cli.serve'])")
    assert list(modules_in_strings(file)) == [(1, "quire.llm")]


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by these names, and two of one name stop a run of everything."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    expect_none(
        (f"{count} files {name}" for name, count in names.items() if count > 1), "rename one"
    )


def test_no_test_imports_from_conftest() -> None:
    """Python keeps one module of that name, so two folders' tests could not run together."""
    imports = re.compile(r"^(?:from|import) conftest\b", re.M)
    found = (str(path) for path in TESTS if imports.search(path.read_text()))
    expect_none(found, "use a fixture, or a module with a name of its own")


def test_one_module_chooses_tritons_interpreter() -> None:
    """Triton reads the variable when it is imported; a test file would set it too late."""
    setting = re.compile(r"environ\[.TRITON_INTERPRET.\] *=")
    found = [path for path in (ROOT / "tests").rglob("*.py") if setting.search(path.read_text())]
    names = {path.relative_to(ROOT / "tests").as_posix() for path in found}
    expect_only(names, {"conftest.py"}, "delete the line: conftest.py sets it for all tests")


def test_weight_types_are_looked_up_in_one_table() -> None:
    """On a GPU: `linear_of` in linear_table.py."""
    chain = re.compile(r"isinstance\([^()]*(Fp8Weight|Int8Weight|Int4W\w+|CodebookWeight)")
    files = (SOURCE / "kernels" / "triton").rglob("*.py")
    found = (
        f"{path}: isinstance of {t}" for path in files for t in chain.findall(path.read_text())
    )
    expect_none(found, "make it a method of its GpuLinear, and call linear_of(weight)")


def test_array_types_are_named_in_one_file() -> None:
    texts = {path: path.read_text() for path in (*FILES, *PROGRAMS, *TESTS)}
    found = {
        path.name for path, text in texts.items() if re.search("^import numpy.typing", text, re.M)
    }
    expect_only(found, {"array_types.py"}, "import the alias from quire.array_types")
    names = re.findall(r"^(\w+) = ", texts[SOURCE / "array_types.py"], re.M)
    named = re.compile(rf"^(?:class |type )?({'|'.join(names)})\b(?: =|[:(\[])", re.M)
    again = (
        f"{path} defines {name}"
        for path in FILES
        if path.name != "array_types.py"
        for name in named.findall(texts[path])
    )
    expect_none(again, "import the alias from quire.array_types")


def test_prompts_are_encoded_in_one_file() -> None:
    """Where text that callers send becomes token ids, and far too long text is refused."""
    encodes = re.compile(r"tokenizer\.encode\b|\.encode_(prompt|chat)\b")
    parts = ("server", "engine", "cli", "llm.py")
    files = [path for path in FILES if path.relative_to(SOURCE).parts[0] in parts]
    found = {path.name for path in files if encodes.search(path.read_text())}
    # the marks of reasoning are the parser's, not a caller's
    known = {"prompt_encoding.py", "reasoning_parser.py"}
    expect_only(found, known, "call a function of engine/frontend/prompt_encoding.py")


# Files that may read the clock on the wall, which jumps: for dates that are shown or stored.
WALL_CLOCK = {
    "access_log.py", "cache.py", "embeddings_reply.py", "generation_job.py", "live_view.py",
    "metrics_route.py", "models_route.py", "ollama_models.py", "ollama_reply.py",
    "request_record.py", "template_filters.py",
}  # fmt: skip


def test_durations_are_measured_on_the_monotonic_clock() -> None:
    wall = re.compile(r"\btime\.time(_ns)?\b|from time import .*\btime\b|datetime\.(now|utcnow)\b")
    found = {path.name for path in FILES if wall.search(path.read_text())}
    expect_only(found, WALL_CLOCK, "use time.monotonic or time.perf_counter, which never jump")
