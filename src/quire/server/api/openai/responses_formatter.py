"""From the outputs of a /v1/responses request to its reply, or to its stream events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.request_output import CompletionOutput, RequestOutput
from quire.errors import OverloadedError
from quire.server.api.common.conversation import Conversation, counted
from quire.server.api.common.generation_job import ReplyFormatter
from quire.server.api.common.logprob_formats import num_shown
from quire.server.api.common.usage import Usage
from quire.server.api.openai import responses_reply as replies
from quire.server.api.openai import responses_request
from quire.server.api.openai.response_output import OutputItems, Status, TokenParts
from quire.server.api.openai.responses_request import ResponsesRequest
from quire.server.api.openai.responses_tools import ResponsesTools
from quire.server.http.http_errors import ErrorReply
from quire.tokenizer.tokenizer import Tokenizer


class ResponsesFormatter(ReplyFormatter):
    """The ReplyFormatter of /v1/responses, for one conversation.

    num_bytes: of its body and of the stored turns before it. keep: stores a response, in place of
    the started one in the background; raises OverloadedError if that failed.
    """

    def __init__(
        self,
        conversation: Conversation,
        request: ResponsesRequest,
        tools: ResponsesTools,
        tokenizer: Tokenizer,
        keep: Callable[[replies.Response], None],
        num_bytes: int,
    ) -> None:
        is_stored = request.store is not False
        self.job = msgspec.structs.replace(conversation.job, is_stored=is_stored)
        self.num_bytes = num_bytes
        self._tokenizer = tokenizer
        self.keep = keep
        self._conversation = conversation
        self._request = request
        self._output = OutputItems(self.job.reply_id, tools)
        self._tools = tools
        self._tokens: TokenParts | None = None  # of an answer with log-probabilities
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
        """The complete answer, not stored yet."""
        (item,) = results
        (output,) = item.outputs
        self._prompt = item.prompt_token_ids
        for _ in self._read(output):
            pass
        for _ in self._output.close(self._status):
            pass
        return self._response(counted(usage, self._conversation))

    def chunks(self, _index_of_prompt: int, item: RequestOutput) -> Iterator[replies.StreamEvent]:
        """The stream events that one part of the answer makes."""
        self._prompt = item.prompt_token_ids
        if not self._number:
            yield self._numbered(replies.Created(response=self._response(None)))
            yield self._numbered(replies.InProgress(response=self._response(None)))
        elif item.progress:
            yield self._numbered(replies.InProgress(response=self._response(None)))
        for output in item.outputs:
            for event in self._read(output):
                yield self._numbered(event)

    def ending(self, usage: Usage) -> Iterator[replies.StreamEvent]:
        """The last events of a complete stream."""
        for event in self._output.close(self._status):
            yield self._numbered(event)
        response = self._response(counted(usage, self._conversation))
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
        """The response with why there is no answer, not stored yet."""
        response = self._response(None)
        response.status, response.error = "failed", replies.ResponseError(code, message)
        return response

    @property
    def is_in_background(self) -> bool:
        """Whether the client does not wait for the answer."""
        return bool(self._request.background)

    @property
    def _status(self) -> Status:
        return "incomplete" if self._reason == "length" else "completed"

    def _messages(self, token_ids: list[int]) -> list[replies.RawMessage] | UnsetType:
        if not self._request.enable_response_messages:
            return UNSET
        text = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return [replies.RawMessage(message=text, tokens=token_ids)]

    def _read(self, output: CompletionOutput) -> Iterator[replies.StreamEvent]:
        self._answer += output.token_ids
        if num_shown(self.job.sampling) is not None and self._tokens is None:
            self._tokens = TokenParts(self._tokenizer, self.job.sampling, self._prompt)
        for part in [output] if self._tokens is None else self._tokens.of(output):
            if (shown := self._conversation.logprobs(part, self._tokenizer)) is not None:
                self._output.logprobs += shown.content
            for event in self._conversation.read(part):
                yield from self._output.add(event)
        if output.finish_reason is not None:
            self._reason = output.finish_reason

    def _numbered(self, event: replies.StreamEvent) -> replies.StreamEvent:
        event.sequence_number = self._number
        self._number += 1
        return event

    def _response(self, usage: Usage | None) -> replies.Response:
        request, job = self._request, self.job
        status = "in_progress" if usage is None else self._status
        return replies.Response(
            id=job.reply_id,
            created_at=job.created,
            status=status,
            incomplete_details=replies.Details() if status == "incomplete" else None,
            model=job.model,
            output=list(self._output.items) if usage is not None else [],
            usage=replies.ResponsesUsage.of(usage) if usage is not None else None,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata=request.metadata or {},
            parallel_tool_calls=request.parallel_tool_calls is not False,
            temperature=job.sampling.temperature,
            top_p=job.sampling.top_p,
            tool_choice=request.tool_choice or "auto",
            tools=self._tools.sent,
            text=request.text or responses_request.PLAIN_TEXT,
            reasoning=request.reasoning or responses_request.Reasoning(),
            user=request.user,
            previous_response_id=request.previous_response_id,
            store=request.store is not False,
            background=self.is_in_background,
            input_messages=self._messages(self._prompt) if usage is not None else UNSET,
            output_messages=self._messages(self._answer) if usage is not None else UNSET,
        )
