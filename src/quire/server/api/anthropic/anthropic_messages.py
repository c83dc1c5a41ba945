"""Anthropic's /v1/messages: from a body to a conversation, and from its events to blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from quire.core.request_output import CompletionOutput, RequestOutput
from quire.server.api.anthropic import messages_reply as replies
from quire.server.api.anthropic.messages_request import (
    CountRequest,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from quire.server.api.anthropic.messages_to_chat import to_chat
from quire.server.api.common import conversation, route_rules
from quire.server.api.common.conversation import Conversation
from quire.server.api.common.generation_job import ReplyFormatter
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute, LightReply, LightRoute
from quire.server.api.common.streaming import answer
from quire.server.api.common.usage import Usage
from quire.server.http.field_names import FieldNames
from quire.server.http.http_errors import AnthropicError, ErrorReply
from quire.server.http.openapi_entry import PostEntry
from quire.server.http.request_body import read_body
from quire.server.http.request_record import new_id
from quire.server.model_registry import ModelRegistry
from quire.server.parsing.output_events import (
    Event,
    Part,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    arguments_of,
    parts_of,
)

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
_NAMES = FieldNames(
    {
        ".function.parameters": ".input_schema",
        ".function": "",
        "stop": "stop_sequences",
        "chat_template_kwargs": "thinking",
        "thinking_token_budget": "thinking.budget_tokens",
        "reasoning_effort": "output_config.effort",
        "continue_final_message": "messages",
        "response_format.json_schema": "output_config.format",
        "response_format": "output_config.format",
    }
)


def prepare(data: bytes, models: ModelRegistry) -> Stages[MessagesFormatter]:
    """Decode a body, render and encode the conversation, in stages. Raises InvalidRequestError."""
    request = read_body(data, MessagesRequest)
    model = models.find(request.model)
    chat = to_chat(request, model)
    yield
    chat_job = yield from conversation.prepare(
        chat,
        model,
        id_prefix="msg_",
        new_call_id=lambda: f"toolu_{new_id()[:24]}",
        names=_NAMES,
        cuts_to_context=True,
    )
    return MessagesFormatter(chat_job)


def count_tokens(data: bytes, models: ModelRegistry) -> LightReply:
    """The reply of /v1/messages/count_tokens. Raises InvalidRequestError."""
    request = read_body(data, CountRequest)
    model = models.find(request.model)
    chat = to_chat(request, model)
    token_ids = conversation.encode(chat, model, names=_NAMES)
    return LightReply(replies.TokenCountReply(len(token_ids)), chat.no_effect)


class MessagesFormatter(ReplyFormatter):
    """The ReplyFormatter of /v1/messages, for one conversation."""

    def __init__(self, conversation: Conversation) -> None:
        self.job = conversation.job
        self._conversation = conversation
        self._has_started = False
        self._index = -1  # of the block that is being sent
        self._kind: type[replies.OutputBlock] | None = None  # None: no block is open
        self._stop = replies.Stop("end_turn", None)

    def reply(self, results: Sequence[RequestOutput], usage: Usage) -> replies.MessageReply:
        """The complete answer."""
        ((output,),) = (item.outputs for item in results)
        content = [_block(part) for part in parts_of(self._conversation.read(output))]
        stop = self._ended(self._stop_of(output), usage)
        return self._message(content, replies.MessagesUsage.of(usage), stop)

    def chunks(self, _index_of_prompt: int, item: RequestOutput) -> Iterator[msgspec.Struct]:
        """The stream events that one part of the answer makes."""
        if not self._has_started:
            self._has_started = True
            cached = item.num_cached_tokens
            usage = replies.MessagesUsage(
                input_tokens=len(item.prompt_token_ids) - cached,
                cache_read_input_tokens=cached,
                output_tokens=0,
            )
            yield replies.MessageStart(self._message([], usage))
        for output in item.outputs:
            for event in self._conversation.read(output):
                yield from self._events(event)
            if output.finish_reason is not None:
                self._stop = self._stop_of(output)

    def ending(self, usage: Usage) -> Iterator[msgspec.Struct]:
        """The last events of a complete stream."""
        yield from self._close()
        stop = self._ended(self._stop, usage)
        yield replies.MessageDelta(stop, replies.MessagesUsage.of(usage))
        yield replies.MessageStop()

    def failure(self, reply: ErrorReply) -> AnthropicError:
        """The last event of a stream that failed."""
        return AnthropicError.of(reply)

    def _events(self, event: Event) -> Iterator[msgspec.Struct]:
        match event:
            case TextDelta(text):
                yield from self._open(TextBlock(text=""))
                yield replies.BlockDelta(self._index, replies.TextPiece(text))
            case ReasoningDelta(text):
                yield from self._open(ThinkingBlock(thinking=""))
                yield replies.BlockDelta(self._index, replies.ThinkingPiece(text))
            case ToolCallBegin(_, call_id, name):
                yield from self._open(ToolUseBlock(id=call_id, name=name, input={}))
            case ToolCallArguments(_, text):
                yield replies.BlockDelta(self._index, replies.InputPiece(text))

    def _open(self, block: replies.OutputBlock) -> Iterator[msgspec.Struct]:
        """Open a block, unless the open one has the same type. Each call is a block of its own."""
        if self._kind is type(block) and not isinstance(block, ToolUseBlock):
            return
        yield from self._close()
        self._index += 1
        self._kind = type(block)
        yield replies.BlockStart(self._index, block)
        if self._index == 0:
            yield replies.Ping()  # where Anthropic's own API sends one

    def _close(self) -> Iterator[msgspec.Struct]:
        if self._kind is None:
            return
        if self._kind is ThinkingBlock:  # some clients send back only what was signed
            yield replies.BlockDelta(self._index, replies.SignaturePiece(""))
        self._kind = None
        yield replies.BlockStop(self._index)

    def _stop_of(self, output: CompletionOutput) -> replies.Stop:
        if isinstance(output.stop_reason, str):
            return replies.Stop("stop_sequence", output.stop_reason)
        reason = self._conversation.finish_reason(output) or ""
        return replies.Stop(_STOP_REASONS.get(reason, "end_turn"), None)

    def _ended(self, stop: replies.Stop, usage: Usage) -> replies.Stop:
        """The stop of a complete answer: one shorter than max_tokens was cut by the context."""
        most = self.job.sampling.max_tokens
        if stop.stop_reason == "max_tokens" and most and usage.completion_tokens < most:
            return replies.Stop("model_context_window_exceeded", None)
        return stop

    def _message(
        self,
        content: list[replies.OutputBlock],
        usage: replies.MessagesUsage,
        stop: replies.Stop | None = None,
    ) -> replies.MessageReply:
        return replies.MessageReply(
            id=self.job.reply_id,
            model=self.job.model,
            content=content,
            stop_reason=None if stop is None else stop.stop_reason,
            stop_sequence=None if stop is None else stop.stop_sequence,
            usage=usage,
        )


def _block(part: Part) -> replies.OutputBlock:
    match part:
        case TextDelta(text):
            return TextBlock(text=text)
        case ReasoningDelta(text):
            return ThinkingBlock(thinking=text)
        case call:  # its input is empty if the answer ended inside it
            given = arguments_of(call.arguments) or {}
            return ToolUseBlock(id=call.id, name=call.name, input=given)


ROUTE = GenerationRoute(
    PostEntry(
        "/v1/messages",
        "Answer a conversation, in Anthropic's format.",
        rules=(
            route_rules.MODEL,
            route_rules.CONTEXT,
            *route_rules.CHAT,
            route_rules.TOOL_CHOICE,
            route_rules.ROLES,
        ),
        example={"messages": [route_rules.USER_MESSAGE], "max_tokens": 8},
        body=MessagesRequest,
        reply=replies.MessageReply,
        events=replies.EVENTS,
    ),
    prepare,
    answer,
)

COUNT_ROUTE = LightRoute(
    PostEntry(
        "/v1/messages/count_tokens",
        "Count a conversation's tokens.",
        rules=(
            route_rules.MODEL,
            *route_rules.CHAT,
            route_rules.TOOL_CHOICE,
            route_rules.ROLES,
        ),
        example={"messages": [route_rules.USER_MESSAGE]},
        body=CountRequest,
        reply=replies.TokenCountReply,
    ),
    count_tokens,
)
