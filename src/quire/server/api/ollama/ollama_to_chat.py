"""From a body of Ollama's API to a ChatRequest.

Answers are streamed unless `stream` is false, and end with the context where num_predict would not.
One whose beginning is the last message goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from quire.compat.sampler_stages import params_set_by
from quire.errors import invalid_value
from quire.server.api.common import chat_messages
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.common.response_format import (
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    ResponseFormat,
)
from quire.server.api.ollama.ollama_options import Options, no_effect_notes
from quire.server.api.ollama.ollama_request import (
    OllamaBody,
    OllamaChat,
    OllamaMessage,
    OllamaPrompt,
)
from quire.server.http.field_names import FieldNames
from quire.server.model_registry import RegisteredModel

# fields of Options → of a ChatRequest
_SAMPLING = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop")},
    **{name: name for name in ("presence_penalty", "frequency_penalty")},
    "repeat_penalty": "repetition_penalty",
}
_OWN = {
    **{f"response_format{inner}": "format" for inner in (".json_schema.schema", ".schema", "")},
    **{own: f"options.{name}" for name, own in _SAMPLING.items()},
    "max_tokens": "options.num_predict",
    "reasoning_effort": "think",
    "truncate_prompt_tokens": "truncate",
    "continue_final_message": "messages",
    ".reasoning_content": ".thinking",
}
NAMES = FieldNames(_OWN)
PROMPT_NAMES = FieldNames({**_OWN, "messages": "prompt"})


def messages_of(request: OllamaBody) -> list[chat_messages.Message]:
    """The conversation. Raises InvalidRequestError."""
    if isinstance(request, OllamaChat):
        return list(_messages(request.messages or ()))
    assert isinstance(request, OllamaPrompt)
    user = chat_messages.Message(role="user", content=request.prompt or "")
    if not request.system:
        return [user]
    return [chat_messages.Message(role="system", content=request.system), user]


def is_plain(request: OllamaBody, model: RegisteredModel) -> bool:
    """Whether the body's prompt goes to the model as it is, without a chat template."""
    if not isinstance(request, OllamaPrompt):
        return False
    return request.raw is True or not model.engine.tokenizer.has_chat_template


def to_chat(request: OllamaBody, model: RegisteredModel) -> ChatRequest:
    """Ollama's body as a ChatRequest. Raises InvalidRequestError."""
    if is_plain(request, model) and getattr(request, "system", None):
        problem = "a raw prompt, or one of a model without a chat template, has none; leave it out"
        raise invalid_value("system", problem)
    options = request.options or Options()
    given = {own: getattr(options, name) for name, own in _SAMPLING.items()}
    given |= params_set_by("repeat_last_n", options.repeat_last_n)
    limit, messages = options.num_predict, messages_of(request)
    last = messages[-1] if messages else None
    is_started = last is not None and last.role == "assistant" and not last.tool_calls
    chat = ChatRequest(
        **given,
        model=request.model,
        messages=messages,
        continue_final_message=is_started and bool(last and last.content),
        max_tokens=None if limit is None or limit < 0 else limit,
        stream=request.stream is not False,
        truncate_prompt_tokens=-1 if request.truncate else None,
        logprobs=request.top_logprobs is not None if request.logprobs is None else request.logprobs,
        top_logprobs=request.top_logprobs,
        response_format=_response_format(request.format),
        tools=request.tools if isinstance(request, OllamaChat) else None,
    )
    chat.take_over(request)
    chat.note_no_effect(*no_effect_notes(request.keep_alive, options))
    _add_thinking(chat, request, model)
    return chat


def _add_thinking(chat: ChatRequest, request: OllamaBody, model: RegisteredModel) -> None:
    if (think := request.think) is None:
        return
    if is_plain(request, model):
        chat.note_no_effect("think has no effect: the prompt goes through no chat template")
    elif isinstance(think, str):
        chat.reasoning_effort = think
    elif "enable_thinking" in model.engine.tokenizer.chat_variables:
        chat.chat_template_kwargs = {"enable_thinking": think}
    elif think or model.parsers.reasoning is not None:  # a model without any does not think
        chat.note_no_effect("think has no effect: the chat template has no variable for it")


def _response_format(given: str | dict[str, Any] | None) -> ResponseFormat | None:
    if not given:
        return None
    if isinstance(given, dict):
        return JsonSchemaFormat(JsonSchema(schema=given))
    if given != "json":
        raise invalid_value("format", f"must be 'json' or a JSON schema, not {given[:64]!r}")
    return JsonObjectFormat()


def _messages(given: Sequence[OllamaMessage]) -> Iterator[chat_messages.Message]:
    """Messages with ids of calls, which Ollama's need not have."""
    unanswered: list[tuple[str, str]] = []  # names and ids of calls
    for index, message in enumerate(given):
        calls = [
            chat_messages.ToolCall.of(
                call.id or f"call_{index}_{n}",
                call.function.name,
                msgspec.json.encode(call.function.arguments).decode(),
            )
            for n, call in enumerate(message.tool_calls or ())
        ]
        unanswered += [(call.function.name, call.id) for call in calls]
        yield chat_messages.Message(
            role=message.role,
            content=message.content or (None if message.role == "assistant" else ""),
            name=message.tool_name or message.name,
            tool_calls=calls or None,
            tool_call_id=_answered(message, unanswered),
            reasoning_content=message.thinking,
        )


def _answered(message: OllamaMessage, unanswered: list[tuple[str, str]]) -> str | None:
    """The id of the call that a tool's message answers: by its id, by its name, or the next."""
    if message.role != "tool":
        return message.tool_call_id
    if message.tool_call_id is not None:
        unanswered[:] = [call for call in unanswered if call[1] != message.tool_call_id]
        return message.tool_call_id
    name = message.tool_name or message.name
    named = [call for call in unanswered if call[0] == name] or unanswered
    if not named:
        return "call"
    found = named[0]
    unanswered.remove(found)
    return found[1]
