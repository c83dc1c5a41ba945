"""From a body's bytes to one strictly checked struct. Owns every rule about JSON itself.

A body is read twice. The first reading gives the values: strict types, strict JSON and UTF-8, no
NaN. The second one, for the names only, is free of types: it tells of fields that no struct
has, and of two equal keys, of which msgspec keeps the last.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec

from quire.errors import InvalidRequestError, invalid_value
from quire.server.http.allowed_values import allowed_values

T = TypeVar("T")

# Escapes in JSON text, so that each is seen as a whole; half: one that needs another beside it.
_ESCAPE = re.compile(
    r"\\(?:[^u]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|u)"
)

_ESCAPED_COLON = b"\\u003"  # and a few others
_encoder = msgspec.json.Encoder()

# field → values that ask for nothing, so that they are honoured by doing nothing
NeutralValues = Mapping[str, Collection[Any]]


class Strict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a body that refuses names that it does not know."""


def decode(body: bytes, decoder: msgspec.json.Decoder[T], *, path: str = "") -> T:
    """Decode JSON into the decoder's type. Raises InvalidRequestError that names the field.

    path: where the body itself stands, if it was cut from a larger one.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        _check_text(body)  # a name that is no text would be told as a missing one
        raise _wrong_value(str(error), path, decoder.type, body) from None
    except RecursionError:
        raise _malformed("it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _check_text(body)
        raise _malformed(str(error).removeprefix("JSON is malformed: ")) from None


def _check_text(body: bytes) -> None:
    """Refuse what is no Unicode text: msgspec sees it as something else that is wrong."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise _malformed(f"it is not UTF-8 (byte {error.start})") from None
    if text.startswith("\ufeff"):
        raise _malformed("it begins with a byte order mark")
    if half := next((m for m in _ESCAPE.finditer(text) if m["half"]), None):
        raise _malformed(f"{half[0]} (character {half.start()}) is half of a surrogate pair")


def read_names(body: bytes, *, long: bytes = b"") -> dict[str, Any]:
    """Read a body that msgspec accepted a second time; refuses an object with two equal keys.

    long: a value in it that is not read if it is a list; such lists have texts and numbers alone.
    """
    if long.startswith(b"["):
        body = _without(body, long)
    found = _read_unique(body)
    return _audited(body) if found is None else found


def _without(body: bytes, part: bytes) -> bytes:
    """`body` with a 0 in the place of `part`; bytes.replace takes long over a long part."""
    beginning = part[:64]
    place = body.index(beginning)
    while not body.startswith(part, place):
        place = body.index(beginning, place + 1)
    return body[:place] + b"0" + body[place + len(part) :]


def _read_unique(body: bytes) -> dict[str, Any] | None:
    """The same where it is quickly seen that all keys differ, as they mostly do; else None.

    What was read has a colon for each key, and those of its texts; a key that was lost, one more.
    """
    if _ESCAPED_COLON in body:  # it would not be counted
        return None
    try:
        found = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
    is_whole = isinstance(found, dict) and _encoder.encode(found).count(b":") == body.count(b":")
    return found if is_whole else None


def _audited(body: bytes) -> dict[str, Any]:
    """The same by the standard library's reader, which shows each object before keys are lost."""
    try:
        parsed = _audit.decode(body.decode())
    except RecursionError:
        raise _malformed("it is nested too deeply") from None
    except UnicodeDecodeError:
        _check_text(body)
        raise
    except ValueError:  # an integer too long for int(); only a field that nobody knows can hold it
        raise _malformed("a number in it is too long") from None
    assert isinstance(parsed, dict)
    return parsed


@cache
def names_of(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The names of a struct's fields."""
    return frozenset(kind.__struct_fields__)


def check_names(
    found: Mapping[str, Any], known: Collection[str], unsupported: NeutralValues, path: str = ""
) -> None:
    """Refuse every field that is not known, unless it is known to ask for nothing.

    Raises InvalidRequestError with the field, and the nearest known one for a misspelt name.
    """
    if isinstance(known, frozenset) and found.keys() <= known:  # as it mostly is
        return
    for name, value in found.items():
        if name in known:
            continue
        shown = f"{path}{name[:64]}"
        if name in unsupported:
            if any(_is_same(value, neutral) for neutral in unsupported[name]):
                continue
            text = f"{shown}: not supported yet; remove it"
            raise InvalidRequestError(text, param=shown, code="unsupported_parameter")
        near = difflib.get_close_matches(name[:64], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "remove it"
        text = f"{shown}: unknown field; {hint}"
        raise InvalidRequestError(text, param=shown, code="unknown_parameter")


def _is_same(value: Any, neutral: Any) -> bool:
    return type(value) is type(neutral) and bool(value == neutral)  # True is no 1


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)[:64]
        raise InvalidRequestError(
            f"{twice}: it is given twice; give it once", param=twice, code="duplicate_key"
        )
    return found


_audit = json.JSONDecoder(object_pairs_hook=_without_duplicates)


def _malformed(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the body is not valid JSON: {reason}; mend it", code="bad_json")


def _wrong_value(problem: str, path: str, kind: Any, body: bytes) -> InvalidRequestError:
    """msgspec's "Expected `int`, got `str` - at `$.max_tokens`" to "max_tokens: expected ..."."""
    what, _, where = problem.partition(" - at ")
    places = re.findall(r"\$([^`]*)", where)
    inside = places[-1] if places else ""
    field = path + inside
    missing = re.fullmatch(r"Object missing required field `(\w+)`", what)
    if missing:
        field = f"{field}.{missing[1]}".removeprefix(".")
        return InvalidRequestError(
            f"{field}: it is missing; give it", param=field, code="missing_field"
        )
    field = field.removeprefix(".")
    what = (what[:1].lower() + what[1:]).replace("`", "")
    if not field:
        return InvalidRequestError(f"the body: {what}; send a JSON object", code="invalid_value")
    allowed = allowed_values(kind, inside) if what.startswith("invalid") else []
    fix = f"give {_listed(allowed)}" if allowed else "correct it"
    shown = field
    if "`key` in" in where or inside.endswith("[...]"):
        field = field.removesuffix("[...]")
        shown = field + _wrong_key(body, kind, field)
    return invalid_value(field, f"{what}; {fix}", where=shown)


def _wrong_key(body: bytes, kind: Any, field: str) -> str:
    """Which entry of a map is at fault: its type's refusal says that one is, and not which."""
    hint = get_type_hints(kind, include_extras=True)[field]
    for key, value in read_names(body)[field].items():
        try:
            msgspec.convert({key: value}, hint, str_keys=True)
        except msgspec.ValidationError:
            return f"[{key[:64]!r}]"
    return ""


def _listed(values: list[str]) -> str:
    *most, last = values
    return f"{', '.join(most)} or {last}" if most else last
