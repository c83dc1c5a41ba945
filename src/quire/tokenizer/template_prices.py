"""The prices of a chat template's filters, tests and calls, which are taken before they run.

Little for operations listed here, whose time is known, and the square of the weight for all others.
What else has a price: operators, comparisons, keys, slices, texts of values, and each item that an
iterator of a filter gives. Nothing is taken for what short texts cost: there are as many such
operations as the template has words, and ticks in its loops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from jinja2.runtime import BlockReference, LoopContext, Macro
from jinja2.utils import Cycler, Joiner, Namespace

from quire.tokenizer.template_work import (
    COPY_SHIFT,
    SHORT,
    checked_number,
    listed,
    size_of,
    take,
    take_weight,
    weight,
)

_VERY_SHORT = 128  # characters of a text that costs nothing where a filter may be slow
_ITEM_PRICE = 4  # of an iterator in Python

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
    take((1 + (size_of(first) >> COPY_SHIFT)) * _times(others))


def take_linear(first: Any = None, *others: Any) -> None:
    """Take the price of work in proportion to the weight of each value."""
    take(weight(first) * _times(others))


def _take_square(*values: Any) -> None:
    take(weight(*values) ** 2)


def _times(others: tuple[Any, ...]) -> int:
    return weight(*others) if others else 1


def _priced_items(result: Any) -> Any:
    return _items(result) if isinstance(result, Iterator) else result


def _items(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        take(_ITEM_PRICE + (size_of(item) >> COPY_SHIFT))
        yield item
