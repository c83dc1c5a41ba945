"""Bounds the work of single operations in a chat template, which no clock can interrupt.

A few lines of a template make values whose text or comparison would take minutes: lists that hold
one another twice, a list that is looked up in itself, a long text under a filter that is slow. So
an operation has a price, taken off the render's budget before it runs, by the weight of what it is
given: little for operations listed here, whose time is known, and the square of the weight for all
others. A part counts as often as it appears. Values of unknown types, which could hold others, are
refused.

What has a price: filters, tests, calls, operators, comparisons, keys, slices, texts of values, and
each item that an iterator of a filter gives. Nothing is taken for what short texts cost: there are
as many such operations as the template has words, and ticks in its loops.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from typing import Any

import jinja2
from jinja2 import TemplateError
from jinja2.runtime import BlockReference, LoopContext, Macro
from jinja2.utils import Cycler, Joiner, Namespace

from quire.background import is_hurried

MAX_WEIGHT = 1_000_000  # values, and parts of texts
HURRY_SHIFT = 5  # on an event loop a render has 1 / 32 of the work and time that others have
MAX_INDENT = 64  # of tojson
MAX_INT_BITS = 64
SHORT = 4096  # characters of a text that costs nothing where the time is in proportion to it
_VERY_SHORT = 128  # and elsewhere
_TEXT_SHIFT = 5  # 32 characters weigh as much as a value
_ITEM_PRICE = 4  # of an iterator in Python
_COPY_SHIFT = 3  # so many times faster than looking at each part

_SCALARS = (int, bool, float, type(None))
_LEAF_TYPES: tuple[type, ...] = (
    *_SCALARS, jinja2.Undefined, Macro, BlockReference, Joiner, types.GeneratorType, type,
    types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType,
)  # fmt: skip
_LEAVES = frozenset(_LEAF_TYPES)
_VIEWS = (KeysView, ValuesView, ItemsView)
_SIZED = (list, tuple, dict, set, frozenset, range, *_VIEWS)

# Filters that look at no more than a value's length or ends
_FREE_FILTERS = frozenset({"length", "count", "first", "last", "default", "d", "attr", "random"})
# that copy a value, or give an iterator
_COPYING_FILTERS = frozenset(
    {"map", "select", "reject", "selectattr", "rejectattr", "list", "reverse", "batch", "slice"}
    | {"items"}
)
_ITERATOR_FILTERS = _COPYING_FILTERS | {"unique"}
# whose time is in proportion to the weight
_LINEAR_FILTERS = frozenset(
    {"trim", "lower", "upper", "capitalize", "string", "safe", "escape", "e", "int", "float"}
    | {"tojson", "join", "replace", "indent", "sort", "unique", "dictsort", "groupby", "sum"}
    | {"min", "max", "abs", "round", "format"}
)
_NUMBER_FILTERS = frozenset({"int", "round", "sum"})
_FREE_TESTS = frozenset(
    {"defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number"}
    | {"string", "mapping", "sequence", "iterable", "callable", "sameas", "odd", "even"}
    | {"divisibleby", "filter", "test", "escaped"}
)
_LINEAR_TESTS = frozenset(
    {"in", "eq", "==", "equalto", "ne", "!=", "lt", "<", "lessthan", "le", "<=", "gt", ">"}
    | {"greaterthan", "ge", ">=", "lower", "upper"}
)
_FREE_METHODS = frozenset({"items", "keys", "values", "get", "next", "cycle"})
_COPYING_METHODS = frozenset(
    {"strip", "lstrip", "rstrip", "startswith", "endswith", "removeprefix", "removesuffix", "copy"}
)
_LINEAR_METHODS = frozenset(
    {"split", "rsplit", "splitlines", "partition", "rpartition", "find", "rfind", "index", "count"}
    | {"replace", "join", "lower", "upper", "capitalize", "format", "format_map"}
    | {"isdigit", "isalpha", "isspace", "changed", "dict"}
)
_FREE_TYPES = (Macro, BlockReference, LoopContext, Joiner)
_FREE_CLASSES = (Namespace, Cycler, Joiner)
REMOVED = ("pprint", "urlize")  # too slow for their input, and in no chat template


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
    take(1 + (_size(value) >> _COPY_SHIFT))


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
            total += times * (1 + _size(value))
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


def pricing_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, taking its price first, and a price for each item of an iterator it gives."""
    if name in _FREE_FILTERS:
        return function
    price = _price_of(name, _COPYING_FILTERS, _LINEAR_FILTERS)
    short = _VERY_SHORT if price is _take_square else SHORT
    after: Callable[[Any], Any] | None = checked_number if name in _NUMBER_FILTERS else None
    if name in _ITERATOR_FILTERS:
        after = _priced_items
    return _pricing(function, price, short, after)


def pricing_test(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The test, taking its price first."""
    if name in _FREE_TESTS:
        return function
    if name in _LINEAR_TESTS:
        return _pricing(function, take_linear, SHORT)
    return _pricing(function, _take_square, _VERY_SHORT)


def _pricing(
    function: Callable[..., Any],
    price: Callable[..., None],
    short: int,
    after: Callable[[Any], Any] | None = None,
) -> Callable[..., Any]:
    @functools.wraps(function)  # keeps Jinja's marks on the function
    def bounded(value: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or type(value) is not str or len(value) > short:
            value = listed(value)
            price(value, *args, *kwargs.values())
        result = function(value, *args, **kwargs)
        return result if after is None else after(result)

    @functools.wraps(function)
    def bounded_with(own: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        value = listed(value)
        price(value, *args, *kwargs.values())
        result = function(own, value, *args, **kwargs)
        return result if after is None else after(result)

    takes_own = getattr(function, "jinja_pass_arg", None) is not None  # first, from Jinja
    return bounded_with if takes_own else bounded


def take_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Take the price of a call in the template."""
    if isinstance(function, _FREE_TYPES) or function in _FREE_CLASSES:
        return
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    given = (*args, *kwargs.values())
    if type(owner) is str:
        _take_method(owner, name, given)
    elif name in _FREE_METHODS:
        take_weight(*given)
    else:
        owned = () if owner is None or isinstance(owner, LoopContext) else (owner,)
        _price_of(name, _COPYING_METHODS, _LINEAR_METHODS)(*owned, *given)


def _take_method(text: str, name: str, given: tuple[Any, ...]) -> None:
    price = _price_of(name, _COPYING_METHODS, _LINEAR_METHODS)
    short = _VERY_SHORT if price is _take_square else SHORT
    if len(text) > short or not _are_very_short(given):
        price(text, *given)
    if name in ("format", "format_map"):  # in Python, field by field
        take(len(text))


def checked_number(value: Any) -> Any:
    """The value, unless it is an integer with which operators would be slow."""
    if type(value) is int and value.bit_length() > MAX_INT_BITS:
        raise TemplateLimitError(f"a number of more than {MAX_INT_BITS} bits")
    return value


def take_width(width: int) -> None:
    """Take the price of a text that is made so wide, which is that of a copy."""
    take(abs(width) >> _TEXT_SHIFT + _COPY_SHIFT)


def listed(value: Any) -> Any:
    """The items of a filter's iterator as a list, which has a weight; other values as they are."""
    return list(value) if type(value) is types.GeneratorType else value


def _are_very_short(values: tuple[Any, ...]) -> bool:
    for value in values:  # noqa: SIM110  (all() takes twice the time)
        if type(value) is not str or len(value) > _VERY_SHORT:
            return False
    return True


def _price_of(name: str, copying: frozenset[str], linear: frozenset[str]) -> Callable[..., None]:
    """The function that charges an operation of this name for the values that it is given."""
    if name in copying:
        return _take_copying
    return take_linear if name in linear else _take_square


def _take_copying(first: Any = None, *others: Any) -> None:
    take((1 + (_size(first) >> _COPY_SHIFT)) * _times(others))


def take_linear(first: Any = None, *others: Any) -> None:
    """Take the price of work in proportion to the weight of each value."""
    take(weight(first) * _times(others))


def _take_square(*values: Any) -> None:
    take(weight(*values) ** 2)


def _times(others: tuple[Any, ...]) -> int:
    return weight(*others) if others else 1


def _size(value: Any) -> int:
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


def _priced_items(result: Any) -> Any:
    return _items(result) if isinstance(result, Iterator) else result


def _items(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        take(_ITEM_PRICE + (_size(item) >> _COPY_SHIFT))
        yield item
