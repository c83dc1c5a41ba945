"""Strict JSON: from a body's bytes to one checked struct. Owns every rule about JSON itself.

A body is read twice. The first time gives the values: strict types, strict JSON and UTF-8, no NaN.
The second time, without types, is for the field names only: it finds unknown fields, and duplicate
keys, of which msgspec takes the last.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec

from quire.errors import InvalidRequestError
from quire.options import nearest_name, snake_case
from quire.server.http.wrong_value import wrong_value

T = TypeVar("T")

# Escapes in JSON text. Group "half": half of a surrogate pair without its other half.
_ESCAPE = re.compile(
    r"\\(?:[^u]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|u)"
)

_LONG_CHARS = 4096
_ESCAPED_COLON = b"\\u003"  # and a few others
_UNKNOWN = "contains unknown field"  # of msgspec's error
_encoder = msgspec.json.Encoder()

# unsupported field → values that are accepted because they ask for nothing
NeutralValues = Mapping[str, Collection[Any]]


class Described(msgspec.Struct, kw_only=True):
    """A struct of requests. It has the rules of its JSON beyond its own types.

    neutral: unsupported fields, with the values that are accepted because they ask for nothing.
    variants: JSON schemas of which the object must match at least one. raw_types: the types that
    fields of raw JSON may have. optional_tag: the struct is assumed where an object has no tag.
    """

    neutral: ClassVar[NeutralValues] = {}
    variants: ClassVar[Sequence[dict[str, Any]]] = ()
    raw_types: ClassVar[Mapping[str, Sequence[Any]]] = {}
    optional_tag: ClassVar[bool] = False


class Strict(Described, kw_only=True, forbid_unknown_fields=True):
    """A struct in a body. It refuses unknown fields, but for null, and for the `neutral` ones."""


# the decoder of a type, made once
decoder_of: Callable[[Any], msgspec.json.Decoder[Any]] = cache(msgspec.json.Decoder)


def decode(body: bytes, decoder: msgspec.json.Decoder[T], *, path: str = "") -> T:
    """Decode JSON into the decoder's type. Raises InvalidRequestError that names the field.

    path: the field that holds `body`, if it is a part of a larger body.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        _check_text(body)  # a name that is no text would be reported as missing
        if _UNKNOWN not in str(error):
            raise wrong_value(str(error), path, decoder, body) from None
    except (ValueError, RecursionError) as error:
        raise _not_json(body, error) from None
    return _decode_known(body, decoder, path)


def _decode_known(body: bytes, decoder: msgspec.json.Decoder[T], path: str) -> T:
    """Decode a body with a name that its struct does not have: null under it asks for nothing."""
    from quire.server.http.inner_names import without_unknown_nulls  # usually not needed

    try:
        known = without_unknown_nulls(body, decoder, path, check_names)
    except (ValueError, RecursionError) as error:
        raise _not_json(body, error) from None
    try:
        return decoder.decode(known)
    except msgspec.ValidationError as error:
        raise wrong_value(str(error), path, decoder, known) from None


def _not_json(body: bytes, error: ValueError | RecursionError) -> InvalidRequestError:
    """The error of a body that cannot be decoded. Raises that of invalid Unicode in it."""
    if not body.strip():
        return InvalidRequestError("the body is empty; send a JSON object", code="bad_json")
    if isinstance(error, RecursionError):
        return _malformed("it is nested too deeply")
    _check_text(body)
    problem, _, _ = str(error).removeprefix("JSON is malformed: ").partition(" - at ")
    return _malformed(problem)


def _check_text(body: bytes) -> None:
    """Refuse invalid Unicode, which msgspec reports as another problem."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise _malformed(f"it is not UTF-8 (byte {error.start})") from None
    if text.startswith("\ufeff"):
        raise _malformed("it begins with a byte order mark")
    if half := next((m for m in _ESCAPE.finditer(text) if m["half"]), None):
        raise _malformed(f"{half[0]} (character {half.start()}) is half of a surrogate pair")


def read_names(body: bytes, *, long: bytes = b"") -> dict[str, Any]:
    """The body as plain values, for its field names. Refuses objects with duplicate keys.

    body: must have been accepted by `decode`. long: a value in it that is skipped if it is a list;
    such lists hold only texts and numbers. It is not in a body that `decode` had to write anew,
    without unknown nulls, unless both are spaced alike.
    """
    if long.startswith(b"["):
        body = _without(body, long)
    found = _read_unique(body)
    return _audited(body) if found is None else found


def _without(body: bytes, part: bytes) -> bytes:
    """`body` with a 0 for `part`, if it has that; bytes.replace is slow for a long part."""
    beginning = part[:64]
    start = body.find(beginning)
    while start >= 0 and not body.startswith(part, start):
        start = body.find(beginning, start + 1)
    return body if start < 0 else body[:start] + b"0" + body[start + len(part) :]


def _read_unique(body: bytes) -> dict[str, Any] | None:
    """The decoded body if a quick check shows that no key is lost, as in most bodies; else None.

    The decoded values encode to as many colons as the body has, unless a duplicate key was lost.
    """
    if _ESCAPED_COLON in body:  # the body would have one colon less
        return None
    try:
        found = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    num_colons = _num_colons(found, may_be_long=len(body) > _LONG_CHARS)
    return found if num_colons == body.count(b":") else None


def _num_colons(found: dict[str, Any], *, may_be_long: bool) -> int:
    """Colons of the values as JSON. Long texts are not encoded for that: it would take long."""
    if not may_be_long:
        return _encoder.encode(found).count(b":")
    texts = {n: v for n, v in found.items() if type(v) is str and len(v) > _LONG_CHARS}
    rest = {**found, **dict.fromkeys(texts, "")} if texts else found
    return _encoder.encode(rest).count(b":") + sum(
        text.count(":")
        for text in texts.values()
        if ":" in text  # to find none is quicker
    )


def _audited(body: bytes) -> dict[str, Any]:
    """The body decoded by the standard library, which passes duplicate keys to a hook."""
    try:
        parsed = _audit.decode(body.decode())
    except (RecursionError, UnicodeDecodeError) as error:
        raise _not_json(body, error) from None
    except ValueError:  # an integer too long for int(), in an unknown field
        raise _malformed("a number in it is too long") from None
    assert isinstance(parsed, dict)
    return parsed


@cache
def names_of(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The names of a struct's fields."""
    return frozenset(kind.__struct_fields__)


def check_names(
    found: Mapping[str, Any],
    known: Collection[str],
    unsupported: NeutralValues,
    path: str = "",
    *,
    beside: Collection[str] = (),
) -> None:
    """Refuse unknown fields, and unsupported ones with other than their neutral values.

    path: of the object that has them; in one within the body, null asks for nothing. beside: the
    fields that may stand beside that object.
    Raises InvalidRequestError with the field, and the nearest known name for a misspelt one.
    """
    if isinstance(known, frozenset) and found.keys() <= known:  # the usual case
        return
    for name, value in found.items():
        if name in known or (path and value is None):  # a client's own object has all of its fields
            continue
        shown = f"{path}{_shown(name)}"
        if name in unsupported:
            if any(_is_same(value, neutral) for neutral in unsupported[name]):
                continue
            from quire.compat.refused_fields import why_refused  # usually not needed

            text = f"{shown}: is not supported: {why_refused(name)}"
            raise InvalidRequestError(text, param=shown, code="unsupported_parameter")
        text = f"{shown}: unknown field; {_advice(name, known, path, beside)}"
        raise InvalidRequestError(text, param=shown, code="unknown_parameter")


def _shown(name: str) -> str:
    return name[:64] or "''"


def _advice(name: str, known: Collection[str], path: str, beside: Collection[str]) -> str:
    """The advice on an unknown field."""
    from quire.compat.field_homes import field_home  # usually not needed

    if name in beside:
        return f"send it beside {path.removesuffix('.')}"
    spelled = snake_case(name)
    is_moved = (beside or not path) and spelled not in known
    if is_moved and (home := field_home(spelled, {*known, *beside})):
        return home
    near = nearest_name(name, known)
    return f"did you mean {near!r}?" if near else "remove it"


def _is_same(value: Any, neutral: Any) -> bool:
    return type(value) is type(neutral) and bool(value == neutral)  # True is not 1


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = _shown(next(name for name, count in counts.items() if count > 1))
        raise InvalidRequestError(
            f"{twice}: it is sent twice; send it once", param=twice, code="duplicate_key"
        )
    return found


_audit = json.JSONDecoder(object_pairs_hook=_without_duplicates)


def _malformed(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the body is not valid JSON: {reason}; correct it", code="bad_json")
