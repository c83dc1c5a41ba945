"""Ollama's /api/chat and /api/generate: from a body to a conversation, and from it to lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Send

from quire.core.request_output import CompletionOutput, RequestOutput
from quire.server.api.common import chat_request, conversation, route_rules
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.common.conversation import Conversation
from quire.server.api.common.generation_job import make_job
from quire.server.api.common.generation_request import take_defaults
from quire.server.api.common.logprob_bounds import check_num_logprobs
from quire.server.api.common.logprob_formats import ChatLogprob, chat_logprobs, num_shown
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute
from quire.server.api.common.request_gate import RequestContext
from quire.server.api.common.streaming import LINES, answer
from quire.server.api.common.usage import Usage
from quire.server.api.ollama import ollama_request
from quire.server.api.ollama.ollama_request import (
    OllamaBody,
    OllamaCall,
    OllamaChat,
    OllamaFunction,
    OllamaPrompt,
)
from quire.server.http.http_errors import ErrorReply, PlainError, send_complete
from quire.server.http.openapi_entry import RUN_ERRORS, OpenApiEntry
from quire.server.model_registry import ModelRegistry, RegisteredModel
from quire.server.parsing.output_events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
)
from quire.server.parsing.output_parser import PlainParser


class OllamaAnswer(msgspec.Struct, kw_only=True):
    """The assistant's message; in a stream, its next part."""

    role: str = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaPart(msgspec.Struct, kw_only=True):
    """What an answer's lines have in common. Of the last one: times in nanoseconds, token counts.

    load_duration: 0, as models are loaded before a request is counted.
    """

    model: str
    created_at: datetime
    done: bool = False
    done_reason: str | UnsetType = UNSET
    logprobs: list[ChatLogprob] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class ChatPart(OllamaPart, kw_only=True):
    """A line, or the whole reply, of /api/chat."""

    message: OllamaAnswer


class PromptPart(OllamaPart, kw_only=True):
    """A line, or the whole reply, of /api/generate."""

    response: str
    thinking: str | UnsetType = UNSET


class OllamaFormatter:
    """The ReplyFormatter of both paths."""

    end_marker = b""

    def __init__(
        self, conversation: Conversation, model: RegisteredModel, *, has_message: bool
    ) -> None:
        self.job = conversation.job
        self._conversation = conversation
        self._tokenizer = model.engine.tokenizer
        self._num_logprobs = num_shown(self.job.sampling)
        self._has_message = has_message
        self._num_tokens = 0
        self._calls: list[tuple[str, str]] = []  # of the answer: id and name
        self._arguments: list[str] = []

    def reply(self, results: Sequence[RequestOutput], _usage: Usage) -> OllamaPart:
        """The complete answer."""
        (item,) = results
        (output,) = item.outputs
        parts = self._answers(output)
        whole = OllamaAnswer(content="".join([part.content for part in parts]))
        whole.thinking = "".join([part.thinking or "" for part in parts]) or UNSET
        whole.tool_calls = [call for part in parts for call in part.tool_calls or ()] or UNSET
        part = self._part(whole)
        part.logprobs = self._logprobs(output)
        return self._ended(part, item, output)

    def chunks(self, _index: int, item: RequestOutput) -> Iterator[OllamaPart]:
        """A stream's next lines; the last one has no text."""
        for output in item.outputs:
            logprobs = self._logprobs(output)
            for answer_part in self._answers(output):
                part = self._part(answer_part)
                part.logprobs, logprobs = logprobs, UNSET
                yield part
            if output.finish_reason is not None:
                end = self._part(OllamaAnswer())
                end.logprobs = logprobs
                yield self._ended(end, item, output)

    def ending(self, _usage: Usage) -> Iterator[OllamaPart]:
        """Nothing: the answer has its own last line."""
        yield from ()

    def failure(self, reply: ErrorReply) -> PlainError:
        """The last line of a stream that failed."""
        return PlainError(reply.error.message)

    def _answers(self, output: CompletionOutput) -> list[OllamaAnswer]:
        self._num_tokens += len(output.token_ids)
        found: list[OllamaAnswer] = []
        for event in self._conversation.read(output):
            found += self._answer(event)
        return found + (self._called() if output.finish_reason is not None else [])

    def _answer(self, event: Event) -> list[OllamaAnswer]:
        """The parts that an event makes: a call is one part, once its arguments are complete."""
        match event:
            case TextDelta(text):
                return [*self._called(), OllamaAnswer(content=text)]
            case ReasoningDelta(text):
                return [*self._called(), OllamaAnswer(thinking=text)]
            case ToolCallBegin(_, call_id, name):
                done = self._called()
                self._calls.append((call_id, name))
                return done
            case ToolCallArguments(_, text):
                self._arguments.append(text)
        return []

    def _called(self) -> list[OllamaAnswer]:
        """The call whose arguments are complete now; none if the answer ended inside them."""
        if not self._calls:
            return []
        call_id, name = self._calls.pop()
        text, self._arguments = "".join(self._arguments), []
        if (arguments := _object(text)) is None:
            return []
        function = OllamaFunction(name=name, arguments=arguments)
        return [OllamaAnswer(tool_calls=[OllamaCall(id=call_id, function=function)])]

    def _part(self, part: OllamaAnswer) -> OllamaPart:
        return _part(self.job.model, part, has_message=self._has_message)

    def _ended(self, part: OllamaPart, item: RequestOutput, output: CompletionOutput) -> OllamaPart:
        times = item.times
        first = times.arrival if times.first_token is None else times.first_token
        last = first if times.last_token is None else times.last_token
        part.done = True
        part.done_reason = "length" if output.finish_reason == "length" else "stop"
        part.total_duration = _nanoseconds(last - times.arrival)
        part.load_duration = 0
        part.prompt_eval_count = len(item.prompt_token_ids)
        part.prompt_eval_duration = _nanoseconds(first - times.arrival)
        part.eval_count = self._num_tokens
        part.eval_duration = _nanoseconds(last - first)
        return part

    def _logprobs(self, output: CompletionOutput) -> list[ChatLogprob] | UnsetType:
        if self._num_logprobs is None:
            return UNSET
        given = output.logprobs or []
        return chat_logprobs(given, output.token_ids, self._num_logprobs, self._tokenizer).content


def _part(model: str, part: OllamaAnswer, *, has_message: bool) -> OllamaPart:
    now = datetime.now(UTC)
    if has_message:
        return ChatPart(model=model, created_at=now, message=part)
    return PromptPart(model=model, created_at=now, response=part.content, thinking=part.thinking)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _object(arguments: str) -> dict[str, Any] | None:
    """A call's arguments; None if they are no JSON object: the answer ended inside them."""
    try:
        value = msgspec.json.decode(arguments) if arguments else {}
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def prepare_chat(body: bytes, models: ModelRegistry) -> Stages[OllamaFormatter | OllamaPart]:
    """Decode a body of /api/chat and make its job, in stages. Raises InvalidRequestError."""
    request = ollama_request.parse_chat(body)
    return (yield from _prepared(request, models, is_empty=not request.messages))


def prepare_prompt(body: bytes, models: ModelRegistry) -> Stages[OllamaFormatter | OllamaPart]:
    """The same for /api/generate."""
    request = ollama_request.parse_prompt(body)
    return (yield from _prepared(request, models, is_empty=not request.prompt))


def _prepared(
    request: OllamaBody, models: ModelRegistry, *, is_empty: bool
) -> Stages[OllamaFormatter | OllamaPart]:
    """The job of a body; the reply itself where nothing is to run. Raises InvalidRequestError."""
    has_message = isinstance(request, OllamaChat)
    name = ollama_request.served_name(request.model, models)
    model = models.find(name)
    yield
    if is_empty:
        part = _part(model.name, OllamaAnswer(), has_message=has_message)
        part.done, part.done_reason = True, "load"
        return part
    chat = ollama_request.to_chat(request, name, model.engine.tokenizer.chat_variables)
    if isinstance(request, OllamaPrompt) and (
        request.raw or not model.engine.tokenizer.has_chat_template
    ):
        found = _plain(chat, request.prompt or "", model)
    else:
        names = ollama_request.NAMES if has_message else ollama_request.PROMPT_NAMES
        found = yield from conversation.prepare(chat, model, names=names, cuts_to_context=True)
    return OllamaFormatter(found, model, has_message=has_message)


def _plain(chat: ChatRequest, prompt: str, model: RegisteredModel) -> Conversation:
    """A prompt without a chat template."""
    with ollama_request.PROMPT_NAMES:
        take_defaults(chat, model.request_defaults)
        sampling = ollama_request.PROMPT_NAMES.rename_fields(chat_request.sampling(chat))
        check_num_logprobs(sampling, [prompt], model.engine.info.limits, "top_logprobs")
        job = make_job("gen-", chat, [prompt], sampling, model, cut_to_context=True)
    return Conversation(job, PlainParser)


async def answer_lines(
    job: OllamaFormatter | OllamaPart, context: RequestContext, send: Send
) -> None:
    """Run a job and send its answer; see `answer`."""
    if isinstance(job, OllamaPart):
        await send_complete(send, 200, msgspec.json.encode(job))
    else:
        await answer(job, context, send, LINES)


_RULES = (
    *(route_rules.MODEL, route_rules.CONTEXT, route_rules.STRUCTURED_OUTPUT, route_rules.LOGPROBS),
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
    return OpenApiEntry(
        method="post",
        path=path,
        summary=f"{summary}, in Ollama's format.",
        rules=(*_RULES, *rules),
        example=example | {"options": {"num_predict": 8}},
        body=body,
        struct_rules=ollama_request.RULES,
        reply=part,
        events=(part, PlainError),
        lines=True,
        errors=RUN_ERRORS,
    )


_CHAT = _route(
    *("/api/chat", "Answer a conversation", route_rules.CHAT),
    *({"messages": [route_rules.USER_MESSAGE]}, OllamaChat, ChatPart),
)
_PROMPT_RULES = (route_rules.TEMPLATE, "A `raw` prompt has no `system`.")
_PROMPT = _route(
    *("/api/generate", "Answer or continue a prompt", _PROMPT_RULES),
    *({"prompt": "hello"}, OllamaPrompt, PromptPart),
)
ROUTES = (
    GenerationRoute(_CHAT, prepare_chat, answer_lines),
    GenerationRoute(_PROMPT, prepare_prompt, answer_lines),
)
