"""House rules for code: docstrings, forbidden constructs, and what is done in one place alone."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import pytest
from house_files import (
    FILES,
    PROGRAMS,
    ROOT,
    SOURCE,
    TESTS,
    expect_none,
    expect_only,
    nodes,
    parsed,
)

from quire.config import iter_options


def test_files_say_what_they_own() -> None:
    silent = [path for path in (*FILES, *PROGRAMS) if not ast.get_docstring(parsed(path))]
    expect_none((f"{path} has no docstring" for path in silent), "say there what the file owns")


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


# Messages with the flag of an engine's setting: they are for people who start a server, too.
WITH_FLAGS = ("server/", "cli/", "compat/", "bench/", "engine/frontend/input_processor.py")


def test_messages_name_settings_as_python_has_them() -> None:
    """The command line makes flags of them (`CommandParser.in_flags`)."""
    flags = [f"--{option.name.replace('_', '-')}" for _, option in iter_options()]
    named = re.compile(rf"(?:{'|'.join(flags)})(?![\w-])")
    expect_none(
        f"{path}:{node.lineno}: {found[0]} in a message: write setting='value', or its name"
        for path in FILES
        if not path.relative_to(SOURCE).as_posix().startswith(WITH_FLAGS)
        for node in nodes(path)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and (found := named.search(node.value))
        and cleandoc(node.value) not in {text for _, text in docstrings(path)}
    )


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
    "asyncio.wait_for": "in Python 3.11 it may swallow a cancellation: use asyncio.timeout",
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


def test_no_test_waits_for_a_program_without_a_limit() -> None:
    waits = re.compile(r"subprocess\.(run|call|check_call|check_output)$")
    found = (
        f"{path}:{node.lineno}: {ast.unparse(node.func)}"
        for path in TESTS
        for node in nodes(path)
        if isinstance(node, ast.Call) and waits.match(ast.unparse(node.func))
        if not any(keyword.arg == "timeout" for keyword in node.keywords)
    )
    expect_none(found, "call run_to_end of child_process.py")


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
    "access_log.py", "cache.py", "generation_job.py", "live_view.py",
    "metrics_route.py", "models_route.py", "ollama_models.py", "ollama_reply.py",
    "request_record.py", "template_filters.py",
}  # fmt: skip


def test_durations_are_measured_on_the_monotonic_clock() -> None:
    wall = re.compile(r"\btime\.time(_ns)?\b|from time import .*\btime\b|datetime\.(now|utcnow)\b")
    found = {path.name for path in FILES if wall.search(path.read_text())}
    expect_only(found, WALL_CLOCK, "use time.monotonic or time.perf_counter, which never jump")
