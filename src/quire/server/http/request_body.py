"""RequestBody: the body of a request, decoded, with the names of other APIs and engines read.

A name that its route does not know may be another engine's (quire/compat): the same as one of the
route's own fields, without effect here, or refused with a text of its own. Bodies with known names
alone cost one comparison of sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec

from quire.compat.field_homes import field_home, own_field
from quire.compat.foreign_name import ANY, DEFAULT, same_value
from quire.compat.names_table import NAMES, Meaning, NoEffect, Own, Refused, Scope, meaning_of
from quire.compat.sampler_stages import params_set_by
from quire.errors import InvalidRequestError, invalid_value
from quire.server.http import strict_json
from quire.server.http.field_names import SAME, FieldNames
from quire.server.http.strict_json import NeutralValues

SCOPES: tuple[Scope, ...] = ("request", "sampling")


class RequestBody(msgspec.Struct, kw_only=True, dict=True):
    """The base of request bodies. no_effect: a sentence for each field that was without effect.

    foreign_names: the names of the body's fields that are not this route's. sent_as: the names
    under which the body has the route's fields, for errors.
    """

    no_effect: ClassVar[Sequence[str]] = ()
    foreign_names: ClassVar[frozenset[str]] = frozenset()
    sent_as: ClassVar[FieldNames] = SAME

    def note_no_effect(self, *sentences: str) -> None:
        """Add sentences about fields without effect."""
        if sentences:
            self.__dict__["no_effect"] = (*self.no_effect, *sentences)


_NOTHING: tuple[Any, ...] = (None, False, "", [], {})

T = TypeVar("T", bound=RequestBody)


def read_body(
    data: bytes,
    decoder: msgspec.json.Decoder[T],
    refused: NeutralValues,
    *,
    long: str = "",
    check: Callable[[T], None] = lambda _: None,
) -> tuple[T, dict[str, Any]]:
    """Decode a body; returns it, and as plain values for the checks of its inner names.

    refused: fields of this route that it has only with the values given, also if a base of its
    struct has them. long: a raw field that may be very long, see `strict_json.read_names`. check:
    refuses texts that are far too long, before the body is read a second time.
    Raises InvalidRequestError.
    """
    request = strict_json.decode(data, decoder)
    check(request)
    raw = getattr(request, long) if long else msgspec.UNSET
    found = strict_json.read_names(data, long=b"" if raw is msgspec.UNSET else bytes(raw))
    known = strict_json.names_of(type(request))
    if found.keys() <= known and found.keys().isdisjoint(refused):
        return request, found
    known = known.difference(refused)
    own, names, notes = _own_fields(found, known, refused)
    foreign, sent_as = frozenset(found.keys() - known), FieldNames(names)
    if own:
        found = {**{n: v for n, v in strict_json.read_names(data).items() if n in known}, **own}
        with sent_as:
            request = strict_json.decode(msgspec.json.encode(found), decoder)
        request.__dict__["sent_as"] = sent_as
    request.__dict__["foreign_names"] = foreign
    request.note_no_effect(*notes)
    return request, found


def neutral_values(body: type[RequestBody], refused: NeutralValues) -> NeutralValues:
    """The fields that a body may have without effect, with their values, for the documents."""
    known = strict_json.names_of(body)
    return {name: values for name, values in _foreign().items() if name not in known} | {**refused}


def never_has_effect(name: str) -> bool:
    """Whether a name is without effect whatever its value, and not with some values alone."""
    return _foreign().get(name) is ANY


@cache
def _foreign() -> Mapping[str, Any]:
    rows = [row for scope in reversed(SCOPES) for row in NAMES[scope]]
    return {row.name: row.takes for row in rows if row.takes is ANY or row.takes}


def _is_elsewhere(name: str, value: Any, meaning: Meaning | None, known: frozenset[str]) -> bool:
    """Whether a route has a field for what another one's asks for, which its row does not name."""
    if not isinstance(meaning, NoEffect | Refused) or value in _NOTHING:
        return False
    own = own_field(name, known)
    return own is not None and own not in meaning.text


def _own_fields(
    found: Mapping[str, Any], known: frozenset[str], refused: NeutralValues
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """The fields under names of other engines, as the route's own, with the names that they were
    sent under, and what has no effect.
    """
    own: dict[str, Any] = {}
    over: dict[str, Any] = {}
    names: dict[str, str] = {}
    notes: list[str] = []
    for name, value in found.items():
        if name in known:
            continue
        meaning = None if name in refused else meaning_of(name, value, SCOPES)
        if _is_elsewhere(name, value, meaning, known):
            meaning = None
        match meaning:
            case Own(name=field) if field in known:
                value = None if meaning.value is DEFAULT else meaning.value
                other = own.get(field, found.get(field))
                if other is not None and not same_value(other, value):
                    raise invalid_value(name, f"it is the same as {field}; use one of them")
                own[field] = value
                names[field] = name
            case NoEffect() if own_set := params_set_by(name, value):
                over.update((n, v) for n, v in own_set.items() if n in known)
            case NoEffect(text=text):
                if value not in _NOTHING and never_has_effect(name):
                    notes.append(text)
            case Refused(text=text):
                text = text.replace(f"{name} ", f"{name}: ", 1)  # as all errors name their field
                raise InvalidRequestError(text, param=name, code="unsupported_parameter")
            case None if value is None and field_home(name, known):
                pass  # a client that writes the empty fields of other routes, too
            case _:
                strict_json.check_names({name: value}, known, refused)
    return own | over, names, notes
