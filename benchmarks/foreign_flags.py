"""The options of other servers' command lines, read from their sources, as a test's list of names.

    python foreign_flags.py --vllm vllm-0.33.0 --llama-cpp llama.cpp

Writes tests/compat/flags_of_*.txt, of `vllm serve`, of llama-server, and of llama-cli with
llama-completion: one option a line, its flags with "=" where a value follows
(tests/compat/test_foreign_flags.py). Run it for a newer version; the test then names what the table
lacks.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests" / "compat"
Option = tuple[list[str], bool]  # its flags, and whether a value follows


def vllm_options(source: Path) -> Iterator[Option]:
    """The options of `vllm serve`."""
    engine = ast.parse((source / "vllm/engine/arg_utils.py").read_text())
    kinds = {**_fields(engine, "EngineArgs"), **_fields(engine, "AsyncEngineArgs")}
    for call in _added(engine):
        flags = _flags(call)
        yield flags, not _is_switch(call, kinds.get(_name(flags), ""))
    frontend = ast.parse((source / "vllm/entrypoints/common/cli_args.py").read_text())
    fields = {**_fields(frontend, "BaseFrontendArgs"), **_fields(frontend, "FrontendArgs")}
    for name, kind in fields.items():
        yield ["--" + name.replace("_", "-")], not kind.startswith("bool")
    for file in ("vllm/entrypoints/common/cli_args.py", "vllm/entrypoints/cli/serve.py"):
        for call in _added(ast.parse((source / file).read_text())):
            yield _flags(call), not _is_switch(call, "")


def _fields(tree: ast.Module, name: str) -> dict[str, str]:
    """The annotations of a class's fields."""
    (found,) = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name]
    fields = [node for node in found.body if isinstance(node, ast.AnnAssign)]
    return {ast.unparse(field.target): ast.unparse(field.annotation) for field in fields}


def _added(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if is_call and node.func.attr == "add_argument" and _flags(node):
            yield node


def _flags(call: ast.Call) -> list[str]:
    words = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
    return [word for word in words if isinstance(word, str) and word.startswith("-")]


def _name(flags: list[str]) -> str:
    long = next(flag for flag in flags if flag.startswith("--"))
    return long[2:].replace("-", "_")


def _is_switch(call: ast.Call, kind: str) -> bool:
    """Whether a flag takes no value. kind: the annotation of the option's field."""
    own = [ast.unparse(word.value) for word in call.keywords if word.arg == "action"]
    return any("store_" in action or "Boolean" in action for action in own) or bool(
        re.match(r"bool( \| None)?$", kind)
    )


def llama_options(source: Path, *tools: str) -> Iterator[Option]:
    """The options of tools of llama.cpp, as their pages list them."""
    for tool in tools:
        page = (source / "tools" / tool / "README.md").read_text()
        for text in re.findall(r"^\| `(-[^`]*)`", page, flags=re.MULTILINE):
            *most, last = re.split(r", (?=-)", text)
            last_flag, _, value = last.partition(" ")
            yield [*most, last_flag], bool(value)


def write(name: str, options: Iterator[Option]) -> None:
    """Write a list, each option once."""
    lines = {" ".join(f"{flag}{'=' * has_value}" for flag in flags) for flags, has_value in options}
    (TESTS / f"flags_of_{name}.txt").write_text("".join(f"{line}\n" for line in sorted(lines)))


def main() -> None:
    """Write the lists."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vllm", type=Path, required=True, help="vLLM's source tree")
    parser.add_argument("--llama-cpp", type=Path, required=True, help="llama.cpp's source tree")
    args = parser.parse_args()
    write("vllm", vllm_options(args.vllm))
    write("llama_server", llama_options(args.llama_cpp, "server"))
    write("llama_cli", llama_options(args.llama_cpp, "cli", "completion"))


if __name__ == "__main__":
    main()
