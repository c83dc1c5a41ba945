"""/v1/chat/completions: from a body to a conversation, and from its events to reply and chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET

from quire.core.request_output import CompletionOutput, RequestOutput
from quire.server.api.common import chat_request, conversation, route_rules
from quire.server.api.common.chat_messages import Message
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.common.conversation import Conversation
from quire.server.api.common.generation_request import force_usage
from quire.server.api.common.logprob_formats import ChatLogprobs, chat_logprobs, prompt_logprobs
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
    request = chat_request.parse(body)
    model = models.find(request.model)
    yield
    if model.forces_usage:
        force_usage(request)
    chat = yield from conversation.prepare(request, model)
    return ChatFormatter(chat, request, model.engine.tokenizer)


class ChatFormatter(OpenAIReplyFormatter):
    """The ReplyFormatter of /v1/chat/completions, for one conversation."""

    def __init__(
        self, conversation: Conversation, request: ChatRequest, tokenizer: Tokenizer
    ) -> None:
        super().__init__(conversation.job, tokenizer)
        self._conversation = conversation
        self._num_prompt_logprobs = request.prompt_logprobs
        self._echoed = _text_of(request.messages[-1]) if request.echo else ""
        self._metadata = request.metadata
        self._started: set[int] = set()  # choices whose role was sent

    def reply(self, results: Sequence[RequestOutput], usage: Usage) -> ChatReply:
        """The complete answer as a chat completion."""
        (item,) = results
        choices = [self.choice(output) for output in item.outputs]
        reply = self.reply_of(choices, self._conversation.counted(usage))
        self.describe_prompt(reply, item)
        return reply

    def describe_prompt(self, reply: ChatReply | ChatChoice, item: RequestOutput) -> None:
        """Set what the request asks about its prompt."""
        if self.job.return_token_ids:
            reply.prompt_token_ids = item.prompt_token_ids
        if self._num_prompt_logprobs is not None and item.prompt_logprobs is not None:
            reply.prompt_logprobs = prompt_logprobs(
                item.prompt_logprobs, item.prompt_token_ids, self._num_prompt_logprobs
            )

    def reply_of(self, choices: list[ChatChoice], usage: Usage) -> ChatReply:
        """The reply with these answers."""
        job = self.job
        reply = ChatReply(
            id=job.reply_id,
            created=job.created,
            model=job.model,
            choices=choices,
            usage=usage,
            system_fingerprint=job.fingerprint,
        )
        if self._metadata is not None:
            reply.metadata = self._metadata
        return reply

    @property
    def num_reasoning_tokens(self) -> int:
        """Reasoning tokens of the answers so far."""
        return self._conversation.num_reasoning_tokens

    def chunks(self, _index: int, item: RequestOutput) -> Iterator[ChatChunk]:
        """A stream's next chunks: first the role, then the deltas, the last with its reason."""
        for output in item.outputs:
            if output.index not in self._started:
                yield self._first_chunk(item, output.index)
            parts = self._parts(output)
            if output.finish_reason is not None:
                self._end(parts, output)
            for choice in parts:
                chunk = self._chunk(choice)
                if choice.finish_reason is not None:
                    chunk.system_fingerprint = self.job.fingerprint
                yield chunk

    def ending(self, usage: Usage) -> Iterator[ChatChunk]:
        """The token counts, if the request asks for them."""
        if self.job.include_usage:
            chunk = self._chunk()
            chunk.usage = self._conversation.counted(usage)
            yield chunk

    def _first_chunk(self, item: RequestOutput, index: int) -> ChatChunk:
        self._started.add(index)
        delta = Delta(role="assistant", content=self._echoed or UNSET)
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

    def _parts(self, output: CompletionOutput) -> list[ChunkChoice]:
        """One part for each event; the first one has the token ids and logprobs."""
        deltas = [delta_of(event) for event in self._conversation.read(output)]
        has_token_fields = self._num_logprobs is not None or self.job.return_token_ids
        is_held = bool(output.text) or output.finish_reason is not None
        if not deltas and (has_token_fields or not is_held):
            deltas = [Delta(content="")]
        parts = [ChunkChoice(index=output.index, delta=delta) for delta in deltas]
        if parts and has_token_fields:
            parts[0].logprobs = self._logprobs(output)
            if self.job.return_token_ids:
                parts[0].token_ids = output.token_ids
        return parts

    def _end(self, parts: list[ChunkChoice], output: CompletionOutput) -> None:
        """Set the finish reason in the last part; tool calls get a part of its own, as OpenAI's."""
        if not parts or parts[-1].delta.tool_calls is not UNSET:
            parts.append(ChunkChoice(index=output.index, delta=Delta()))
        parts[-1].finish_reason = self._conversation.finish_reason(output)
        if output.stop_reason is not None:
            parts[-1].stop_reason = output.stop_reason

    def choice(self, output: CompletionOutput) -> ChatChoice:
        """One complete answer."""
        message = message_of(self._conversation.read(output))
        if self._echoed:
            message.content = self._echoed + (message.content or "")
        choice = ChatChoice(
            index=output.index,
            message=message,
            logprobs=self._logprobs(output),
            finish_reason=self._conversation.finish_reason(output),
            stop_reason=output.stop_reason,
        )
        if self.job.return_token_ids:
            choice.token_ids = output.token_ids
        return choice

    def _logprobs(self, output: CompletionOutput) -> ChatLogprobs | None:
        if self._num_logprobs is None:
            return None
        return chat_logprobs(
            output.logprobs or [], output.token_ids, self._num_logprobs, self._tokenizer,
            as_ids=self._spells_ids,
        )  # fmt: skip


def _text_of(message: Message) -> str:
    """The text of an assistant's message, which `echo` returns; nothing of any other."""
    content = message.content if message.role == "assistant" else None
    if isinstance(content, list):
        return "\n".join(part.text for part in content)
    return content or ""


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
