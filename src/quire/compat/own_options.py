"""Options under the names and values of other engines, as Quire's own: for Python and YAML."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quire.compat.foreign_name import DEFAULT
from quire.compat.own_values import own_value
from quire.errors import ConfigError, InvalidRequestError, UserError
from quire.options import SETTING

if TYPE_CHECKING:
    from quire.compat.names_table import Scope


OPTION_SCOPES: tuple[Scope, ...] = ("engine", "server")  # of options of an engine


def own_options(
    options: Mapping[str, Any], known: Collection[str], scopes: Sequence[Scope]
) -> tuple[dict[str, Any], list[str]]:
    """Quire's own names and values, and a sentence for each hint that has no effect.

    Names that are neither known nor in the table stay as they are. Raises ConfigError for an option
    that is refused, or given under two names.
    """
    reader = _Reader(known, scopes)
    for name, value in options.items():
        reader.read(name, value)
    return reader.found, reader.notices


@contextmanager
def names_as_given(options: Mapping[str, Any], scopes: Sequence[Scope]) -> Iterator[None]:
    """Errors within name a setting as the options do, where they have another engine's name."""
    try:
        yield
    except UserError as error:
        from quire.compat.names_table import Own, meaning_of

        given = dict[str, str]()
        for name, value in options.items():
            match meaning_of(name, value, scopes):
                case Own(name=own, value=same) if same is value:
                    given[own] = name
        error.args = (SETTING.sub(lambda found: given.get(found[0], found[0]), str(error)),)
        if isinstance(error, InvalidRequestError) and error.param is not None:
            error.param = given.get(error.param, error.param)
        raise


class _Reader:
    def __init__(self, known: Collection[str], scopes: Sequence[Scope]) -> None:
        self._known, self._scopes = known, scopes
        self.found: dict[str, Any] = {}
        self.notices: list[str] = []
        self._given_as: dict[str, str] = {}

    def read(self, name: str, value: Any) -> None:
        if name in self._known:
            self._store(name, name, value)
            return
        # the tables are read where a name is not known
        from quire.compat.names_table import NoEffect, Own, Refused, meaning_of

        match meaning_of(name, value, self._scopes):
            case None:
                self.found[name] = value
            case Own(name=own, value=changed):
                self._store(own, name, changed)
            case NoEffect(text=text, is_neutral=is_neutral):
                self.notices += [] if is_neutral else [text]
            case Refused(text=text):
                raise ConfigError(text)

    def _store(self, name: str, given_as: str, value: Any) -> None:
        value = own_value(name, value)
        if value is DEFAULT:
            return
        if name not in self._known:  # but elsewhere: errors say it of the name that was given
            name = given_as
        if name in self.found and self.found[name] != value:
            other = self._given_as[name]
            raise ConfigError(f"{other} and {given_as} are one setting ({name}); set one of them")
        self.found[name], self._given_as[name] = value, given_as
