"""/v1/chat/completions: from a body to a conversation, and from its events to reply and chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET

from quire.core.request_output import CompletionOutput, RequestOutput
from quire.server.api.common import chat_request, conversation, route_rules
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.common.conversation import Conversation, counted
from quire.server.api.common.generation_job import Job
from quire.server.api.common.generation_request import force_usage
from quire.server.api.common.logprob_formats import prompt_logprobs
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute
from quire.server.api.common.streaming import OpenAIReplyFormatter, answer
from quire.server.api.common.usage import Usage
from quire.server.api.openai.chat_reply import (
    ChatChoice,
    ChatChunk,
    ChatReply,
    ChunkChoice,
    Delta,
    delta_of,
    message_of,
)
from quire.server.http.http_errors import ErrorChunk
from quire.server.http.openapi_entry import PostEntry
from quire.server.model_registry import ModelRegistry
from quire.tokenizer.tokenizer import Tokenizer


def prepare(body: bytes, models: ModelRegistry) -> Stages[ChatFormatter]:
    """Decode a body, render and encode the conversation for its model, in stages.

    Raises InvalidRequestError or ContextLengthError.
    """
    request = chat_request.parse(body, ChatRequest)
    model = models.find(request.model)
    yield
    if model.forces_usage:
        force_usage(request)
    chat = yield from conversation.prepare(request, model)
    return ChatFormatter([chat], chat.job, request, model.engine.tokenizer)


class ChatFormatter(OpenAIReplyFormatter):
    """The ReplyFormatter of /v1/chat/completions, and of a batch of conversations.

    job: with the prompts of all conversations. request: of the first; the others have its fields.
    """

    def __init__(
        self,
        conversations: Sequence[Conversation],
        job: Job,
        request: ChatRequest,
        tokenizer: Tokenizer,
    ) -> None:
        super().__init__(job, tokenizer)
        self._conversations = conversations
        self._num_prompt_logprobs = request.prompt_logprobs
        self._metadata = request.metadata
        self._started: set[int] = set()  # choices whose role was sent

    def reply(self, results: Sequence[RequestOutput], usage: Usage) -> ChatReply:
        """The complete answer as a chat completion."""
        job, is_batch = self.job, bool(self.job.samplings)
        reply = ChatReply(
            id=job.reply_id,
            created=job.created,
            model=job.model,
            choices=[],
            usage=usage,
            system_fingerprint=job.fingerprint,
        )
        for number, (chat, item) in enumerate(zip(self._conversations, results, strict=True)):
            choices = [self._choice(chat, output) for output in item.outputs]
            reply.choices += choices
            if is_batch:
                (choice,) = choices
                choice.index = number
            self._describe_prompt(choice if is_batch else reply, item)
        reply.usage = counted(usage, *self._conversations)
        if self._metadata is not None:
            reply.metadata = self._metadata
        return reply

    def _describe_prompt(self, reply: ChatReply | ChatChoice, item: RequestOutput) -> None:
        """Set what the request asks about its prompt."""
        if self.job.return_token_ids:
            reply.prompt_token_ids = item.prompt_token_ids
        if self._num_prompt_logprobs is not None and item.prompt_logprobs is not None:
            reply.prompt_logprobs = prompt_logprobs(
                item.prompt_logprobs, item.prompt_token_ids, self._num_prompt_logprobs
            )

    def chunks(self, index: int, item: RequestOutput) -> Iterator[ChatChunk]:
        """A stream's next chunks: first the role, then the deltas, the last with its reason."""
        chat = self._conversations[index]
        for output in item.outputs:
            if output.index not in self._started:
                yield self._first_chunk(chat, item, output.index)
            parts = self._parts(chat, output)
            if output.finish_reason is not None:
                _end(parts, chat, output)
            for choice in parts:
                chunk = self._chunk(choice)
                if choice.finish_reason is not None:
                    chunk.system_fingerprint = self.job.fingerprint
                yield chunk

    def ending(self, usage: Usage) -> Iterator[ChatChunk]:
        """The token counts, if the request asks for them."""
        if self.job.include_usage:
            chunk = self._chunk()
            chunk.usage = counted(usage, *self._conversations)
            yield chunk

    def _first_chunk(self, chat: Conversation, item: RequestOutput, index: int) -> ChatChunk:
        self._started.add(index)
        delta = Delta(role="assistant", content=chat.echoed or UNSET)
        chunk = self._chunk(ChunkChoice(index=index, delta=delta))
        if self.job.return_token_ids:
            chunk.prompt_token_ids = item.prompt_token_ids
        return chunk

    def _chunk(self, *choices: ChunkChoice) -> ChatChunk:
        job = self.job
        return ChatChunk(
            id=job.reply_id,
            created=job.created,
            model=job.model,
            choices=list(choices),
            usage=None if job.include_usage else UNSET,
        )

    def _parts(self, chat: Conversation, output: CompletionOutput) -> list[ChunkChoice]:
        """One part for each event; the first one has the token ids and logprobs."""
        deltas = [delta_of(event) for event in chat.read(output)]
        has_token_fields = self._num_logprobs is not None or self.job.return_token_ids
        is_held = bool(output.text) or output.finish_reason is not None
        if not deltas and (has_token_fields or not is_held):
            deltas = [Delta(content="")]
        parts = [ChunkChoice(index=output.index, delta=delta) for delta in deltas]
        if parts and has_token_fields:
            parts[0].logprobs = chat.logprobs(output, self._tokenizer)
            if self.job.return_token_ids:
                parts[0].token_ids = output.token_ids
        return parts

    def _choice(self, chat: Conversation, output: CompletionOutput) -> ChatChoice:
        message = message_of(chat.read(output))
        if chat.echoed:
            message.content = chat.echoed + (message.content or "")
        choice = ChatChoice(
            index=output.index,
            message=message,
            logprobs=chat.logprobs(output, self._tokenizer),
            finish_reason=chat.finish_reason(output),
            stop_reason=output.stop_reason,
        )
        if self.job.return_token_ids:
            choice.token_ids = output.token_ids
        return choice


def _end(parts: list[ChunkChoice], chat: Conversation, output: CompletionOutput) -> None:
    """Set the finish reason in the last part; tool calls get a part of its own, as OpenAI's."""
    if not parts or parts[-1].delta.tool_calls is not UNSET:
        parts.append(ChunkChoice(index=output.index, delta=Delta()))
    parts[-1].finish_reason = chat.finish_reason(output)
    if output.stop_reason is not None:
        parts[-1].stop_reason = output.stop_reason


ROUTE = GenerationRoute(
    PostEntry(
        "/v1/chat/completions",
        "Answer a conversation.",
        rules=(
            *route_rules.GENERATION,
            route_rules.STREAM,
            *route_rules.CHAT,
            route_rules.TOOL_CHOICE,
            "`top_logprobs` need `logprobs`.",
            "`max_tokens` and `max_completion_tokens` are the same, or one of them is left out.",
            "`chat_template_kwargs` are at most 16 KiB, 16 deep, and set no `messages` or `tools`.",
            "`reasoning_effort` needs a chat template that reads it.",
        ),
        example={"messages": [route_rules.USER_MESSAGE], "max_tokens": 8, "temperature": 0},
        body=ChatRequest,
        reply=ChatReply,
        events=(ChatChunk, ErrorChunk),
    ),
    prepare,
    answer,
)
