"""Ollama's /api/chat and /api/generate: the routes, and from a body to a job."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from quire.server.api.common import chat_request, conversation, route_rules
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.common.conversation import Conversation
from quire.server.api.common.generation_job import make_job
from quire.server.api.common.generation_request import take_defaults
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute, LightReply
from quire.server.api.common.streaming import LINES, answer
from quire.server.api.common.tool_definitions import tool_use
from quire.server.api.ollama import ollama_to_chat
from quire.server.api.ollama.ollama_options import asks_to_unload, read_ollama
from quire.server.api.ollama.ollama_reply import (
    ChatPart,
    OllamaAnswer,
    OllamaFormatter,
    OllamaPart,
    PromptPart,
    make_part,
)
from quire.server.api.ollama.ollama_request import OllamaBody, OllamaChat, OllamaPrompt
from quire.server.http.http_errors import PlainError
from quire.server.http.openapi_entry import OpenApiEntry, PostEntry
from quire.server.model_registry import ModelRegistry, RegisteredModel
from quire.server.parsing.output_parser import PlainParser


def prepare(
    kind: type[OllamaChat | OllamaPrompt], body: bytes, models: ModelRegistry
) -> Stages[OllamaFormatter | LightReply]:
    """Decode a body and make its job, in stages; the reply itself where nothing is to run.

    Raises InvalidRequestError.
    """
    request = read_ollama(body, kind)
    has_message = isinstance(request, OllamaChat)
    model = models.find(request.model)
    yield
    chat = ollama_to_chat.to_chat(request, model)
    if not (request.messages if isinstance(request, OllamaChat) else request.prompt):
        tool_use(chat.tools, chat.tool_choice)  # which a conversation checks, too
        return _nothing_to_run(request, chat, model.name, has_message=has_message)
    if ollama_to_chat.is_plain(request, model):
        found = _plain(chat, model)
    else:
        names = ollama_to_chat.NAMES if has_message else ollama_to_chat.PROMPT_NAMES
        found = yield from conversation.prepare(chat, model, names=names, cuts_to_context=True)
    return OllamaFormatter(found, model, has_message=has_message)


def _nothing_to_run(
    request: OllamaBody, chat: ChatRequest, model: str, *, has_message: bool
) -> LightReply:
    """The reply to what only loads a model, or unloads it. Neither is done: the server's own
    settings say when, so that no client takes the model from another.
    """
    part = make_part(model, OllamaAnswer(), has_message=has_message)
    is_end = asks_to_unload(request.keep_alive)
    part.done, part.done_reason = True, "unload" if is_end else "load"
    return LightReply(part, chat.no_effect)


def _plain(chat: ChatRequest, model: RegisteredModel) -> Conversation:
    """A prompt without a chat template, which is the chat's only message."""
    names, prompt = ollama_to_chat.PROMPT_NAMES, chat.messages[0].content
    assert isinstance(prompt, str), "the prompt is a text"
    with names:
        take_defaults(chat, model.request_defaults)
        sampling = names.rename_fields(chat_request.sampling(chat))
        job = make_job("gen-", chat, [prompt], sampling, model, names=names, cut_to_context=True)
    return Conversation(job, PlainParser)


_RULES = (
    route_rules.MODEL,
    route_rules.CONTEXT,
    route_rules.STRUCTURED_OUTPUT,
    route_rules.LOGPROBS,
    "`format` is `json` or a JSON schema.",
    "`think` as a text needs a chat template that reads `reasoning_effort`.",
    "`options.num_predict` is not 0; the answer may end before, with the context.",
)


def _route(
    path: str,
    summary: str,
    rules: Sequence[str],
    example: dict[str, Any],
    body: type[OllamaBody],
    part: type[OllamaPart],
) -> OpenApiEntry:
    return PostEntry(
        path,
        f"{summary}, in Ollama's format.",
        rules=(*_RULES, *rules),
        example=example | {"options": {"num_predict": 8}},
        body=body,
        reply=part,
        events=(part, PlainError),
        lines=True,
    )


_FIELDS_BY_ROLE = "`thinking` and `tool_calls` are the assistant's, `tool_call_id` is a tool's."
_CHAT = _route(
    "/api/chat", "Answer a conversation", (*route_rules.CHAT, _FIELDS_BY_ROLE),
    {"messages": [route_rules.USER_MESSAGE]}, OllamaChat, ChatPart,
)  # fmt: skip
_PROMPT_RULES = (route_rules.TEMPLATE, "A prompt without a chat template has no `system`.")
_PROMPT = _route(
    "/api/generate", "Answer or continue a prompt", _PROMPT_RULES,
    {"prompt": "hello"}, OllamaPrompt, PromptPart,
)  # fmt: skip
_answer = partial(answer, framing=LINES)
ROUTES = (
    GenerationRoute(_CHAT, partial(prepare, OllamaChat), _answer),
    GenerationRoute(_PROMPT, partial(prepare, OllamaPrompt), _answer),
)
