"""ForeignMethods: what to use for a method of another engine's class that Quire's class has not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


def refuse(owner: object, name: str) -> Any:
    """`__getattr__` of classes with another metaclass. Raises AttributeError."""
    raise _no_such(type(owner), name, owner)


def _no_such(cls: type, name: str, owner: object) -> AttributeError:
    """The error for a missing attribute. owner: what was asked for it, the class or an object."""
    from quire.compat.method_names import what_to_use  # most programs misspell nothing

    if (text := what_to_use(cls.__name__, name)) is None:
        return AttributeError(f"{cls.__name__} has no {name}", name=name, obj=owner)
    # no obj, to which Python would add a name that is merely alike
    return AttributeError(f"{cls.__name__} has no {name}; {text}", name=name, obj=None)


class _Class(type):
    if not TYPE_CHECKING:  # which finds misspelt names

        def __getattr__(cls, name: str) -> Any:
            raise _no_such(cls, name, cls)


class ForeignMethods(metaclass=_Class):
    """A base: a missing attribute of the class, or of an object, says what to use instead.

    Raises AttributeError, so that hasattr, copying and pickling see what they always see.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise _no_such(type(self), name, self)
