"""The JSON schemas of /openapi.json: msgspec's schemas of the structs, with the rules they have.

Request structs refuse unknown fields, so their schemas say so. Fields that are accepted only with
values that ask for nothing are listed with those values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import inspect

from quire.compat.foreign_name import ANY
from quire.server.http.allowed_values import type_info
from quire.server.http.request_body import neutral_values
from quire.server.http.strict_json import Described, NeutralValues

Schema = dict[str, Any]

REF = "#/components/schemas/{name}"


class Schemas:
    """The schemas of structs, as components and references to them.

    bodies: structs of requests. others: structs of answers.
    """

    def __init__(self, bodies: Iterable[Any], others: Iterable[Any]) -> None:
        bodies = list(bodies)
        described = list(described_in(bodies))
        raw = [
            kind for struct in described for kinds in struct.raw_types.values() for kind in kinds
        ]
        types = list(dict.fromkeys((*bodies, *others, *described, *raw)))
        schemas, self.components = msgspec.json.schema_components(types, ref_template=REF)
        self._of: dict[Any, Schema] = dict(zip(types, schemas, strict=True))
        for struct in described:
            self._fill_in(struct)
        for name in self._reachable([self._of[kind] for kind in bodies]):
            if "properties" in (schema := self.components[name]):  # also in structs without any
                schema["additionalProperties"] = False
        for struct in described:
            self._properties(struct).update(_neutral(neutral_values(struct)))
            if struct.variants:
                self._component(struct)["anyOf"] = list(struct.variants)
        for schema in self._all():
            _translate(schema)

    def ref(self, kind: Any) -> Schema:
        """The schema of one of the given structs."""
        return self._of[kind]

    def used_by(self, parts: Iterable[Any]) -> dict[str, Schema]:
        """The components that parts of a document refer to, directly or through others."""
        return {name: self.components[name] for name in sorted(self._reachable(parts))}

    def _component(self, struct: type[msgspec.Struct]) -> Schema:
        schema: Schema = self.components[_name(self._of[struct])]
        return schema

    def _properties(self, struct: type[msgspec.Struct]) -> dict[str, Schema]:
        properties: dict[str, Schema] = self._component(struct)["properties"]
        return properties

    def _fill_in(self, struct: type[Described]) -> None:
        """Give raw fields their types, and make the tag optional where it is."""
        for field, kinds in struct.raw_types.items():
            self._properties(struct)[field] = {"anyOf": [self._of[kind] for kind in kinds]}
        if struct.optional_tag:
            component, ref = self._component(struct), self._of[struct]
            component["required"].remove(str(struct.__struct_config__.tag_field))
            for schema in self._all():  # a discriminator would require the tag
                if "discriminator" in schema and ref in schema.get("anyOf", ()):
                    del schema["discriminator"]

    def _reachable(self, parts: Iterable[Any]) -> Iterator[str]:
        """The names of all components that parts refer to, directly or through others."""
        seen: set[str] = set()
        left = [_name(schema) for part in parts for schema in _refs(part)]
        while left:
            name = left.pop()
            if name not in seen and name in self.components:
                seen.add(name)
                yield name
                left += [_name(schema) for schema in _refs(self.components[name])]

    def _all(self) -> Iterator[Schema]:
        for schema in (*self.components.values(), *self._of.values()):
            yield from _walk(schema)


def described_in(kinds: Iterable[Any]) -> Iterator[type[Described]]:
    """The structs of requests in types, and in all types inside, each once."""
    seen: set[type] = set()
    left: list[inspect.Type] = [type_info(kind) for kind in kinds]
    while left:
        match left.pop():
            case inspect.StructType(cls=cls, fields=fields):
                if cls not in seen and issubclass(cls, Described):
                    seen.add(cls)
                    yield cls
                    left += [field.type for field in fields]
                    left += [type_info(kind) for raw in cls.raw_types.values() for kind in raw]
            case inspect.UnionType(types=types) | inspect.TupleType(item_types=types):
                left += types
            case inspect.ListType(item_type=inner) | inspect.DictType(value_type=inner):
                left.append(inner)
            case inspect.Metadata(type=inner):
                left.append(inner)


def _name(ref: Schema) -> str:
    return str(ref["$ref"]).rpartition("/")[2]


def _walk(schema: Any) -> Iterator[Schema]:
    """Every object inside, the outer ones first."""
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from _walk(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _walk(value)


def _refs(schema: Schema) -> Iterator[Schema]:
    return (part for part in _walk(schema) if isinstance(part.get("$ref"), str))


def _neutral(values: NeutralValues) -> dict[str, Schema]:
    text = "Not supported; accepted only with a value that asks for nothing."
    found: dict[str, Schema] = {}
    for name, taken in values.items():
        if taken is ANY:
            found[name] = {"description": "Taken without effect."}
        else:
            found[name] = {"enum": list(taken), "description": text}
    return found


def _translate(schema: Schema) -> None:
    """Replace Python's anchors by those of JSON Schema's regular expressions."""
    if isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")
