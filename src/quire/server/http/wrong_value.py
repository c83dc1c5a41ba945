"""Explains a value that the type of its field does not allow.

msgspec's errors have neither the names of a map's entries nor the values that a field may have;
both are found here.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

import msgspec

from quire.compat.foreign_kinds import why_not
from quire.errors import InvalidRequestError, invalid_value
from quire.server.http.allowed_values import allowed_values, only_bool

_PATH = re.compile(r"\$([^`]*)")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|(\[\.\.\.\])")
MAX_MAPS = 8  # nested maps whose entries are named
MAX_KEY_CHARS = 64
MAX_NAMED_KEYS = 4  # entries of a map that are wrong in the same way
TAGS = ("type",)  # fields that tell which struct of a union an object is


def wrong_value(
    problem: str, path: str, decoder: msgspec.json.Decoder[Any], body: bytes
) -> InvalidRequestError:
    """The error for msgspec's "Expected `int`, got `str` - at `$.max_tokens`".

    path: the field that holds `body`, if it is a part of a larger body.
    """
    what, _, where = problem.partition(" - at ")
    inside = _inside(where)
    field = (path + inside).removeprefix(".")
    missing = re.fullmatch(r"Object missing required field `(\w+)`", what)
    if missing:
        field = f"{field}.{missing[1]}".removeprefix(".")
        from quire.compat.field_homes import misplaced  # usually not needed

        known = getattr(decoder.type, "__struct_fields__", ())
        fix = misplaced(field, _names(body), known) or "send it"
        return InvalidRequestError(
            f"{field}: it is missing; {fix}", param=field, code="missing_field"
        )
    if not field:
        text = f'the body {_requirement(what, [])}; send its fields as {{"name": value}}'
        return InvalidRequestError(text.replace("an object", "a JSON object"), code="invalid_value")
    allowed = allowed_values(decoder.type, inside) if what.startswith("Invalid") else []
    if only := only_bool(decoder.type, inside) if "bool" in what else "":
        what = what.replace("bool", only)
    shown = (path + _with_keys(where, decoder, body)).removeprefix(".")
    return invalid_value(field.partition("[...]")[0], _requirement(what, allowed), where=shown)


def _names(body: bytes) -> list[str]:
    """The names of the body's fields; none where it cannot be read without types."""
    try:
        return list(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
    except (ValueError, RecursionError):
        return []


_TYPES = {
    "int": "an integer", "float": "a number", "str": "a string", "bool": "true or false",
    "array": "a list", "object": "an object",
}  # fmt: skip
_JSON_WORDS = {"True": "true", "False": "false"}
_EXPECTED = re.compile(r"Expected `([^`]*)`(.*?)(?:, got `([^`]*)`)?", re.DOTALL)
# the patterns that fields have: so many characters of a class
_MATCHING = re.compile(
    r" matching regex '\\+A\[([^\]]+)\]\{(?P<few>\d+),(?P<many>\d+)\}\\+Z'", re.DOTALL
)
_INVALID = re.compile(r"Invalid (?:enum )?value (.*)", re.DOTALL)


def _requirement(what: str, allowed: list[str]) -> str:
    """The requirement of a value, such as "must be an integer >= 1", from msgspec's message.

    allowed: the values that the field can have, if they can be listed.
    """
    if expected := _EXPECTED.fullmatch(what):
        types, bounds, found = expected.groups()
        if matched := _MATCHING.fullmatch(bounds):
            return f"must be {matched['few']} to {matched['many']} of the characters {matched[1]}"
        got = f", not {_TYPES.get(found, found)}" if found else ""
        if bounds == " of length <= 0":
            return "must be empty"
        kinds = [_TYPES.get(kind, kind) for kind in types.split(" | ")]
        return f"must be {_listed(' or '.join(kinds).split(' or '))}{bounds}{got}"
    if allowed:
        invalid = _INVALID.fullmatch(what)
        given = _JSON_WORDS.get(invalid[1], _clipped(invalid[1])) if invalid else ""
        return f"must be {_listed(allowed)}" + (given and f", not {given}{why_not(given[1:-1])}")
    return f"{what[:1].lower()}{what[1:]}; correct it".replace("`", "")


def _clipped(value: str) -> str:
    """A value as msgspec writes it, texts in quotes, so short that the fix has room after it."""
    quote = value[:1] if value.startswith("'") else ""
    return f"{value[: MAX_KEY_CHARS + 1]}{quote}" if len(value) > MAX_KEY_CHARS + 2 else value


def _inside(where: str) -> str:
    paths: list[str] = _PATH.findall(where)
    return paths[-1] if paths else ""


def _with_keys(where: str, decoder: msgspec.json.Decoder[Any], body: bytes) -> str:
    """The path with the names of maps' entries, as far as they can be found."""
    shown = inside = _inside(where)
    if "`key` in" in where:
        inside += "[...]"
    if "[...]" not in inside:
        return shown
    try:
        return _Search(decoder, body, where).named(inside)
    except (ValueError, RecursionError):  # nested too deeply to be read without types
        return shown.partition("[...]")[0]


class _Search:
    """Finds the entries of maps on the way to a wrong value.

    Each entry is decoded by itself, in a body that has nothing but what leads to it; the wrong one
    gives the same error. The time is proportional to the size of the body.
    """

    def __init__(self, decoder: msgspec.json.Decoder[Any], body: bytes, where: str) -> None:
        self._decoder = decoder
        self._where = _without_indices(where)
        self._value = _plain.decode(body.decode())
        self._heads: list[tuple[dict[str, Any], str] | None] = []  # None: a list

    def named(self, inside: str) -> str:
        """The path `inside` with keys instead of "[...]"."""
        shown, num_maps = "", 0
        for name, index, entry in _STEP.findall(inside):
            num_maps += bool(entry)
            if entry and (num_maps > MAX_MAPS or not isinstance(self._value, dict)):
                return shown
            if entry:
                keys = list(islice(filter(self._is_wrong, self._value), MAX_NAMED_KEYS))
                if not keys:
                    return shown
                shown += f"[{', '.join(repr(key[:MAX_KEY_CHARS]) for key in keys)}]"
                self._enter({}, keys[0])
            elif index:
                shown += f"[{index}]"
                self._heads.append(None)
                self._value = self._value[int(index)]
            else:
                shown += f".{name}"
                self._enter(_tags(self._value), name)
        return shown

    def _enter(self, tags: dict[str, Any], key: str) -> None:
        self._heads.append((tags, key))
        self._value = self._value[key]

    def _is_wrong(self, key: str) -> bool:
        body: Any = {key: self._value[key]}
        for head in reversed(self._heads):
            body = [body] if head is None else {**head[0], head[1]: body}
        try:
            self._decoder.decode(_encoder.encode(body))
        except msgspec.ValidationError as error:
            return _without_indices(str(error).partition(" - at ")[2]) == self._where
        return False


def _tags(value: Any) -> dict[str, Any]:
    return {name: value[name] for name in TAGS if isinstance(value.get(name), str)}


def _without_indices(where: str) -> str:
    return re.sub(r"\[\d+\]", "[]", where)


def _as_it_stands(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


_encoder = msgspec.json.Encoder()
_plain = json.JSONDecoder(
    parse_int=_as_it_stands, parse_float=_as_it_stands, parse_constant=_as_it_stands
)


def _listed(values: list[str]) -> str:
    *most, last = values
    return f"{', '.join(most)} or {last}" if most else last
