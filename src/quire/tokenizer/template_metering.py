"""Bounds of a chat template's time: what is put into its compiled Python, and what that calls."""

from __future__ import annotations

import ast
import time

from jinja2.runtime import Context

from quire.background import is_hurried
from quire.tokenizer.template_work import HURRY_SHIFT, TemplateLimitError

MAX_CPU_SECONDS = 1.0
_TICKS_PER_LOOK = 8  # at the clock: most conversations end before the first


def metered(source: str, filename: str) -> ast.Module:
    """The syntax tree of a compiled template, with ticks and the prices of its operations."""
    tree: ast.Module = _Metering().visit(ast.parse(source, filename))
    return ast.fix_missing_locations(tree)


class MeteredContext(Context):
    """A render's variables, and when it must be done: by its thread's CPU clock, so that a busy
    machine does not fail an honest template. Only some ticks look at that clock, which is dear."""

    _num_ticks = 0
    _deadline: float | None = None

    def tick(self) -> None:
        """Called by the compiled template in each turn of a loop and each call of a macro."""
        self._num_ticks += 1
        if self._num_ticks % _TICKS_PER_LOOK:
            return
        now = time.thread_time()
        if self._deadline is None:
            seconds = MAX_CPU_SECONDS / 2**HURRY_SHIFT if is_hurried() else MAX_CPU_SECONDS
            self._deadline = now + seconds
        if now > self._deadline:
            raise TemplateLimitError(f"more than {MAX_CPU_SECONDS:g} s of computing")


class _Metering(ast.NodeTransformer):
    """Puts the ticks into a compiled template, and the size check under its `~` operator."""

    _TICK = "context.tick()"
    _RENAMED = {  # noqa: RUF012
        "str_join": "environment.join_operands",
        "str": "environment.text_of",
    }

    def _with_tick(self, node: ast.For | ast.While | ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, ast.parse(self._TICK).body[0])
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        return self._with_tick(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._with_tick(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._with_tick(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        name = self._RENAMED.get(node.id)
        return node if name is None else ast.parse(name, mode="eval").body

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Weigh what is compared, unless one side is a constant and so bounds the work."""
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        if isinstance(node.left, ast.Constant) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            node.comparators = [_passed("measured", side) for side in node.comparators]
        elif not any(_is_constant(side) or _is_own(side) for side in sides):
            node.left, *node.comparators = (_passed("weighed", side) for side in sides)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Weigh the operands of `-`, which may be views of dicts."""
        self.generic_visit(node)
        if not _is_constant(node.left) and not _is_constant(node.right):
            node.left, node.right = _passed("weighed", node.left), _passed("weighed", node.right)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Take the price of a slice."""
        self.generic_visit(node)
        if isinstance(node.slice, ast.Slice):
            node.value = _passed("measured", node.value)
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        """Weigh the keys of a dict: a tuple's hash is that of all its parts."""
        self.generic_visit(node)
        node.keys = [key and _weighed_key(key) for key in node.keys]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Weigh keys; leave out what calls pass for functions that read the context."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "getitem":
            node.args[1] = _weighed_key(node.args[1])
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "call":
            node.keywords = [k for k in node.keywords if k.arg not in ("_loop_vars", "_block_vars")]
        return node


def _is_constant(node: ast.expr) -> bool:
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    return all(isinstance(part, ast.Constant) for part in parts)


def _is_own(node: ast.expr) -> bool:
    """Whether it is a name of Jinja's own code, such as `missing`."""
    return isinstance(node, ast.Name) and not node.id.startswith("l_")


def _weighed_key(node: ast.expr) -> ast.expr:
    return node if isinstance(node, ast.Constant) else _passed("weighed", node)


def _passed(function: str, node: ast.expr) -> ast.expr:
    """A call of the environment's function with the node's value."""
    call = ast.parse(f"environment.{function}(None)", mode="eval").body
    assert isinstance(call, ast.Call)
    call.args = [node]
    return call
