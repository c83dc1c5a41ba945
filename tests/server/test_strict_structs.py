"""Every object inside of a body refuses names that it does not have, wherever it stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fake_engine import FakeEngine
from msgspec import inspect

from quire.server.api.ollama.ollama_options import Options
from quire.server.app import build_app
from quire.server.http.request_body import RequestBody
from quire.server.ops.openapi import entries_of
from quire.server.settings import ServerSettings

CHECKED_BY_HAND = {Options}  # with other engines' names


def structs_in(kind: Any) -> Iterator[type]:
    """The structs of a type, and of all types inside."""
    seen: set[type] = set()
    left: list[Any] = [inspect.type_info(kind)]
    while left:
        match left.pop():
            case inspect.StructType(cls=cls, fields=fields):
                if cls not in seen:
                    seen.add(cls)
                    yield cls
                    left += [field.type for field in fields]
            case inspect.UnionType(types=types) | inspect.TupleType(item_types=types):
                left += types
            case inspect.ListType(item_type=inner) | inspect.DictType(value_type=inner):
                left.append(inner)
            case inspect.Metadata(type=inner):
                left.append(inner)


def test_inner_objects_refuse_unknown_names() -> None:
    found: set[type] = set()
    for entry in entries_of(build_app(FakeEngine(), ServerSettings()).routes):
        if entry.body is not None:
            raw = getattr(entry.body, "raw_types", {}).values()
            for kind in (entry.body, *(kind for kinds in raw for kind in kinds)):
                found |= set(structs_in(kind))
    inner = {cls for cls in found if not issubclass(cls, RequestBody)} - CHECKED_BY_HAND
    assert len(inner) > 40
    assert not [cls for cls in inner if not cls.__struct_config__.forbid_unknown_fields]  # type: ignore[attr-defined]
