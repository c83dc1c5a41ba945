"""The fields that ask for a form of the answer, in three generations, and what they come to.

response_format is OpenAI's, structured_outputs is vLLM's, and guided_* are the older names for the
same. A request uses one of them.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from quire.core.structured_outputs import KINDS, StructuredOutputs
from quire.errors import invalid_value
from quire.server.http import field_bounds, strict_json
from quire.server.http.openapi_entry import StructRules

Schema = str | dict[str, Any]
SchemaName = Annotated[str, msgspec.Meta(pattern=r"\A[a-zA-Z0-9_-]{1,64}\Z")]


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchema(msgspec.Struct, kw_only=True):
    """A schema and what it is called. strict: the answer keeps to it in any case."""

    name: SchemaName
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    """JSON that keeps to a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputFields(msgspec.Struct, kw_only=True):
    """One of the forms of StructuredOutputs; false for json_object is as good as nothing.

    disable_any_whitespace and whitespace_pattern: go with json and json_object.
    """

    json: Schema | None = None
    regex: field_bounds.Regex | None = None
    choice: field_bounds.Choices | None = None
    grammar: field_bounds.Grammar | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: field_bounds.WhitespacePattern | None = None


_NULL = {"type": "null"}
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
        for kind in ("regex", "choice", "grammar")
    ),
)


class ResponseFormatFields(msgspec.Struct, kw_only=True):
    """The fields of a request."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputFields | None = None
    guided_json: Schema | None = None
    guided_regex: field_bounds.Regex | None = None
    guided_choice: field_bounds.Choices | None = None
    guided_grammar: field_bounds.Grammar | None = None
    guided_whitespace_pattern: field_bounds.WhitespacePattern | None = None


NO_EFFECT = ("name", "description", "strict")  # of a JsonSchema: accepted and never read

UNSUPPORTED: strict_json.NeutralValues = {  # in structured_outputs
    "disable_additional_properties": (None, False),
    "disable_fallback": (None, False),
    "structural_tag": (None,),
}

_GUIDED = {f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar")}


def structured_outputs_of(request: ResponseFormatFields) -> StructuredOutputs | None:
    """The form that a request asks for, if it does. Raises InvalidRequestError."""
    asked = dict(_asked(request))
    pattern = request.guided_whitespace_pattern
    if pattern is not None and request.guided_json is None:
        field = "guided_whitespace_pattern"
        raise invalid_value(field, "it goes with guided_json; leave it out")
    if not asked:
        return None
    if len(asked) > 1:
        first, second = list(asked)[:2]
        raise invalid_value(second, f"{first} asks for a form, too; give one of them")
    ((field, fields),) = asked.items()
    return StructuredOutputs(**fields, field=field)


def check_format_names(found: dict[str, Any]) -> None:
    """Refuse fields, as they were sent, that nobody knows. A schema's are the compiler's matter."""
    if isinstance(wanted := found.get("response_format"), dict):
        names = ("type", "json_schema") if wanted["type"] == "json_schema" else ("type",)
        strict_json.check_names(wanted, names, {}, "response_format.")
        if "json_schema" in names:
            where = "response_format.json_schema."
            strict_json.check_names(wanted["json_schema"], JsonSchema.__struct_fields__, {}, where)
    if isinstance(wanted := found.get("structured_outputs"), dict):
        strict_json.check_names(
            wanted, StructuredOutputFields.__struct_fields__, UNSUPPORTED, "structured_outputs."
        )


def _asked(request: ResponseFormatFields) -> list[tuple[str, dict[str, Any]]]:
    """Each field that asks for a form, with the field of StructuredOutputs that it stands for."""
    asked: list[tuple[str, dict[str, Any]]] = []
    match request.response_format:
        case JsonObjectFormat():
            asked.append(("response_format", {"json_object": True}))
        case JsonSchemaFormat(json_schema=given):
            asked.append(("response_format.json_schema.schema", {"json": given.schema}))
    if request.structured_outputs is not None:
        asked.append(_of_fields(request.structured_outputs))
    for name, kind in _GUIDED.items():
        if (value := getattr(request, name)) is not None:
            asked.append((name, {kind: value}))
    if asked and asked[-1][0] == "guided_json":
        asked[-1][1]["whitespace_pattern"] = request.guided_whitespace_pattern
    return asked


def _of_fields(fields: StructuredOutputFields) -> tuple[str, dict[str, Any]]:
    given = {kind: value for kind in KINDS if (value := getattr(fields, kind)) not in (None, False)}
    name = f"structured_outputs.{next(iter(given))}" if len(given) == 1 else "structured_outputs"
    style = {"disable_any_whitespace", "whitespace_pattern"}
    return name, given | {name: getattr(fields, name) for name in style}


STRUCTURED_OUTPUT_RULES = StructRules(
    struct=StructuredOutputFields, neutral=UNSUPPORTED, variants=FIELD_VARIANTS
)
