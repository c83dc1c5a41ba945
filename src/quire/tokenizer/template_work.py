"""Bounds the work of single operations in a chat template, which no clock can interrupt.

A few lines of a template make values whose text or comparison would take minutes: lists that hold
one another twice, a list that is looked up in itself, a long text under a filter that is slow. So
an operation has a price (template_prices.py), taken off the render's budget before it runs, by the
weight of what it is given. A part counts as often as it appears. Values of unknown types, which
could hold others, are refused.
"""

from __future__ import annotations

import threading
import types
from collections.abc import ItemsView, KeysView, ValuesView
from typing import Any

import jinja2
from jinja2 import TemplateError
from jinja2.runtime import BlockReference, Macro
from jinja2.utils import Cycler, Joiner, Namespace

from quire.background import is_hurried

MAX_WEIGHT = 1_000_000  # values, and parts of texts
HURRY_SHIFT = 5  # on an event loop a render has 1 / 32 of the work and time that others have
MAX_INDENT = 64  # of tojson
MAX_INT_BITS = 64
SHORT = 4096  # characters of a text that costs nothing where the time is in proportion to it
_TEXT_SHIFT = 5  # 32 characters weigh as much as a value
COPY_SHIFT = 3  # so many times faster than looking at each part

_SCALARS = (int, bool, float, type(None))
_LEAF_TYPES: tuple[type, ...] = (
    *_SCALARS, jinja2.Undefined, Macro, BlockReference, Joiner, types.GeneratorType, type,
    types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType,
)  # fmt: skip
_LEAVES = frozenset(_LEAF_TYPES)
_VIEWS = (KeysView, ValuesView, ItemsView)
_SIZED = (list, tuple, dict, set, frozenset, range, *_VIEWS)


class TemplateLimitError(TemplateError):
    """The template has exceeded a limit on time or size."""


class _Budget(threading.local):
    left = MAX_WEIGHT


_budget = _Budget()


def start_render() -> None:
    """Give this thread's next render its budget, which is small beside an event loop."""
    _budget.left = MAX_WEIGHT >> HURRY_SHIFT if is_hurried() else MAX_WEIGHT


def take(price: int) -> None:
    """Take a price off the budget. Raises TemplateLimitError if it is more than is left."""
    _check(price)
    _budget.left -= price


def take_copy(value: Any) -> None:
    """Take the price of a copy of a text, list or range."""
    if type(value) is str and len(value) <= SHORT:
        return
    take(1 + (size_of(value) >> COPY_SHIFT))


def weight(*values: Any) -> int:
    """The number of values and parts of texts in all of them.

    What holds one list in many places is looked at once, level by level, and counted as often as
    it appears. Raises TemplateLimitError if it is above what is left, or cannot be known.
    """
    total, level = 0, [(values, 1)]
    while level:
        below: dict[int, tuple[Any, int]] = {}  # by id: a value of the next level, and how often
        for parts, times in level:
            for part in parts:
                if type(part) is str:
                    total += times * (1 + (len(part) >> _TEXT_SHIFT))
                elif type(part) in _LEAVES:
                    total += times
                else:
                    below[id(part)] = part, times + below.get(id(part), (part, 0))[1]
            _check(total)
        level = []
        for value, times in below.values():
            total += times * (1 + size_of(value))
            _check(total)
            level.append((_parts(value), times))
    return total


def _check(total: int) -> None:
    if total > _budget.left:
        raise TemplateLimitError(f"values of more than {MAX_WEIGHT} parts in all")


def take_weight(*values: Any) -> None:
    """Take the weight of values off the budget. Raises TemplateLimitError."""
    take(weight(*values))


def weighed(value: Any) -> Any:
    """A value that is about to be compared, or is a key."""
    if type(value) is str:
        if len(value) > SHORT:
            take_copy(value)
    elif type(value) not in _SCALARS:
        take_weight(value)
    return value


def measured(value: Any) -> Any:
    """A value that is about to be cut, or that a constant is looked up in."""
    if type(value) is not dict:
        take_copy(value)
    return value


def text_of(value: Any) -> str:
    """A value as text."""
    if type(value) is str:
        return value
    if type(value) not in _SCALARS:
        take_weight(value)
    return str(value)


def checked_number(value: Any) -> Any:
    """The value, unless it is an integer with which operators would be slow."""
    if type(value) is int and value.bit_length() > MAX_INT_BITS:
        raise TemplateLimitError(f"a number of more than {MAX_INT_BITS} bits")
    return value


def take_width(width: int) -> None:
    """Take the price of a text that is made so wide, which is that of a copy."""
    take(abs(width) >> _TEXT_SHIFT + COPY_SHIFT)


def listed(value: Any) -> Any:
    """The items of a filter's iterator as a list, which has a weight; other values as they are."""
    return list(value) if type(value) is types.GeneratorType else value


def size_of(value: Any) -> int:
    """The weight of a value without that of what it holds."""
    if isinstance(value, (str, bytes)):
        return len(value) >> _TEXT_SHIFT
    return len(value) if isinstance(value, _SIZED) else 0


def _parts(value: Any) -> Any:
    """The members of a value, or none. Raises TemplateLimitError for an unknown type."""
    if isinstance(value, (list, tuple, set, frozenset, *_VIEWS)):
        return value
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    if isinstance(value, Namespace):
        return (object.__getattribute__(value, "_Namespace__attrs"),)
    if isinstance(value, Cycler):
        return value.items
    if isinstance(value, (str, bytes, range, *_LEAF_TYPES)):
        return ()
    raise TemplateLimitError(f"a value of the type {type(value).__name__}")
