"""ForeignName: one name of another engine, and what it means here.

A name is one of three kinds, and may be a mixture by value:

- the same as a setting of Quire (`same_as`), whose values may have another spelling (`values`);
- taken without effect (`takes`), because it asks for nothing or for fixed behaviour (`text`);
- refused otherwise, with Quire's way (`fix`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal

import msgspec

from quire.plain_values import plain_number


class _Default:
    """The value of an option that is to be left out."""

    def __repr__(self) -> str:
        return "its default"


DEFAULT: Final = _Default()
ANY: Final = frozenset[Any]()  # as `takes`: whatever the value is
EMPTY: Final[tuple[Any, ...]] = (False, 0, "", {}, [])  # values that mostly ask for nothing

Arity = Literal["value", "switch", "optional", "numbers"]  # what follows a flag on a command line


class ForeignName(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    name: in Python's spelling; a command line has dashes. engines: whose name it is. flags: other
    flags on a command line. arity: whether a value follows the flag. same_as: Quire's setting.
    values: those with another spelling or meaning. others: whether all other values go to that
    setting as they are. takes: values without effect.
    takes_if: whether another value has none either. repeats: a setting whose value, given beside
    this one, has none. neutral: of a name that never has an effect,
    the values that ask for what is done anyway, so that nobody need be told. text: why they have
    none. fix: Quire's way, for all other values.
    """

    name: str
    engines: str
    flags: tuple[str, ...] = ()
    arity: Arity = "value"
    same_as: str | None = None
    values: Mapping[Any, Any] = msgspec.field(default_factory=dict)
    others: bool = True
    takes: Collection[Any] = ()
    takes_if: Callable[[Any], bool] = lambda _: False
    repeats: str | None = None
    neutral: Collection[Any] = EMPTY
    text: str = ""
    fix: str = ""

    def own_value(self, value: Any) -> tuple[bool, Any]:
        """(True, the value of `same_as` for this one); (False, None) if it gets none.

        None asks for nothing: it gets none.
        """
        if self.same_as is None or value is None:
            return False, None
        for foreign, own in self.values.items():
            if same_value(value, foreign):
                return True, own
        return self.others, value

    def has_no_effect(self, value: Any, beside: Mapping[str, Any]) -> bool:
        """Whether this value is taken without effect; None always is. beside: all that is given."""
        is_any = value is None or self.takes is ANY
        if self.repeats is not None and same_value(value, beside.get(self.repeats)):
            return True
        return is_any or is_among(value, self.takes) or self.takes_if(value)

    def is_neutral(self, value: Any) -> bool:
        """Whether a value without effect asks for what is done anyway, or for nothing."""
        return self.takes is not ANY or value is None or is_among(value, self.neutral)


def same_value(value: Any, other: Any) -> bool:
    """Whether two plain values are equal; True is not 1, but 1.0 is, and NumPy's True is True."""
    value = plain_number(value)
    try:
        return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)
    except (ValueError, RuntimeError):  # an array, of NumPy or PyTorch
        return False


def is_among(value: Any, others: Collection[Any]) -> bool:
    """Whether a value is the same as one of others."""
    return any(same_value(value, other) for other in others)


def same_setting(value: Any, other: Any) -> bool:
    """Whether two values ask for the same of one setting; a text stands for a list of it."""
    lists = [[given] if isinstance(given, str) else given for given in (value, other)]
    return same_value(*lists)


def alias(
    name: str,
    same_as: str,
    engines: str,
    *flags: str,
    values: Mapping[Any, Any] | None = None,
    **details: Any,
) -> ForeignName:
    """The row of a name that is the same as a setting of Quire.

    One whose values are true and false is a switch, whatever that setting is: it has no others.
    """
    if values is not None and set(values) == {True, False}:
        details = {"others": False, "fix": "set it to true or false"} | details
    return ForeignName(
        name=name, engines=engines, flags=flags, same_as=same_as, values=values or {}, **details
    )


def no_effect(name: str, engines: str, text: str, *flags: str, **details: Any) -> ForeignName:
    """The row of a name that has no effect, whatever its value."""
    return ForeignName(name=name, engines=engines, flags=flags, takes=ANY, text=text, **details)


def always(name: str, engines: str, text: str, *flags: str, **details: Any) -> ForeignName:
    """The row of a switch for what is always done: to switch it off has no effect."""
    return no_effect(name, engines, text, *flags, neutral=(True,), **details)


def only(
    name: str,
    engines: str,
    takes: Collection[Any],
    text: str,
    fix: str,
    *flags: str,
    **details: Any,
) -> ForeignName:
    """The row of a name of which some values have no effect, and others are refused.

    text: Quire's behaviour, which is why. takes: those without effect; None is always one.
    """
    values = (None, *takes)
    return ForeignName(
        name=name, engines=engines, flags=flags, takes=values, text=text, fix=fix, **details
    )
