"""Bodies of Ollama's /api/chat and /api/generate, decoded and checked."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from quire.errors import invalid_value
from quire.server.api.common import chat_messages
from quire.server.api.common.chat_request import MAX_MESSAGES
from quire.server.api.common.tool_definitions import MAX_TOOLS, Tools, check_tool_names
from quire.server.api.ollama.ollama_options import OPTION_RULES, Options, read_ollama
from quire.server.http import field_bounds, strict_json
from quire.server.http.field_bounds import ShortText
from quire.server.http.openapi_entry import StructRules
from quire.server.http.request_body import RequestBody, neutral_values

_INDICES = range(MAX_TOOLS)  # that Ollama's own calls have


class OllamaFunction(msgspec.Struct, kw_only=True):
    """A function that was called, or is called in an answer."""

    name: ShortText
    arguments: dict[str, Any] = {}


class OllamaCall(msgspec.Struct, kw_only=True):
    """A call of a tool. id: of it, where a client has one."""

    function: OllamaFunction
    id: ShortText | None = None
    type: field_bounds.FunctionKind = "function"


class OllamaMessage(msgspec.Struct, kw_only=True):
    """One message. tool_name: whose result a tool's message is; else of the call that is next.

    name: the same, as older clients and OpenAI's have it; of another message: who speaks.
    """

    role: chat_messages.Role
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[OllamaCall], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_name: ShortText | None = None
    name: ShortText | None = None
    tool_call_id: ShortText | None = None


class OllamaBody(RequestBody, kw_only=True, dict=True):
    """The fields of both bodies. format: "json", or a JSON schema. think: whether, or how much.

    truncate: cut a prompt that is too long for the context, from its begin.
    """

    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    truncate: bool | None = None
    keep_alive: str | float | None = None
    logprobs: bool | None = None
    top_logprobs: field_bounds.NumLogprobs | None = None


class OllamaChat(OllamaBody, kw_only=True, dict=True):
    """Body of /api/chat. Without messages it only loads the model."""

    messages: Annotated[list[OllamaMessage], msgspec.Meta(max_length=MAX_MESSAGES)] | None = None
    tools: Tools | None = None


class OllamaPrompt(OllamaBody, kw_only=True, dict=True):
    """Body of /api/generate. raw: without the chat template. No prompt only loads the model."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None


_MESSAGE_REFUSED: strict_json.NeutralValues = {"images": (None, [])}
_REFUSED: strict_json.NeutralValues = {
    "template": (None, ""),
    "context": (None, []),
    "suffix": (None, ""),
    **dict.fromkeys(("width", "height", "steps"), (None,)),
}
_chat_decoder = msgspec.json.Decoder(OllamaChat)
_prompt_decoder = msgspec.json.Decoder(OllamaPrompt)


def parse_chat(data: bytes) -> OllamaChat:
    """Decode a body of /api/chat. Raises InvalidRequestError."""
    request, found = read_ollama(data, _chat_decoder, _REFUSED)
    check_tool_names(found.get("tools"), None)
    for index, message in enumerate(found.get("messages") or ()):
        if message.get("images"):
            raise invalid_value(f"messages[{index}].images", "models read only text; remove them")
        names = strict_json.names_of(OllamaMessage)
        strict_json.check_names(message, names, _MESSAGE_REFUSED, f"messages[{index}].")
        if message.get("thinking") and message["role"] != "assistant":
            problem = f"a message of the role {message['role']} has none; remove it"
            raise invalid_value(f"messages[{index}].thinking", problem)
        for number, call in enumerate(message.get("tool_calls") or ()):
            where = f"messages[{index}].tool_calls[{number}]."
            strict_json.check_names(call, OllamaCall.__struct_fields__, {}, where)
            inner, known = call["function"], OllamaFunction.__struct_fields__
            strict_json.check_names(inner, known, {"index": _INDICES}, f"{where}function.")
    return request


def parse_prompt(data: bytes) -> OllamaPrompt:
    """Decode a body of /api/generate. Raises InvalidRequestError."""
    request, _ = read_ollama(data, _prompt_decoder, _REFUSED)
    if request.raw and request.system:
        raise invalid_value("system", "a raw prompt has none; leave one of the two out")
    return request


RULES = (
    StructRules(struct=OllamaChat, neutral=neutral_values(OllamaChat, _REFUSED)),
    StructRules(struct=OllamaPrompt, neutral=neutral_values(OllamaPrompt, _REFUSED)),
    StructRules(struct=OllamaMessage, neutral=_MESSAGE_REFUSED),
    OPTION_RULES,
)
