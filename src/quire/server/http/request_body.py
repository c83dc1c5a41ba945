"""RequestBody: the body of a request, decoded, with the names of other APIs and engines read.

A name that its route does not know may be another engine's (quire/compat): the same as one of the
route's own fields, without effect here, or refused with a text of its own. Bodies with known names
alone cost one comparison of sets.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec

from quire.compat.field_homes import field_home, fix_of_route, own_field
from quire.compat.foreign_name import ANY, EMPTY, is_among, same_setting
from quire.compat.names_table import (
    Meaning,
    NoEffect,
    Own,
    Refused,
    Scope,
    meaning_of,
    rows_of,
)
from quire.compat.sampler_stages import params_set_by
from quire.errors import InvalidRequestError, invalid_value
from quire.server.http import strict_json
from quire.server.http.field_bounds import NO_LIMIT
from quire.server.http.field_names import SAME, FieldNames
from quire.server.http.strict_json import NeutralValues

_SHOWN_CHARS = 64  # of a refused value

SCOPES: tuple[Scope, ...] = ("request", "sampling")


class RequestBody(strict_json.Described, kw_only=True, dict=True):
    """The base of request bodies. no_effect: a sentence for each field that was without effect.

    foreign_names: of the body's fields with a value that are not this route's. sent_as: the names
    under which the body has the route's fields, for errors. neutral: also of fields that a base of
    the struct has. long_field: a raw field that may be very long, see `strict_json.read_names`.
    """

    long_field: ClassVar[str] = ""
    no_effect: ClassVar[Sequence[str]] = ()
    foreign_names: ClassVar[frozenset[str]] = frozenset()
    sent_as: ClassVar[FieldNames] = SAME

    def note_no_effect(self, *sentences: str) -> None:
        """Add sentences about fields without effect."""
        if sentences:
            self.__dict__["no_effect"] = (*self.no_effect, *sentences)

    def take_over(self, body: RequestBody) -> None:
        """Have the names of the body that this one is made of, and what had no effect in it."""
        self.__dict__.update(foreign_names=body.foreign_names, sent_as=body.sent_as)
        self.note_no_effect(*body.no_effect)


T = TypeVar("T", bound=RequestBody)


def read_body(data: bytes, kind: type[T], check: Callable[[T], None] = lambda _: None) -> T:
    """Decode a body. Raises InvalidRequestError.

    check: refuses texts that are far too long, before the body is read a second time.
    """
    return read_with_names(data, kind, check)[0]


def read_with_names(
    data: bytes, kind: type[T], check: Callable[[T], None] = lambda _: None
) -> tuple[T, dict[str, Any]]:
    """Decode a body; returns it, and as plain values for the checks of its inner names."""
    decoder, neutral, long = strict_json.decoder_of(kind), kind.neutral, kind.long_field
    request: T = strict_json.decode(data, decoder)
    check(request)
    raw = getattr(request, long) if long else msgspec.UNSET
    found = strict_json.read_names(data, long=b"" if raw is msgspec.UNSET else bytes(raw))
    known = strict_json.names_of(kind)
    if found.keys() <= known and found.keys().isdisjoint(neutral):
        return request, found
    known = known.difference(neutral)
    found = strict_json.read_names(data) if long else found  # all values, the long one too
    fields = _ForeignFields(found, known, neutral)
    foreign = frozenset(n for n, value in found.items() if n not in known and value is not None)
    if fields.own:
        found = {n: v for n, v in found.items() if n in known} | fields.own
        with (sent_as := FieldNames(fields.names)):
            request = strict_json.decode(msgspec.json.encode(found), decoder)
        request.__dict__["sent_as"] = sent_as
    request.__dict__["foreign_names"] = foreign
    request.note_no_effect(*fields.notes)
    return request, found


def neutral_values(kind: type[strict_json.Described]) -> NeutralValues:
    """The fields that an object may have without effect, with their values, for the documents."""
    if not issubclass(kind, RequestBody):
        return kind.neutral
    known = strict_json.names_of(kind)
    return {n: values for n, values in _foreign().items() if n not in known} | {**kind.neutral}


def refused_field(name: str, value: Any, text: str, path: str = "") -> InvalidRequestError:
    """The error of a field that is refused. text: the table's. path: of the object that has it."""
    where, problem = f"{path}{name[:64]}", text.removeprefix(f"{name} ")
    if not isinstance(value, str) and problem.startswith(given := reprlib.repr(value)):
        text = json.dumps(value)
        shown = text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
        problem = shown + problem.removeprefix(given)
    return InvalidRequestError(f"{where}: {problem}", param=where, code="unsupported_parameter")


@cache
def _foreign() -> Mapping[str, Any]:
    rows = [row for scope in reversed(SCOPES) for row in rows_of(scope)]
    return {row.name: row.takes for row in rows if row.takes is ANY or row.takes}


class _ForeignFields:
    """The fields of a body under names of other engines.

    own: as the route's own fields. names: own fields → the names that they were sent under. notes:
    a sentence for each that is without effect. Raises InvalidRequestError for what is refused.
    """

    def __init__(
        self, found: Mapping[str, Any], known: frozenset[str], neutral: NeutralValues
    ) -> None:
        self.own: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        self.notes: list[str] = []
        self._found, self._known, self._neutral = found, known, neutral
        self._over: dict[str, Any] = {}  # by names that switch off what others ask for
        for name, value in found.items():
            if name not in known:
                self._take(name, value)
        self.own |= self._over

    def _take(self, name: str, value: Any) -> None:
        match self._meaning(name, value):
            case Own(name=field, value=own) if field in self._known:
                self._set(field, name, NO_LIMIT if own is None else own)
            case NoEffect() if own_set := params_set_by(name, value):
                self._over |= {n: v for n, v in own_set.items() if n in self._known}
            case NoEffect(text=text, is_neutral=is_neutral):
                self.notes += [] if is_neutral else [text]
            case Refused(why=why, fix=fix):
                fix = fix_of_route(fix, self._known)
                raise refused_field(name, value, f"{why}; {fix}")
            case None if value is None and field_home(name, self._known):
                pass  # a client that writes the empty fields of other routes, too
            case _:
                strict_json.check_names({name: value}, self._known, self._neutral)

    def _meaning(self, name: str, value: Any) -> Meaning | None:
        """The meaning of a name; None where the route has a field for it that no row names."""
        meaning = None
        if name not in self._neutral:
            meaning = meaning_of(name, value, SCOPES, self._found)
        if not isinstance(meaning, NoEffect | Refused) or value is None or is_among(value, EMPTY):
            return meaning
        own = own_field(name, self._known)
        return meaning if own is None or own in meaning.text else None

    def _set(self, field: str, name: str, value: Any) -> None:
        """Set a field, which may be there under another name if its value is the same."""
        other = self.own.get(field, self._found.get(field))
        if other is None:
            self.own[field], self.names[field] = value, name
        elif not same_setting(other, value):
            sent = self.names.get(field, field)
            raise invalid_value(name, f"it is the same as {sent}; use one of them")
