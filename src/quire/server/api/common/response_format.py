"""The fields that ask for structured output, in three generations, as StructuredOutputs.

response_format is OpenAI's, structured_outputs is vLLM's, guided_* are vLLM's older names for the
same, and json_schema and grammar are llama.cpp's. A request uses one of them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from quire.core.structured_outputs import KINDS, StructuredOutputs
from quire.errors import InvalidRequestError, invalid_value
from quire.server.api.common.prompt_types import EncodingFields
from quire.server.http import field_bounds
from quire.server.http.strict_json import Strict

Schema = str | dict[str, Any]
_NULL = {"type": "null"}
SchemaName = Annotated[str, msgspec.Meta(pattern=r"\A[a-zA-Z0-9_-]{1,64}\Z")]


class TextFormat(Strict, tag_field="type", tag="text"):
    """response_format of type text: no constraint."""


class JsonObjectFormat(Strict, tag_field="type", tag="json_object"):
    """response_format of type json_object: any JSON object; with a schema, as llama.cpp has it,
    JSON that matches it.
    """

    schema: dict[str, Any] | None = None


class JsonSchema(Strict, kw_only=True):
    """A schema. name, strict: have no effect, the answer always matches the schema."""

    name: SchemaName | None = None
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Strict, tag_field="type", tag="json_schema"):
    """response_format of type json_schema: JSON that matches a schema.

    The schema is in json_schema, or stands beside the type, as in llama.cpp's documents and in
    OpenAI's responses; then name, description and strict do, too.
    """

    variants = (
        {
            "required": ["json_schema"],
            "properties": {"json_schema": {"not": _NULL}, "schema": _NULL},
        },
        {"required": ["schema"], "properties": {"schema": {"not": _NULL}, "json_schema": _NULL}},
    )
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None
    name: SchemaName | None = None
    description: str | None = None
    strict: bool | None = None


class StructuralTag(Strict, kw_only=True):
    """A tag: its begin, JSON that matches the schema, if there is one, and its end."""

    begin: str
    schema: dict[str, Any] | None = None
    end: str


class StructuralTagFormat(Strict, tag_field="type", tag="structural_tag"):
    """response_format of type structural_tag: text with tags, in vLLM's two forms.

    structures and triggers are the older one, format is the newer one.
    """

    format: dict[str, Any] | None = None
    structures: list[StructuralTag] | None = None
    triggers: list[str] | None = None


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat

_FALSE = {"enum": [None, False]}


def _only(kind: str, **others: Any) -> dict[str, Any]:
    """JSON Schema of StructuredOutputFields with only `kind` set. others: of other fields."""
    kinds: dict[str, Any] = {name: _NULL for name in KINDS if name != kind}
    given = {"not": _NULL} if kind != "json_object" else {"const": True}
    if kind != "json_object":
        kinds["json_object"] = _FALSE
    return {"required": [kind], "properties": kinds | {kind: given} | others}


FIELD_VARIANTS = (
    *(_only(kind, whitespace_pattern=_NULL) for kind in ("json", "json_object")),
    *(_only(kind, disable_any_whitespace=_FALSE) for kind in ("json", "json_object")),
    *(
        _only(kind, whitespace_pattern=_NULL, disable_any_whitespace=_FALSE)
        for kind in ("regex", "choice", "grammar", "structural_tag")
    ),
)


class StructuredOutputFields(Strict):
    """One kind of structured output; json_object: false counts as absent.

    disable_any_whitespace and whitespace_pattern are for json and json_object.
    """

    neutral: ClassVar = {
        "disable_additional_properties": (None, False),
        "disable_fallback": (None, False),
    }
    variants = FIELD_VARIANTS
    json: Schema | None = None
    regex: field_bounds.Regex | None = None
    choice: field_bounds.Choices | None = None
    grammar: field_bounds.Grammar | None = None
    json_object: bool | None = None
    structural_tag: Schema | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: field_bounds.WhitespacePattern | None = None


class ResponseFormatFields(EncodingFields, kw_only=True, dict=True):
    """The fields of a request that ask for structured output, besides those of its prompt."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputFields | None = None
    guided_json: Schema | None = None
    guided_regex: field_bounds.Regex | None = None
    guided_choice: field_bounds.Choices | None = None
    guided_grammar: field_bounds.Grammar | None = None
    guided_whitespace_pattern: field_bounds.WhitespacePattern | None = None
    json_schema: Schema | None = None
    grammar: field_bounds.GrammarOrNone | None = None


_BY_FIELD = {f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar")} | {
    "json_schema": "json",
    "grammar": "grammar",
}


def structured_outputs_of(request: ResponseFormatFields) -> StructuredOutputs | None:
    """The structured output that a request asks for, or None. Raises InvalidRequestError."""
    requested = dict(_requested(request))
    pattern = request.guided_whitespace_pattern
    if pattern is not None and request.guided_json is None:
        field = "guided_whitespace_pattern"
        raise invalid_value(field, "it goes with guided_json; leave it out")
    if not requested:
        return None
    if len(requested) > 1:
        first, second = list(requested)[:2]
        raise invalid_value(second, f"{first} asks for structured output, too; set one of them")
    ((field, fields),) = requested.items()
    return StructuredOutputs(**fields, field=field)


def check_format(given: ResponseFormat | None) -> None:
    """Refuse a response_format of type json_schema without a schema, or with two."""
    if not isinstance(given, JsonSchemaFormat):
        return
    where = "response_format.json_schema"
    if given.json_schema is None and given.schema is None:
        raise InvalidRequestError(
            f"{where}: it is missing; send it", param=where, code="missing_field"
        )
    if given.json_schema is not None and given.schema is not None:
        problem = "json_schema has one, too; send one of them"
        raise invalid_value("response_format.schema", problem)


def _requested(request: ResponseFormatFields) -> list[tuple[str, dict[str, Any]]]:
    """Each field that asks for structured output, with the arguments of StructuredOutputs."""
    requested: list[tuple[str, dict[str, Any]]] = []
    match request.response_format:
        case JsonObjectFormat(schema=dict(schema)) | JsonSchemaFormat(schema=dict(schema)):
            requested.append(("response_format.schema", {"json": schema}))
        case JsonObjectFormat():
            requested.append(("response_format", {"json_object": True}))
        case JsonSchemaFormat(json_schema=JsonSchema() as schema):
            requested.append(("response_format.json_schema.schema", {"json": schema.schema}))
        case StructuralTagFormat() as tag:
            given = {"structural_tag": msgspec.to_builtins(tag)}
            requested.append(("response_format", given))
    if request.structured_outputs is not None:
        requested.append(_of_fields(request.structured_outputs))
    for name, kind in _BY_FIELD.items():
        if (value := getattr(request, name)) not in (None, ""):  # llama.cpp's clients: no grammar
            requested.append((name, {kind: value}))
    for name, fields in requested:
        if name == "guided_json":
            fields["whitespace_pattern"] = request.guided_whitespace_pattern
    return requested


def _of_fields(fields: StructuredOutputFields) -> tuple[str, dict[str, Any]]:
    given = {kind: value for kind in KINDS if (value := getattr(fields, kind)) not in (None, False)}
    name = f"structured_outputs.{next(iter(given))}" if len(given) == 1 else "structured_outputs"
    style = {"disable_any_whitespace", "whitespace_pattern"}
    return name, given | {name: getattr(fields, name) for name in style}
