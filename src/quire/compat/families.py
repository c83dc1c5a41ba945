"""Rows of names that mean the same here: a family belongs to something that Quire does not have.

A family is written as names with spaces between; a name that ends with `?` is a switch on a command
line, and other flags follow it after `/`.
"""

from __future__ import annotations

from collections.abc import Iterator

from quire.compat.foreign_name import EMPTY, ForeignName, no_effect, only

NOTHING: tuple[object, ...] = (*EMPTY, "auto", "none")  # values that ask for nothing


def each(
    names: str, text: str, fix: str = "", *also: object, engines: str = "vLLM"
) -> Iterator[ForeignName]:
    """A row for each name. fix: Quire's way for values other than `also` and those of nothing;
    without one no value has an effect."""
    for word in names.split():
        name, *flags = word.split("/")
        arity = "switch" if name.endswith("?") else "value"
        own = name.removesuffix("?")
        if fix:
            yield only(own, engines, (*NOTHING, *also), text, fix, *flags, arity=arity)
        else:
            yield no_effect(own, engines, text, *flags, arity=arity)
