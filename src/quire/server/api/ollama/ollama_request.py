"""Bodies of Ollama's /api/chat and /api/generate, decoded and checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from quire.compat.foreign_name import ANY
from quire.compat.names_table import NAMES, NoEffect, Refused, meaning_of
from quire.errors import InvalidRequestError, invalid_value
from quire.server.api.common import chat_messages
from quire.server.api.common.chat_request import MAX_MESSAGES
from quire.server.api.common.tool_definitions import MAX_TOOLS, Tools, check_tool_names
from quire.server.http import field_bounds, strict_json
from quire.server.http.field_bounds import Int32, ShortText
from quire.server.http.openapi_entry import StructRules
from quire.server.http.request_body import RequestBody, neutral_values, read_body
from quire.server.model_registry import ModelRegistry

_NUM_PREDICT = msgspec.Meta(ge=-2, le=2**31 - 1, extra_json_schema={"not": {"const": 0}})
_INDICES = range(MAX_TOOLS)  # that Ollama's own calls have
_NO_TIME = re.compile(r"[+-]?(?:[0.]+(?:ns|us|µs|ms|s|m|h)?)+", re.ASCII)  # a duration of 0
# a duration in Go's words, or a number of seconds as text; "" asks for nothing
_TIME = re.compile(r"(?:[+-]?(?:\d*\.?\d+|\d+\.)(?:(?:ns|us|µs|ms|s|m|h)|$))*", re.ASCII)
LATEST = ":latest"  # the tag that Ollama's clients add to a name
_LOAD_OPTIONS = (
    *("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep"),
    *("numa", "low_vram", "f16_kv", "use_mmap", "use_mlock"),
)
_NO_EFFECT = "has no effect: the model is loaded with the server's settings"
_NO_REACH = "has no effect: penalties cover the whole answer and its prompt"


class Options(msgspec.Struct, kw_only=True):
    """Sampling params, and settings of a load, which have no effect. num_predict: -1: no limit."""

    temperature: field_bounds.Temperature | None = None
    top_k: field_bounds.TopK | None = None
    top_p: field_bounds.TopP | None = None
    min_p: field_bounds.MinP | None = None
    repeat_penalty: field_bounds.RepetitionPenalty | None = None
    repeat_last_n: Int32 | None = None
    penalize_newline: bool | None = None
    presence_penalty: field_bounds.Penalty | None = None
    frequency_penalty: field_bounds.Penalty | None = None
    seed: field_bounds.Seed | None = None
    stop: field_bounds.Word | field_bounds.StopStrings | None = None
    num_predict: Annotated[int, _NUM_PREDICT] | None = None
    num_ctx: Int32 | None = None
    num_batch: Int32 | None = None
    num_gpu: Int32 | None = None
    main_gpu: Int32 | None = None
    num_thread: Int32 | None = None
    num_keep: Int32 | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None

    @property
    def has_penalties(self) -> bool:
        """Whether it asks for penalties, of which repeat_last_n says how far they reach."""
        return bool(self.presence_penalty or self.frequency_penalty) or self.repeat_penalty not in (
            *(None, 1.0),
        )


_OPTION_NAMES = strict_json.names_of(Options)
# other engines' options that are taken, with their values
_NEUTRAL_OPTIONS: strict_json.NeutralValues = {
    row.name: row.takes
    for row in NAMES["sampling"]
    if row.name not in _OPTION_NAMES and (row.takes is ANY or row.takes)
}


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
    """One message. tool_name: whose result a tool's message is; else of the call that is next."""

    role: chat_messages.Role
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[OllamaCall], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_name: ShortText | None = None
    tool_call_id: ShortText | None = None


class OllamaBody(RequestBody, kw_only=True, dict=True):
    """The fields of both bodies. format: "json", or a JSON schema. think: whether, or how much."""

    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | ShortText | None = None
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
    request, found = read_body(data, _chat_decoder, _REFUSED)
    request.note_no_effect(*check_options(found))
    check_tool_names(found.get("tools"), None)
    for index, message in enumerate(found.get("messages") or ()):
        if message.get("images"):
            raise invalid_value(f"messages[{index}].images", "models read text alone; remove them")
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
    request, found = read_body(data, _prompt_decoder, _REFUSED)
    request.note_no_effect(*check_options(found))
    if request.raw and request.system:
        raise invalid_value("system", "a raw prompt has none; leave one of the two out")
    return request


def check_options(found: dict[str, Any]) -> list[str]:
    """A sentence about each option without effect that is another engine's; refuses wrong ones.

    found: the body as plain values. Raises InvalidRequestError.
    """
    options, notices = found.get("options") or {}, list[str]()
    if options.get("num_predict") == 0:
        raise invalid_value("options.num_predict", "must be an integer >= 1, or -1, not 0")
    for name, value in options.items():
        if name in _OPTION_NAMES:
            continue
        where = f"options.{name[:64]}"
        match meaning_of(name, value, ("sampling",)):
            case NoEffect(text=text, is_neutral=is_neutral):
                notices += [] if is_neutral else [f"options.{text}"]
            case Refused(text=text):
                problem = text.removeprefix(f"{name} ")
                raise InvalidRequestError(
                    f"{where}: {problem}", param=where, code="unsupported_parameter"
                )
            case _:
                strict_json.check_names({name: value}, _OPTION_NAMES, {}, "options.")
    return notices


def served_name(name: str | None, models: ModelRegistry) -> str | None:
    """The name without the tag that Ollama's clients add, unless a model has it with the tag."""
    if name is None or not name.endswith(LATEST):
        return name
    names = [known for known, _ in models.named_entries()]
    return name if name in names else name.removesuffix(LATEST)


def asks_to_unload(keep_alive: str | float | None) -> bool:
    """Whether a model is to be unloaded at once: a duration of 0, such as 0, "0" or "0s"."""
    if isinstance(keep_alive, str):
        return _NO_TIME.fullmatch(keep_alive) is not None
    return keep_alive == 0


def keep_alive_notes(keep_alive: str | float | None) -> Iterator[str]:
    """A sentence about `keep_alive`, if it is given. Raises InvalidRequestError."""
    if isinstance(keep_alive, str) and not _TIME.fullmatch(keep_alive):
        problem = "must be a number of seconds, or a duration such as '5m', not"
        raise invalid_value("keep_alive", f"{problem} {keep_alive[:64]!r}")
    if keep_alive is not None:
        yield "keep_alive has no effect: a model stays loaded; see idle_unload_seconds"


def no_effect_notes(request: OllamaBody, options: Options) -> Iterator[str]:
    """Sentences about the fields that have no effect."""
    yield from keep_alive_notes(request.keep_alive)
    reach = {"repeat_last_n": (None, -1, 0), "penalize_newline": (None, True)}
    for name, taken in reach.items():
        if getattr(options, name) not in taken and options.has_penalties:
            yield f"options.{name} {_NO_REACH}"
    for name in _LOAD_OPTIONS:
        if getattr(options, name) is not None:
            yield f"options.{name} {_NO_EFFECT}"


RULES = (
    StructRules(struct=OllamaChat, neutral=neutral_values(OllamaChat, _REFUSED)),
    StructRules(struct=OllamaPrompt, neutral=neutral_values(OllamaPrompt, _REFUSED)),
    StructRules(struct=OllamaMessage, neutral=_MESSAGE_REFUSED),
    StructRules(struct=Options, neutral=_NEUTRAL_OPTIONS),
)
