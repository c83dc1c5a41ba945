"""Every test that needs a GPU has the mark `gpu`, by which runs on a GPU choose tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import pytest
from gpu_marks import Capability, missing_gpu
from house_files import TESTS, expect_none, nodes

GPU = re.compile(r"cuda|gpu|hopper|capability", re.IGNORECASE)
LESS = (ast.NotEq, ast.Lt, ast.LtE, ast.NotIn)


def needless_skips(found: Iterable[ast.AST]) -> Iterator[int]:
    """Lines that skip or leave a test where there is no GPU, which the mark would do."""
    for node in found:
        match node:
            case ast.Call(func=ast.Attribute(attr="skipif"), args=[condition, *_]):
                found_here = lacks_gpu(condition)
            case ast.Call(func=ast.Attribute(attr="skipUnless"), args=[condition, *_]):
                found_here = lacks_gpu(ast.UnaryOp(ast.Not(), condition))
            case ast.If(test=condition, body=[first, *_]) if is_skip(first):
                found_here = lacks_gpu(condition)
            case ast.If(test=condition, orelse=[first, *_]) if is_skip(first):
                found_here = lacks_gpu(ast.UnaryOp(ast.Not(), condition))
            case ast.IfExp(test=condition, orelse=first) if is_skip(first):
                found_here = lacks_gpu(ast.UnaryOp(ast.Not(), condition))
            case _:
                continue
        if found_here:
            yield node.lineno


def is_skip(node: ast.AST) -> bool:
    """Whether this ends a test, as if it had passed or by pytest.skip."""
    match node:
        case ast.Return(value=None):
            return True
        case ast.Expr(value=inner):
            return is_skip(inner)
        case ast.Call(func=ast.Attribute(attr="skip") | ast.Name(id="skip")):
            return True
    return False


def lacks_gpu(condition: ast.expr) -> bool:
    """Whether a condition may be that there is no GPU, or one of another kind."""
    match condition:
        case ast.BoolOp(values=values):
            return any(map(lacks_gpu, values))
        case ast.UnaryOp(op=ast.Not(), operand=ast.UnaryOp(op=ast.Not(), operand=inner)):
            return lacks_gpu(inner)
        case ast.UnaryOp(op=ast.Not(), operand=ast.BoolOp(values=values)):
            return any(lacks_gpu(ast.UnaryOp(ast.Not(), value)) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return names_gpu(inner)
        case ast.Compare(ops=[op, *_], comparators=[other, *_]):
            is_none = ast.unparse(other) in ("0", "(0, 0)", "None")
            lacks = isinstance(op, LESS) or (is_none and isinstance(op, ast.Eq | ast.Is))
            return lacks and names_gpu(condition)
    return False


def names_gpu(expression: ast.expr) -> bool:
    names = re.findall(r"\w+", ast.unparse(expression))
    return any(map(GPU.search, names))


def test_tests_that_need_a_gpu_are_marked() -> None:
    found = (f"{path}:{line}" for path in TESTS for line in needless_skips(nodes(path)))
    expect_none(found, 'mark it with pytest.mark.gpu or gpu("Hopper"), which skips it')


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@pytest.mark.skipif(not torch.cuda.is_available(), reason='x')\ndef t(): ...", True),
        ("@pytest.mark.skipif(not HOPPER, reason='x')\ndef t(): ...", True),
        ("@pytest.mark.skipif(\n    A or not HOPPER,\n    reason='x',\n)\ndef t(): ...", True),
        ("@unittest.skipUnless(torch.cuda.is_available(), 'x')\ndef t(): ...", True),
        ("@pytest.mark.skipif(capability_here() < (9, 0), reason='x')\ndef t(): ...", True),
        ("pytestmark = pytest.mark.skipif(not (A and ON_GPU), reason='x')", True),
        ("@pytest.mark.skipif(capability_here() == (0, 0), reason='x')\ndef t(): ...", True),
        ("@pytest.mark.skipif(torch.version.cuda is not None, reason='x')\ndef t(): ...", False),
        ("if device == 'cuda' and torch.cuda.is_available():\n    pytest.skip('x')", False),
        ("@pytest.mark.skipif(ON_GPU, reason='x')\ndef t(): ...", False),
        ("@pytest.mark.skipif(not A, reason='cuda')\ndef t(): ...", False),
        ("if not ON_GPU:\n    pytest.skip('x')", True),
        ("if not ON_GPU: pytest.skip('x')", True),
        ("if ON_GPU:\n    run()\nelse:\n    pytest.skip('x')", True),
        ("run() if ON_GPU else pytest.skip('x')", True),
        ("def t():\n    if not ON_GPU:\n        return\n    run()", True),
        ("if ON_GPU:\n    pytest.skip('x')", False),
        ("if torch.cuda.get_c() != 9:\n    pytest.skip('x')", True),
        ("if not torch.cuda.is_available():\n    pytest.skip('x', allow_module_level=True)", True),
        ("if not ON_GPU:\n    run()", False),
    ],
)
def test_a_test_without_the_mark_is_found(text: str, *, found: bool) -> None:
    assert bool(list(needless_skips(ast.walk(ast.parse(text))))) == found


@pytest.mark.parametrize(
    ("marks", "capability", "missing"),
    [
        ([], (0, 0), None),
        ([pytest.mark.gpu], (0, 0), "CUDA"),
        ([pytest.mark.gpu], (7, 5), None),
        ([pytest.mark.gpu("FP8")], (8, 6), "FP8"),
        ([pytest.mark.gpu("FP8")], (8, 9), None),
        ([pytest.mark.gpu, pytest.mark.gpu("Hopper")], (10, 0), "Hopper"),
        ([pytest.mark.gpu("Hopper")], (9, 0), None),
    ],
)
def test_a_marked_test_runs_on_the_gpus_that_it_names(
    marks: list[pytest.MarkDecorator], capability: Capability, missing: str | None
) -> None:
    assert missing_gpu([each.mark for each in marks], capability) == missing
