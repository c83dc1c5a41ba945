"""Runs Jinja, only here: sandboxed, and bounded in time and size.

A chat template is code that came with a checkpoint. The sandbox keeps it away from Python; this
file adds the bounds that the sandbox lacks. Templates are compiled to Python, and a call that
looks at the thread's CPU clock is put at the head of each loop and function of that Python, so
that no loop, macro or recursion outlives the limit; every joined string, and every operator or
count that multiplies sizes, is checked before it takes memory, and each operation's price is taken
before it runs (template_work.py). Who serves checkpoints of strangers gives the process a memory
limit besides.

It does not know messages, roles or tokens.
"""

from __future__ import annotations

import ast
import datetime
import functools
import json
import re
import string
import time
from collections.abc import Callable, Iterable
from itertools import islice
from types import CodeType
from typing import Any, cast

from jinja2 import Template, TemplateError, meta, nodes, pass_environment
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_sum
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quire.background import is_hurried
from quire.tokenizer import template_work
from quire.tokenizer.template_work import (
    HURRY_SHIFT,
    MAX_INDENT,
    SHORT,
    TemplateLimitError,
    check_repetition,
    checked_number,
    measured,
    take_call,
    take_copy,
    take_format,
    text_of,
    weighed,
)

MAX_CPU_SECONDS = 1.0
MAX_CHARACTERS = 2**24  # of the text, and of any string that is joined on the way
MAX_COUNT = 100_000  # of repetitions, widths and indents
MAX_SOURCE_CHARS = 1 << 20
MAX_SOURCE_TOKENS = 20_000  # of Jinja: over a second to compile; models' templates have some 1,000
_TICKS_PER_LOOK = 8  # at the clock: most conversations end before the first
_WIDE = re.compile(r"\d{4}")
_WIDE_PERCENT = re.compile(r"%(\([^)]*\))?[-+ #\d.]*(\*|\d{4})")
_WIDTH_FILTERS = ("batch", "center", "indent", "round", "slice", "wordwrap")


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it (the names and options of `transformers`), with bounds."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        self.context_class = _MeteredContext
        self.filters["tojson"] = _to_json
        self.filters["format"] = _format
        for name in _WIDTH_FILTERS:
            self.filters[name] = _with_small_counts(self.filters[name])
        for name in template_work.REMOVED:
            del self.filters[name]
        self.filters["replace"] = _replace
        self.filters["sum"] = _sum
        self.filters["indent"] = _indent(self.filters["indent"])
        for name, function in self.filters.items():
            self.filters[name] = template_work.pricing_filter(name, function)
        for name, test in self.tests.items():
            self.tests[name] = template_work.pricing_test(name, cast(Any, test))
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        del self.globals["lipsum"]

    def compiled(self, source: str) -> tuple[Template, frozenset[str]]:
        """A template, and the names that it reads.

        Raises TemplateLimitError if it is too long, and anything else for a damaged one.
        """
        num_tokens = 0
        if len(source) <= MAX_SOURCE_CHARS:
            num_tokens = sum(1 for _ in islice(self.lex(source), MAX_SOURCE_TOKENS + 1))
        if len(source) > MAX_SOURCE_CHARS or num_tokens > MAX_SOURCE_TOKENS:
            limits = f"{MAX_SOURCE_CHARS} characters or {MAX_SOURCE_TOKENS} tokens of Jinja"
            raise TemplateLimitError(f"it is longer than {limits}")
        names = meta.find_undeclared_variables(self.parse(source))
        return self.from_string(source), frozenset(names)

    def concat(self, parts: Iterable[str]) -> str:
        """Join a template's pieces, of a block or of the whole, up to the size limit."""
        joined, size = [], 0
        for part in parts:
            size += len(part)
            if size > MAX_CHARACTERS:
                _check_size(size)
            joined.append(part)
        if size > SHORT:
            take_copy(text := "".join(joined))
            return text
        return "".join(joined)

    def join_operands(self, operands: Iterable[Any]) -> str:
        """The `~` operator, with a limit on the length of its result."""
        return self.concat(map(text_of, operands))

    text_of = staticmethod(text_of)
    weighed = staticmethod(weighed)
    measured = staticmethod(measured)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Bound what `*`, `**`, `+` and `%` can make of small operands."""
        if operator == "+" and type(left) is type(right) is str:  # as it mostly is
            _check_size(len(left) + len(right))
            text = left + right
            if len(text) > SHORT:
                take_copy(text)
            return text
        if operator == "**":
            _check_count(right)
        elif operator == "*":
            _check_size(_repeated(left, right))
        elif operator == "+":
            _check_size(_length(left) + _length(right))
        elif isinstance(left, str):
            _check_percents(left)
            take_format(left, right)
        result = super().call_binop(context, operator, left, right)
        if type(result) is int:
            return checked_number(result)
        take_copy(result)
        return result

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the template, with limits on widths in string methods."""
        take_call(function, args, kwargs)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, (str, bytes, int)):
            for argument in (*args, *kwargs.values()):
                _check_count(argument)
            _check_method(owner, function.__name__, args)
        return checked_number(super().call(context, function, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` with limits on the widths in its format."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        _check_braces(value.__self__)

        def priced(*args: Any, **kwargs: Any) -> str:
            take_call(value, args, kwargs)
            return wrapped(*args, **kwargs)

        return functools.wraps(wrapped)(priced)

    def _compile(self, source: str, filename: str) -> CodeType:
        tree = _Metering().visit(ast.parse(source, filename))
        return compile(ast.fix_missing_locations(tree), filename, "exec")


class _MeteredContext(Context):
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


class _GenerationTag(Extension):
    """`{% generation %}`: marks the assistant's words for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 0


def _repeated(left: Any, right: Any) -> int:
    """Length of a sequence times an integer; 0 for other products."""
    count = right if isinstance(right, int) else left
    return (_length(left) + _length(right)) * count if isinstance(count, int) else 0


def _check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise TemplateLimitError(f"more than {MAX_CHARACTERS} characters")


def _check_count(value: Any) -> None:
    if isinstance(value, int) and abs(value) > MAX_COUNT:
        raise TemplateLimitError(f"the count {value}, above {MAX_COUNT}")


def _check_method(owner: Any, name: str, args: tuple[Any, ...]) -> None:
    """Bound what a string's method makes of it."""
    if not isinstance(owner, str):
        return
    if name == "replace" and len(args) > 1 and isinstance(args[0], str):
        check_repetition(owner.count(args[0]), _length(args[1]), MAX_CHARACTERS)
    elif name == "expandtabs":
        check_repetition(owner.count("\t"), args[0] if args else 8, MAX_CHARACTERS)
    elif name == "join" and args:
        check_repetition(_length(args[0]), len(owner), MAX_CHARACTERS)


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    given = text_of(text)
    _check_method(given, "replace", (old, new))
    return given.replace(old, new, -1 if count is None else count)


@pass_environment
def _sum(environment: Any, values: Any, attribute: Any = None, start: Any = 0) -> Any:
    if not isinstance(start, (int, float)):
        raise TemplateLimitError("a sum of other things than numbers")
    return do_sum(environment, values, attribute, start)


def _indent(indent: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(text: str, width: int | str = 4, *args: Any, **kwargs: Any) -> Any:
        size = len(width) if isinstance(width, str) else width
        check_repetition(str(text).count("\n") + 1, size, MAX_CHARACTERS)
        return indent(text, width, *args, **kwargs)

    return bounded


def _check_percents(template: str) -> None:
    if _WIDE_PERCENT.search(template):
        raise TemplateLimitError("a format whose width is not small")


def _check_braces(template: str) -> None:
    for _, _, spec, _ in string.Formatter().parse(template):
        if spec and ("{" in spec or _WIDE.search(spec)):
            raise TemplateLimitError("a format whose width is not small")


def _with_small_counts(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # keeps Jinja's marks on the function
    def bounded(*args: Any, **kwargs: Any) -> Any:
        for argument in (*args, *kwargs.values()):
            _check_count(argument)
        return function(*args, **kwargs)

    return bounded


def _format(template: str, *args: Any, **kwargs: Any) -> str:
    _check_percents(template)
    return template % (kwargs or args)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson` without Jinja's HTML escapes."""
    if indent is not None and (len(indent) if isinstance(indent, str) else indent) > MAX_INDENT:
        raise TemplateLimitError(f"the indent {indent!r}, above {MAX_INDENT}")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    _check_percents(pattern)
    return datetime.datetime.now().strftime(pattern)
