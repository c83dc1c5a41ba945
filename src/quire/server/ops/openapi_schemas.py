"""The JSON schemas of /openapi.json: msgspec's schemas of the structs, completed by StructRules.

Request structs refuse unknown fields, so their schemas say so. Fields that are accepted only with
values that ask for nothing are listed with those values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from quire.compat.foreign_name import ANY
from quire.server.http.openapi_entry import StructRules
from quire.server.http.strict_json import NeutralValues

Schema = dict[str, Any]

REF = "#/components/schemas/{name}"


class Schemas:
    """The schemas of structs, as components and references to them.

    bodies: structs of requests. others: structs of answers. rules: at most one for each struct
    counts, the first.
    """

    def __init__(
        self, bodies: Iterable[Any], others: Iterable[Any], rules: Iterable[StructRules] = ()
    ) -> None:
        bodies = list(bodies)
        found = {rule.struct: rule for rule in rules}
        raw = [kind for rule in found.values() for kinds in rule.raw.values() for kind in kinds]
        types = list(dict.fromkeys((*bodies, *others, *found, *raw)))
        schemas, self.components = msgspec.json.schema_components(types, ref_template=REF)
        self._of: dict[Any, Schema] = dict(zip(types, schemas, strict=True))
        for rule in found.values():
            self._fill_in(rule)
        for name in self._reachable([self._of[kind] for kind in bodies]):
            _close(self.components[name])
        for rule in found.values():
            self._properties(rule.struct).update(_neutral(rule.neutral))
            if rule.variants:
                self._component(rule.struct)["anyOf"] = list(rule.variants)
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

    def _fill_in(self, rule: StructRules) -> None:
        """Give raw fields their types, and make the tag optional where it is."""
        for field, kinds in rule.raw.items():
            self._properties(rule.struct)[field] = {"anyOf": [self._of[kind] for kind in kinds]}
        if rule.optional_tag:
            component = self._component(rule.struct)
            component["required"].remove(str(rule.struct.__struct_config__.tag_field))
            ref = self._of[rule.struct]
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


def _close(schema: Schema) -> None:
    """Refuse unknown fields, also in structs without any field."""
    if "properties" in schema:
        schema["additionalProperties"] = False


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
