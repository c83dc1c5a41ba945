"""Bounds the work of single operations in a chat template, which no clock can interrupt.

A few lines of a template make values whose text or comparison would take minutes: lists that hold
one another twice, or a list that is looked up in itself. Before an operation runs over a whole
value, the value is weighed, each part as often as it appears; a render has a budget of weight.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from jinja2 import TemplateError

MAX_WEIGHT = 1_000_000  # values, and parts of texts
MAX_INDENT = 64  # of tojson
_TEXT_SHIFT = 5  # 32 characters weigh as much as a value
_PLAIN = (str, int, bool, float, type(None))
_CHEAP_FILTERS = frozenset(
    {"length", "count", "first", "last", "default", "d", "trim", "lower", "upper", "int", "float"}
    | {"abs", "round", "attr", "random"}
)
_LAZY_FILTERS = frozenset(
    {"map", "select", "reject", "selectattr", "rejectattr", "list", "reverse", "batch", "slice"}
    | {"items"}
)
_COMPARING_TESTS = frozenset(
    {"in", "eq", "==", "equalto", "ne", "!=", "lt", "<", "lessthan", "le", "<=", "gt", ">"}
    | {"greaterthan", "ge", ">="}
)
REMOVED = ("pprint", "urlize")  # too slow for their input, and in no chat template


class TemplateLimitError(TemplateError):
    """The template has exceeded a limit on time or size."""


class _Budget(threading.local):
    left = MAX_WEIGHT


_budget = _Budget()


def start_render() -> None:
    """Give this thread's next render its budget."""
    _budget.left = MAX_WEIGHT


def weigh(*values: Any) -> None:
    """Take the weight of values off the budget. Raises TemplateLimitError."""
    left, rest = _budget.left, list(values)
    while rest:
        value = rest.pop()
        if isinstance(value, (str, bytes)):
            left -= 1 + (len(value) >> _TEXT_SHIFT)
        elif isinstance(value, (list, tuple, set, frozenset)):
            left -= 1 + len(value)
            rest += value if left >= 0 else ()
        elif isinstance(value, dict):
            left -= 1 + len(value)
            rest += (*value.keys(), *value.values()) if left >= 0 else ()
        else:
            left -= 1
        if left < 0:
            raise _too_heavy()
    _budget.left = left


def weighed(value: Any) -> Any:
    """A value that is about to be compared."""
    if type(value) not in _PLAIN:
        weigh(value)
    return value


def text_of(value: Any) -> str:
    """A value as text."""
    if type(value) is str:
        return value
    weigh(value)
    return str(value)


def weighing_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, weighing what it is given if it may run over all of that."""
    if name in _CHEAP_FILTERS:
        return function
    return _weighing(function, _take_length if name in _LAZY_FILTERS else weigh)


def weighing_test(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The test, weighing what it compares."""
    return _weighing(function, weigh) if name in _COMPARING_TESTS else function


def _weighing(function: Callable[..., Any], weigh_one: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(function)  # keeps Jinja's marks on the function
    def bounded(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, (str, list, tuple, set, frozenset, dict)):
                weigh_one(value)
        return function(*args, **kwargs)

    return bounded


def check_repetition(count: int, size: int, most: int) -> None:
    """Refuse a text of `count` times `size` characters. Raises TemplateLimitError."""
    if count * size > most:
        raise TemplateLimitError(f"more than {most} characters")


def _take_length(value: Any) -> None:
    _budget.left -= len(value) >> (_TEXT_SHIFT if isinstance(value, str) else 0)
    if _budget.left < 0:
        raise _too_heavy()


def _too_heavy() -> TemplateLimitError:
    return TemplateLimitError(f"values of more than {MAX_WEIGHT} parts in all")
