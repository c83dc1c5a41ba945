"""Runs Jinja, only here: sandboxed, and bounded in time and size.

A chat template is code that came with a checkpoint. The sandbox keeps it away from Python; this
file adds the bounds that the sandbox lacks. Templates are compiled to Python, and a call that
looks at the thread's CPU clock is put at the head of each loop and function of that Python, so
that no loop, macro or recursion outlives the limit (template_metering.py); every joined string,
and every operator or count that multiplies sizes, is checked before it takes memory
(template_filters.py), and each operation's price is taken before it runs (template_prices.py). Who
serves checkpoints of strangers gives the process a memory limit besides.

It does not know messages, roles or tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from itertools import islice
from types import CodeType
from typing import Any, cast

from jinja2 import Template, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quire.tokenizer import template_filters as filters
from quire.tokenizer.template_filters import MAX_CHARACTERS, check_count, check_size, length_of
from quire.tokenizer.template_metering import MeteredContext, metered
from quire.tokenizer.template_prices import (
    REMOVED,
    pricing_filter,
    pricing_test,
    take_call,
    take_linear,
)
from quire.tokenizer.template_work import (
    SHORT,
    TemplateLimitError,
    checked_number,
    listed,
    measured,
    take_copy,
    text_of,
    weighed,
)

MAX_SOURCE_CHARS = 1 << 20
MAX_SOURCE_TOKENS = 20_000  # of Jinja: over a second to compile; models' templates have some 1,000
_WIDTH_FILTERS = ("batch", "center", "indent", "round", "slice", "wordwrap")


class _GenerationTag(Extension):
    """`{% generation %}`: marks the assistant's words for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it (the names and options of `transformers`), with bounds."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        self.context_class = MeteredContext
        self.filters["tojson"] = filters.to_json
        self.filters["format"] = filters.format_percents
        for name in _WIDTH_FILTERS:
            self.filters[name] = filters.with_small_counts(self.filters[name])
        for name in REMOVED:
            del self.filters[name]
        self.filters["replace"] = filters.replace_text
        self.filters["sum"] = filters.sum_numbers
        self.filters["indent"] = filters.with_small_indent(self.filters["indent"])
        for name, function in self.filters.items():
            self.filters[name] = pricing_filter(name, function)
        for name, test in self.tests.items():
            self.tests[name] = pricing_test(name, cast(Any, test))
        self.globals["raise_exception"] = filters.raise_exception
        self.globals["strftime_now"] = filters.strftime_now
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
                check_size(size)
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
            check_size(len(left) + len(right))
            text = left + right
            if len(text) > SHORT:
                take_copy(text)
            return text
        if operator == "**":
            check_count(right)
        elif operator == "*":
            check_size(filters.repeated_length(left, right))
        elif operator == "+":
            check_size(length_of(left) + length_of(right))
        elif isinstance(left, str):
            filters.check_percents(left)
            take_linear(left, right)
        result = super().call_binop(context, operator, left, right)
        if type(result) is int:
            return checked_number(result)
        take_copy(result)
        return result

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the template, with limits on widths in string methods."""
        args = tuple(map(listed, args))
        take_call(function, args, kwargs)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, (str, bytes, int)):
            for argument in (*args, *kwargs.values()):
                check_count(argument)
            filters.check_method(owner, function.__name__, args)
        return checked_number(super().call(context, function, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` with limits on the widths in its format."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        filters.check_braces(value.__self__)

        def priced(*args: Any, **kwargs: Any) -> str:
            take_call(value, args, kwargs)
            return wrapped(*args, **kwargs)

        return functools.wraps(wrapped)(priced)

    def _compile(self, source: str, filename: str) -> CodeType:
        return compile(metered(source, filename), filename, "exec")
