"""/v1/responses: from a body to a conversation, and from its events to output items."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Send

from quire.core.request_output import CompletionOutput, RequestOutput
from quire.errors import OverloadedError, invalid_value
from quire.server.api.common import conversation, route_rules
from quire.server.api.common.conversation import Conversation
from quire.server.api.common.field_names import FieldNames
from quire.server.api.common.logprob_formats import ChatLogprob, chat_logprobs, num_shown
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute, is_large
from quire.server.api.common.request_gate import RequestContext
from quire.server.api.common.streaming import answer
from quire.server.api.common.usage import Usage
from quire.server.api.openai import responses_reply as replies
from quire.server.api.openai import responses_request
from quire.server.api.openai.background_responses import answer_in_background
from quire.server.api.openai.background_watch import BackgroundWatch
from quire.server.api.openai.response_items import RUNNING, new_id, previous_items, stored_response
from quire.server.api.openai.response_store import ResponseStore
from quire.server.api.openai.responses_request import RESPONSES_RULES, ResponsesRequest
from quire.server.api.openai.responses_to_chat import to_chat
from quire.server.http.http_errors import ErrorReply
from quire.server.http.openapi_entry import RUN_ERRORS, OpenApiEntry
from quire.server.model_registry import ModelRegistry
from quire.server.parsing.output_events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
)
from quire.tokenizer.tokenizer import Tokenizer

_NAMES = FieldNames(
    {
        ".function": "",
        "messages": "input",
        "max_completion_tokens": "max_output_tokens",
        "max_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning.effort",
        "thinking_token_budget": "reasoning.max_tokens",
        "response_format.json_schema": "text.format",
        "response_format": "text.format",
    }
)


def prepare(
    store: ResponseStore, data: bytes, models: ModelRegistry, tenant: str
) -> Stages[ResponsesFormatter]:
    """Decode a body, render and encode the conversation, in stages. Raises InvalidRequestError."""
    request = responses_request.parse(data)
    model = models.find(request.model)
    if not store.is_on:
        request.store = False
    responses_request.check_background(request)
    previous = previous_items(store, request, tenant)
    chat = to_chat(request, previous.items)
    yield
    chat_job = yield from conversation.prepare(chat, model, id_prefix="resp_", names=_NAMES)
    keep = partial(_keep, store, tenant, request, previous.items)
    num_bytes = len(data) + previous.num_bytes
    return ResponsesFormatter(chat_job, request, model.engine.tokenizer, keep, num_bytes)


def _keep(
    store: ResponseStore,
    tenant: str,
    request: ResponsesRequest,
    previous: Sequence[msgspec.Raw],
    response: replies.Response,
) -> None:
    """Store a response, unless its request does not want that; replace it once it is queued.

    Raises OverloadedError if it could not be replaced, and InvalidRequestError if it has to be
    stored and is too large.
    """
    if not response.store:
        return
    is_running = response.status in RUNNING
    if response.background and response.status != "queued":
        encoded = msgspec.json.encode(response)
        store.replace_running(response.id, tenant, encoded, is_running=is_running)
        return
    stored = stored_response(response, request, previous)
    stored = stored._replace(process=os.getpid() if is_running else 0)
    if response.background and stored.num_bytes > store.max_each:
        problem = f"a response of {stored.num_bytes} bytes is not stored (at most {store.max_each})"
        raise invalid_value("background", f"{problem}; shorten the input, or leave it out")
    response.store = store.put(response.id, tenant, stored)


class ResponsesFormatter:
    """The ReplyFormatter of /v1/responses, for one conversation.

    num_bytes: of its body and of the stored turns before it.
    """

    end_marker = b""

    def __init__(
        self,
        conversation: Conversation,
        request: ResponsesRequest,
        tokenizer: Tokenizer,
        keep: Callable[[replies.Response], None],  # raises OverloadedError if it must be repeated
        num_bytes: int,
    ) -> None:
        is_stored = request.store is not False
        self.job = msgspec.structs.replace(conversation.job, is_stored=is_stored)
        self.num_bytes = num_bytes
        self._tokenizer = tokenizer
        self.keep = keep
        self._logprobs: list[ChatLogprob] = []  # of tokens whose text has not been read yet
        self._conversation = conversation
        self._request = request
        self._output: list[replies.OutputItem] = []
        self._is_open = False  # whether the last item may grow
        self._number = 0  # of the next event
        self._reason: str | None = None
        self._prompt: list[int] = []
        self._answer: list[int] = []

    def reply(self, results: Sequence[RequestOutput], usage: Usage) -> replies.Response:
        """The complete answer, stored."""
        response = self.completed(results, usage)
        self.keep(response)
        return response

    def completed(self, results: Sequence[RequestOutput], usage: Usage) -> replies.Response:
        """The complete answer."""
        (item,) = results
        (output,) = item.outputs
        self._prompt = item.prompt_token_ids
        for _ in self._read(output):
            pass
        for _ in self._close():
            pass
        return self._response(self._conversation.counted(usage))

    def chunks(self, _index_of_prompt: int, item: RequestOutput) -> Iterator[replies.StreamEvent]:
        """The stream events that one part of the answer makes."""
        self._prompt = item.prompt_token_ids
        if not self._number:
            yield self._numbered(replies.Created(response=self._response(None)))
            yield self._numbered(replies.InProgress(response=self._response(None)))
        for output in item.outputs:
            for event in self._read(output):
                yield self._numbered(event)

    def ending(self, usage: Usage) -> Iterator[replies.StreamEvent]:
        """The last events of a complete stream."""
        for event in self._close():
            yield self._numbered(event)
        response = self._response(self._conversation.counted(usage))
        self.keep(response)
        if response.status == "incomplete":
            yield self._numbered(replies.Incomplete(response=response))
        else:
            yield self._numbered(replies.Completed(response=response))

    def failure(self, reply: ErrorReply) -> replies.StreamEvent:
        """The last event of a stream that failed."""
        error = reply.error
        return self._numbered(
            replies.Failure(code=error.code, message=error.message, param=error.param)
        )

    def keep_started(self, status: str) -> bytes:
        """Store the response without an answer; returns it as JSON.

        Raises OverloadedError, or InvalidRequestError for one that is too large.
        """
        response = self._response(None)
        response.status = status
        self.keep(response)
        if not response.store:
            raise OverloadedError("the response could not be stored; send it again", retry_after=1)
        return msgspec.json.encode(response)

    def failed(self, code: str | None, message: str) -> replies.Response:
        """The response with why there is no answer."""
        response = self._response(None)
        response.status, response.error = "failed", replies.ResponseError(code, message)
        return response

    @property
    def is_in_background(self) -> bool:
        """Whether the client does not wait for the answer."""
        return bool(self._request.background)

    def _messages(self, token_ids: list[int]) -> list[replies.RawMessage] | UnsetType:
        if not self._request.enable_response_messages:
            return UNSET
        text = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return [replies.RawMessage(message=text, tokens=token_ids)]

    def _read(self, output: CompletionOutput) -> Iterator[replies.StreamEvent]:
        self._answer += output.token_ids
        if (count := num_shown(self.job.sampling)) is not None:
            shown = chat_logprobs(
                *(output.logprobs or [], output.token_ids, count, self._tokenizer),
                as_ids=self.job.spells_token_ids,
            )
            self._logprobs += shown.content
        for event in self._conversation.read(output):
            yield from self._events(event)
        if output.finish_reason is not None:
            self._reason = output.finish_reason

    def _numbered(self, event: replies.StreamEvent) -> replies.StreamEvent:
        event.sequence_number = self._number
        self._number += 1
        return event

    def _events(self, event: Event) -> Iterator[replies.StreamEvent]:
        match event:
            case TextDelta(text):
                yield from self._open(replies.OutputMessage(id=new_id("msg"), content=[]))
                yield from self._add_text(text, replies.TextPiece)
            case ReasoningDelta(text):
                self._logprobs = []
                yield from self._open(replies.OutputReasoning(id=new_id("rs"), content=[]))
                yield from self._add_text(text, replies.ReasoningPiece)
            case ToolCallBegin(_, call_id, name):
                self._logprobs = []
                call = replies.OutputCall(id=new_id("fc"), call_id=call_id, name=name)
                yield from self._open(call)
            case ToolCallArguments(_, text):
                item = self._output[-1]
                assert isinstance(item, replies.OutputCall), "arguments follow their call"
                item.arguments += text
                yield replies.ArgumentsPiece(item_id=item.id, output_index=self._index, delta=text)

    @property
    def _index(self) -> int:
        return len(self._output) - 1

    def _open(self, item: replies.OutputItem) -> Iterator[replies.StreamEvent]:
        """Open an item, unless the open one has the same type. Each call is an item of its own."""
        is_call = isinstance(item, replies.OutputCall)
        if self._is_open and type(item) is type(self._output[-1]) and not is_call:
            return
        yield from self._close()
        self._output.append(item)
        self._is_open = True
        yield replies.ItemAdded(output_index=self._index, item=replies.copy_of(item))
        if not isinstance(item, replies.OutputCall):
            part = item.begin_part()
            yield replies.PartAdded(item_id=item.id, output_index=self._index, part=part)

    def _add_text(
        self, text: str, piece: type[replies.TextPiece] | type[replies.ReasoningPiece]
    ) -> Iterator[replies.StreamEvent]:
        item = self._output[-1]
        assert not isinstance(item, replies.OutputCall), "the item has just been opened"
        item.content[0].text += text
        event = piece(item_id=item.id, output_index=self._index, delta=text)
        if isinstance(event, replies.TextPiece) and isinstance(item, replies.OutputMessage):
            event.logprobs, self._logprobs = self._logprobs, []
            item.content[0].logprobs = item.content[0].logprobs + event.logprobs
        yield event

    def _close(self) -> Iterator[replies.StreamEvent]:
        """Complete the open item. If max_tokens cut the answer inside it, it is incomplete."""
        if not self._is_open:
            return
        self._is_open = False
        item, index = self._output[-1], self._index
        item.status = "incomplete" if self._reason == "length" else "completed"
        match item:
            case replies.OutputCall():
                yield replies.ArgumentsDone(
                    item_id=item.id, output_index=index, name=item.name, arguments=item.arguments
                )
            case replies.OutputMessage():
                yield replies.TextDone(
                    item_id=item.id,
                    output_index=index,
                    text=item.content[0].text,
                    logprobs=item.content[0].logprobs,
                )
            case replies.OutputReasoning():
                text = item.content[0].text
                yield replies.ReasoningDone(item_id=item.id, output_index=index, text=text)
        if not isinstance(item, replies.OutputCall):
            yield replies.PartDone(item_id=item.id, output_index=index, part=item.content[0])
        yield replies.ItemDone(output_index=index, item=item)

    def _response(self, usage: Usage | None) -> replies.Response:
        request, job = self._request, self.job
        status = "in_progress"
        if usage is not None:
            status = "incomplete" if self._reason == "length" else "completed"
        return replies.Response(
            id=job.reply_id,
            created_at=job.created,
            status=status,
            incomplete_details=replies.Details() if status == "incomplete" else None,
            model=job.model,
            output=list(self._output) if usage is not None else [],
            usage=replies.ResponsesUsage.of(usage) if usage is not None else None,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata=request.metadata or {},
            parallel_tool_calls=request.parallel_tool_calls is not False,
            temperature=job.sampling.temperature,
            top_p=job.sampling.top_p,
            tool_choice=request.tool_choice or "auto",
            tools=request.tools or [],
            text=request.text or responses_request.PLAIN_TEXT,
            reasoning=request.reasoning or responses_request.Reasoning(),
            user=request.user,
            previous_response_id=request.previous_response_id,
            store=request.store is not False,
            background=self.is_in_background,
            input_messages=self._messages(self._prompt) if usage is not None else UNSET,
            output_messages=self._messages(self._answer) if usage is not None else UNSET,
        )


def route(store: ResponseStore) -> GenerationRoute[ResponsesFormatter]:
    """The route, which keeps responses in the store."""
    return GenerationRoute(
        *(_ENTRY, partial(prepare, store), partial(_answer, BackgroundWatch(store))),
        in_thread=_is_long,
        needs_tenant=True,
    )


def _is_long(data: bytes) -> bool:
    """Whether a body is long or may go on with a stored conversation, which may be long."""
    # a name may be escaped, as in "\u0070revious_response_id"
    return is_large(data) or b"previous_response_id" in data or b"\\u00" in data


async def _answer(
    watch: BackgroundWatch, formatter: ResponsesFormatter, context: RequestContext, send: Send
) -> None:
    """Answer; until then the stored turns count as bytes of the body."""
    context.hold_bytes(formatter.num_bytes)
    if formatter.is_in_background:
        await answer_in_background(formatter, watch, context, send)
    else:
        await answer(formatter, context, send)


_ENTRY = OpenApiEntry(
    method="post",
    path="/v1/responses",
    summary="Answer a conversation, as a response, which is stored unless `store` is false.",
    rules=(
        *(route_rules.MODEL, route_rules.CONTEXT, route_rules.STRUCTURED_OUTPUT),
        route_rules.LOGPROBS,
        "`previous_response_id` names a stored response of the same API key.",
        *(*route_rules.CHAT, route_rules.TOOL_CHOICE),
        "`reasoning.effort` needs a chat template that reads it.",
    ),
    example={"input": "hello", "max_output_tokens": 8},
    body=ResponsesRequest,
    struct_rules=RESPONSES_RULES,
    reply=replies.Response,
    events=replies.EVENTS,
    errors=RUN_ERRORS,
)
