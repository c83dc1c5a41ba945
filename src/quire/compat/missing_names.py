"""Names of other engines that Quire has not say what to use: modules, imports, methods.

Imported by `import quire`, so it imports nothing that Python has not imported already; the texts
are read for an error alone.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


class ForeignModule(ModuleType):
    """A module by vLLM's name, as quire.sampling_params: its names are those of quire itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(sys.modules["quire"], name)
        except AttributeError:  # `from module import` swallows it, and asks ForeignModules next
            from quire.compat.import_names import no_such_name

            module = self.__name__.partition(".")[2]
            raise AttributeError(no_such_name(module, name)) from None


class ForeignModules:
    """The last finder of modules: makes those of vLLM, and says what to use for a name of it.

    `from quire import X` looks for a module quire.X where quire has no attribute X, and
    `from quire.utils import X` for quire.utils.X: only errors raised here reach who imports X.
    """

    @staticmethod
    def find_spec(
        name: str,
        path: object = None,  # noqa: ARG004
        target: object = None,  # noqa: ARG004
    ) -> ModuleSpec | None:
        """The spec of a module by vLLM's name. Raises ImportError for other names in such."""
        package, _, module = name.partition(".")
        if package != "quire":
            return None
        from quire.compat.import_names import MODULES, NAMES, no_such_name, what_to_use

        if module in NAMES:  # no ModuleNotFoundError, which `from quire import` would swallow
            raise ImportError(what_to_use(module), name=name)
        if module.endswith(".__main__"):
            from quire.compat.foreign_commands import program_spec  # asked for by python -m alone

            return program_spec(name)
        if any(f"{module}.".startswith(f"{each}.") for each in MODULES):
            parent, _, last = module.rpartition(".")
            if module not in MODULES and (not last.islower() or _is_from_import()):
                raise ImportError(no_such_name(parent, last), name=name)
            from importlib.machinery import ModuleSpec  # usually not needed

            return ModuleSpec(name, _Maker(), is_package=True)  # type: ignore[arg-type]
        return None


def _is_from_import() -> bool:
    """Whether the name may be none of a module: `from module import name` tries it at last."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_name == "_handle_fromlist":
            return True
        frame = frame.f_back
    return False


class _Maker:
    """Makes the modules that ForeignModules finds."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        """The module, whose names are looked up when they are imported."""
        return ForeignModule(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Nothing: it has no code."""


def refuse(owner: object, name: str) -> Any:
    """`__getattr__` of classes with another metaclass. Raises AttributeError."""
    raise no_such(type(owner), name, owner)


def no_such(cls: type, name: str, owner: object) -> AttributeError:
    """The error for a missing attribute. owner: what was asked for it, the class or an object."""
    text = None
    if not name.startswith("__"):  # which Python and libraries look for
        from quire.compat.method_names import what_to_use  # most programs misspell nothing

        text = what_to_use([each.__name__ for each in cls.__mro__], name)
    if text is None:
        return AttributeError(f"{cls.__name__} has no {name}", name=name, obj=owner)
    # no obj, to which Python would add a name that is merely alike
    return AttributeError(f"{cls.__name__} has no {name}; {text}", name=name, obj=None)


class _Class(ABCMeta):  # as that of a base which a subclass may have besides
    if not TYPE_CHECKING:  # which finds misspelt names

        def __getattr__(cls, name: str) -> Any:
            raise no_such(cls, name, cls)


class ForeignMethods(metaclass=_Class):
    """A base: a missing attribute of the class, or of an object, says what to use instead.

    Raises AttributeError, so that hasattr, copying and pickling see what they always see.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_such(type(self), name, self)


class ModelOwner(ForeignMethods):
    """A base of classes that hold a model, whose objects cannot be copied or pickled."""

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} cannot be copied or sent to another process; make one there")
