"""The schemas of the OpenAPI document: the wire's structs, and what is checked beyond their types.

Every object of a request refuses names that it does not know, so the document says so; fields that
are only taken when they ask for nothing are listed with those values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from quire.server.api.anthropic import messages_protocol
from quire.server.api.common import chat_messages, chat_request, response_format
from quire.server.api.openai import (
    completions_protocol,
    embeddings_protocol,
    responses_protocol,
    tokenize,
)
from quire.server.http.strict_json import NeutralValues

Schema = dict[str, Any]

REF = "#/components/schemas/{name}"

# struct → fields that are refused unless they ask for nothing
_NEUTRAL: Mapping[type[msgspec.Struct], NeutralValues] = {
    completions_protocol.CompletionRequest: completions_protocol.COMPLETION_UNSUPPORTED,
    chat_request.ChatRequest: chat_request.CHAT_UNSUPPORTED,
    chat_messages.Message: chat_messages.MESSAGE_UNSUPPORTED,
    response_format.FormFields: response_format.UNSUPPORTED,
    messages_protocol.MessagesRequest: messages_protocol.MESSAGES_UNSUPPORTED,
    messages_protocol.CountRequest: messages_protocol.MESSAGES_UNSUPPORTED,
    responses_protocol.ResponsesRequest: responses_protocol.RESPONSES_UNSUPPORTED,
    embeddings_protocol.EmbeddingRequest: embeddings_protocol.EMBEDDING_UNSUPPORTED,
    tokenize.TokenizeRequest: tokenize.TOKENIZE_UNSUPPORTED,
}

# struct → what one of must hold besides
_FORMS: Mapping[type[msgspec.Struct], Iterable[Schema]] = {
    chat_messages.Message: chat_messages.MESSAGE_FORMS,
    response_format.FormFields: response_format.FIELD_FORMS,
    messages_protocol.MessagesToolChoice: messages_protocol.TOOL_CHOICE_FORMS,
    responses_protocol.TextFormat: responses_protocol.TEXT_FORMAT_FORMS,
    tokenize.TokenizeRequest: tokenize.TOKENIZE_FORMS,
}


class Schemas:
    """The components, and references to them. bodies: the types of requests."""

    def __init__(self, bodies: Iterable[Any], others: Iterable[Any]) -> None:
        bodies = list(bodies)
        types = list(dict.fromkeys((*bodies, *others, *_RAW_FORMS, *_PARTS)))
        found, self.components = msgspec.json.schema_components(types, ref_template=REF)
        self._of: dict[Any, Schema] = dict(zip(types, found, strict=True))
        self._fill_in()
        for name in self._reachable([self._of[kind] for kind in bodies]):
            _close(self.components[name])
        for struct, values in _NEUTRAL.items():
            self._properties(struct).update(_neutral(values))
        for struct, forms_ in _FORMS.items():
            self._component(struct)["anyOf"] = list(forms_)
        for schema in self._all():
            _translate(schema)

    def ref(self, kind: Any) -> Schema:
        """The schema of a type that was given."""
        return self._of[kind]

    def used_by(self, described: Iterable[Any]) -> dict[str, Schema]:
        """The components that these parts of a document refer to, through others too."""
        return {name: self.components[name] for name in sorted(self._reachable(described))}

    def _component(self, struct: type[msgspec.Struct]) -> Schema:
        schema: Schema = self.components[_name(self._of[struct])]
        return schema

    def _properties(self, struct: type[msgspec.Struct]) -> dict[str, Schema]:
        properties: dict[str, Schema] = self._component(struct)["properties"]
        return properties

    def _fill_in(self) -> None:
        """What the structs keep as raw JSON, because its type depends on what is found there."""
        for struct, name, given in _RAW:
            self._properties(struct)[name] = {"anyOf": [self._of[form] for form in given]}
        for choice in self._properties(responses_protocol.ResponsesRequest)["input"]["anyOf"]:
            if choice["type"] == "array":
                choice["items"] = {"anyOf": self._of[responses_protocol.InputItem]["anyOf"]}
        self._component(responses_protocol.InputMessage)["required"].remove("type")

    def _reachable(self, parts: Iterable[Any]) -> Iterator[str]:
        """The names of all components that these are made of."""
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


# field of a struct → the forms that its JSON may have
_RAW = (
    (completions_protocol.CompletionRequest, "prompt", completions_protocol.PROMPT_FORMS),
    (embeddings_protocol.EmbeddingRequest, "input", embeddings_protocol.INPUT_FORMS),
)
_RAW_FORMS = tuple(form for _, _, given in _RAW for form in given)

# types that only stand inside others, and are asked for here
_PARTS = (*_NEUTRAL, *_FORMS, responses_protocol.InputItem, responses_protocol.InputMessage)


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
    """No other names; also where a struct has none at all."""
    if "properties" in schema:
        schema["additionalProperties"] = False


def _neutral(values: NeutralValues) -> dict[str, Schema]:
    text = "Not supported; taken only when it asks for nothing."
    return {name: {"enum": list(taken), "description": text} for name, taken in values.items()}


def _translate(schema: Schema) -> None:
    """Python's anchors to those of the regular expressions that JSON Schema knows."""
    if isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")
