"""Bodies of Ollama's /api/chat and /api/generate, decoded and checked."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from quire.server.api.common import chat_messages
from quire.server.api.common.chat_request import MAX_MESSAGES
from quire.server.api.common.tool_definitions import MAX_TOOLS, Tools
from quire.server.api.ollama.ollama_options import Options
from quire.server.http import field_bounds
from quire.server.http.field_bounds import ShortText
from quire.server.http.request_body import RequestBody
from quire.server.http.strict_json import Strict


class OllamaFunction(Strict):
    """A function that was called, or is called in an answer."""

    neutral: ClassVar = {"index": range(MAX_TOOLS)}  # that Ollama's own calls have
    name: ShortText
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class OllamaCall(Strict):
    """A call of a tool. id: of it, where a client has one."""

    function: OllamaFunction
    id: ShortText | None = None
    type: field_bounds.FunctionKind = "function"


class OllamaMessage(Strict):
    """One message. tool_name: whose result a tool's message is; else of the call that is next.

    name: the same, as older clients and OpenAI's have it; of another message: who speaks.
    """

    neutral: ClassVar = {"images": (None, [])}
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

    neutral: ClassVar = {
        "template": (None, ""),
        "context": (None, []),
        "suffix": (None, ""),
        **dict.fromkeys(("width", "height", "steps"), (None,)),
    }
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
