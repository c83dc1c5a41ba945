"""Names inside a body's structs: unknown ones that ask for nothing are left out, others refused.

A client's own object, sent back, has each field that this client knows, null where an answer had
none. Read only where msgspec has found a name that its struct does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
from msgspec import inspect

from quire.server.http.allowed_values import alternatives, type_info

# refuses the names of an object that are not among these, unless they are null or have one of the
# neutral values; its path
Check = Callable[[dict[str, Any], set[str], Mapping[str, Collection[Any]], str], None]


def without_unknown_nulls(
    body: bytes, decoder: msgspec.json.Decoder[Any], path: str, check: Check
) -> bytes:
    """The body without members that ask for nothing and that no struct has.

    path: the field that holds `body`, if it is a part of a larger body. Raises what `check` raises,
    and ValueError or RecursionError for a body that cannot be read without types.
    """
    found = msgspec.json.decode(body)
    return msgspec.json.encode(_known(found, type_info(decoder.type), path, check))


def _known(value: Any, kind: inspect.Type, path: str, check: Check) -> Any:
    if isinstance(value, list):
        if not any(isinstance(each, dict | list) for each in value):  # such as many token ids
            return value
        lists = (each for each in alternatives(kind) if isinstance(each, inspect.ListType))
        items = [each.item_type for each in lists]
        if not items:
            return value
        return [_known(v, items[0], f"{path}[{i}]", check) for i, v in enumerate(value)]
    struct = _struct_of(value, kind) if isinstance(value, dict) else None
    if struct is None:
        maps = (each for each in alternatives(kind) if isinstance(each, inspect.DictType))
        if not isinstance(value, dict) or (found := next(maps, None)) is None:
            return value
        return {n: _known(v, found.value_type, f"{path}[{n!r}]", check) for n, v in value.items()}
    kinds = {field.encode_name: field.type for field in struct.fields}
    where = f"{path}." if path else ""
    if struct.forbid_unknown_fields:
        known = {*kinds, *([struct.tag_field] if struct.tag_field else ())}
        check(value, known, getattr(struct.cls, "neutral", {}), where)
        value = {n: v for n, v in value.items() if n in known}
    return {n: _known(v, kinds[n], where + n, check) if n in kinds else v for n, v in value.items()}


def _struct_of(value: dict[str, Any], kind: inspect.Type) -> inspect.StructType | None:
    """The struct that an object is read as, by its tag where there are several."""
    structs = [member for member in alternatives(kind) if isinstance(member, inspect.StructType)]
    tagged = [each for each in structs if each.tag_field and value.get(each.tag_field) == each.tag]
    return next(iter(tagged or structs), None)
