"""Values of other libraries as Python's own. No torch, no NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set, ValuesView
from typing import Any

_PLAIN = {str, int, float, bool, type(None)}


def plain_value(value: Any) -> Any:
    """The value with lists, at any depth, for other sequences, sets, views, iterators and arrays.

    Arrays and tensors are recognized by their method `tolist`, which gives Python's numbers, or
    the objects of an array of objects.
    """
    if isinstance(value, str | bytes | bytearray | memoryview | dict | int | float | None):
        return value
    if isinstance(value, Sequence | Set | ValuesView | Iterator):
        return [plain_value(item) for item in value]
    to_list = getattr(value, "tolist", None)
    if to_list is None:
        return value
    holds_objects = getattr(getattr(value, "dtype", None), "hasobject", False)
    return plain_value(to_list()) if holds_objects else to_list()


def plain_number(value: Any) -> Any:
    """A number or truth value of NumPy or PyTorch as Python's; anything else as it is."""
    if type(value) in _PLAIN:  # not isinstance: NumPy's float64 is a float, too
        return value
    to_list = getattr(value, "tolist", None)  # which they all have
    plain = value if to_list is None else to_list()
    return plain if isinstance(plain, int | float) else value
