"""Every test that needs a GPU has the mark `gpu`, by which runs on a GPU choose tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def needs_gpu(node: ast.AST, gpu_names: set[str], shared: Mapping[str, ast.expr]) -> bool:
    """Whether a mark or statement skips tests where there is no GPU, or not a certain one.

    gpu_names: of values that tell whether there is one. shared: expressions by their names.
    """
    if isinstance(node, ast.Name) and node.id in shared:
        return needs_gpu(shared[node.id], gpu_names, {})
    match node:
        case ast.Call(func=ast.Attribute(attr="skipif"), args=[condition, *_]):
            pass
        case ast.If(test=condition) if "pytest.skip(" in "".join(map(ast.unparse, node.body)):
            pass
        case _:
            return False
    denied = [
        each
        for each in ast.walk(condition)
        if (isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.Not))
        or (isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.NotEq))
    ]
    names = {name.id for each in denied for name in ast.walk(each) if isinstance(name, ast.Name)}
    return bool(names & gpu_names) or any("torch.cuda" in ast.unparse(each) for each in denied)


def unmarked_tests(tree: ast.Module) -> Iterator[str]:
    """The tests of a file that need a GPU and lack the mark, by name; "" for the whole file."""
    shared = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = re.compile(r"torch\.cuda|\bON_GPU\b")
    gpu_names = {"ON_GPU"} | {n for n, value in shared.items() if found.search(ast.unparse(value))}

    def is_marked(marks: Iterable[ast.expr]) -> bool:
        texts = [ast.unparse(shared.get(m.id, m) if isinstance(m, ast.Name) else m) for m in marks]
        return any("mark.gpu" in text for text in texts)

    if is_marked([shared["pytestmark"]] if "pytestmark" in shared else []):
        return
    in_file = ast.walk(shared["pytestmark"]) if "pytestmark" in shared else []
    if any(needs_gpu(node, gpu_names, shared) for node in (*tree.body, *in_file)):
        yield ""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        body = () if isinstance(node, ast.ClassDef) else ast.walk(node)
        parts = [*node.decorator_list, *body]
        needs = any(needs_gpu(part, gpu_names, shared) for part in parts)
        if needs and not is_marked(node.decorator_list):
            yield node.name


def test_tests_that_need_a_gpu_are_marked() -> None:
    """Each by itself or by its file."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(TESTS.rglob("test_*.py"))}
    found = [f"{path}: {name}" for path, tree in trees.items() for name in unmarked_tests(tree)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@pytest.mark.skipif(not torch.cuda.is_available(), reason='x')\ndef test_a(): ...", True),
        ("@pytest.mark.gpu\n@pytest.mark.skipif(not ON_GPU, reason='x')\ndef test_a(): ...", False),
        ("@pytest.mark.skipif(ON_GPU, reason='x')\ndef test_a(): ...", False),
        ("H = ON_GPU and 1\nM = pytest.mark.skipif(not H)\n@M\ndef test_a(): ...", True),
        ("pytestmark = pytest.mark.gpu\nM = pytest.mark.skipif(not ON_GPU)\n@M\ndef test_a(): ...",
         False),
        ("def test_a():\n    if not ON_GPU:\n        pytest.skip('x')", True),
        ("@pytest.mark.gpu\ndef test_b(): ...\ndef test_a():\n    if torch.cuda.get_c() != 9:\n"
         "        pytest.skip('x')", True),
        ("if not torch.cuda.is_available():\n    pytest.skip('x', allow_module_level=True)", True),
    ],
)  # fmt: skip
def test_a_test_without_the_mark_is_found(text: str, *, found: bool) -> None:
    assert bool(list(unmarked_tests(ast.parse(text)))) == found
