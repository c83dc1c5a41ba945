"""/v1/chat/completions: from a body to a job, and from the engine's news to answers and chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.output import CompletionOutput, RequestOutput
from quire.core.request import RequestLimits
from quire.core.sampling_params import SamplingParams
from quire.errors import ContextLengthError
from quire.server import protocol
from quire.server.engine_protocol import EngineProtocol, TokenizerProtocol
from quire.server.job import Job, check_model, make_job
from quire.server.logprobs import ChatLogprobs, PromptLogprob, chat_logprobs, prompt_logprobs
from quire.server.usage import Usage

# Larger bodies are read, rendered and encoded beside the event loop, so that they hold nobody up.
PREPARE_IN_THREAD_BYTES = 4096
# A token rarely stands for more; longer text is refused before any work is spent on it.
MAX_CHARS_PER_TOKEN = 64


class ChatMessage(msgspec.Struct, kw_only=True):
    """The assistant's turn."""

    role: str = "assistant"
    content: str


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatReply(msgspec.Struct, kw_only=True):
    """A whole answer."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET


class Delta(msgspec.Struct, kw_only=True):
    """What a chunk adds to the assistant's turn."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    """The next part of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One chunk of a stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


async def prepare(body: bytes, engine: EngineProtocol) -> ChatDialect:
    """Read a body, render and encode the conversation.

    Raises InvalidRequestError or ContextLengthError.
    """
    if len(body) > PREPARE_IN_THREAD_BYTES:
        return await asyncio.to_thread(_prepare, body, engine)
    return _prepare(body, engine)


def _prepare(body: bytes, engine: EngineProtocol) -> ChatDialect:
    request = protocol.parse_chat(body)
    check_model(request.model, engine.info.model_name)
    sampling = protocol.chat_sampling(request)
    token_ids = _encode(request, engine)
    _check_fit(token_ids, sampling, engine.info.limits)
    job = make_job("chatcmpl", request, [token_ids], sampling, engine.info.model_name)
    return ChatDialect(job, request, engine.tokenizer)


def _encode(request: protocol.ChatRequest, engine: EngineProtocol) -> list[int]:
    num_chars = sum(map(_num_chars, request.messages))
    longest = MAX_CHARS_PER_TOKEN * engine.info.limits.max_model_len
    if num_chars > longest:
        text = f"messages: {num_chars} characters cannot fit a context of "
        text += f"{engine.info.limits.max_model_len} tokens; shorten them"
        raise ContextLengthError(text, param="messages")
    return engine.tokenizer.encode_chat(
        [_plain(message) for message in request.messages],
        add_generation_prompt=request.add_generation_prompt is not False,
        **(request.chat_template_kwargs or {}),
    )


def _check_fit(token_ids: list[int], sampling: SamplingParams, limits: RequestLimits) -> None:
    """The engine's own check, told of the field that a conversation has: it has no prompt."""
    try:
        limits.check(token_ids, sampling)
    except ContextLengthError as error:
        text = str(error).replace("prompt:", "messages:", 1).replace("the prompt", "them")
        raise ContextLengthError(text, param="messages") from None


def _num_chars(message: protocol.Message) -> int:
    """Characters of the text; those of parts, joined by line ends, are one more each."""
    content = message.content
    return len(content) if isinstance(content, str) else sum(len(p.text) + 1 for p in content)


def _plain(message: protocol.Message) -> dict[str, Any]:
    """A message as the tokenizer takes it."""
    content: str | list[dict[str, str]]
    if isinstance(message.content, str):
        content = message.content
    else:
        content = [{"type": part.type, "text": part.text} for part in message.content]
    plain = {"role": message.role, "content": content}
    return plain if message.name is None else plain | {"name": message.name}


class ChatDialect:
    """Speaks /v1/chat/completions for one job."""

    def __init__(
        self, job: Job, request: protocol.ChatRequest, tokenizer: TokenizerProtocol
    ) -> None:
        self.job = job
        self._num_logprobs = job.sampling.logprobs
        self._num_prompt_logprobs = request.prompt_logprobs
        self._tokenizer = tokenizer
        self._begun: set[int] = set()  # choices whose role was sent

    def reply(self, results: Sequence[RequestOutput], usage: Usage) -> ChatReply:
        """The whole answer."""
        (item,) = results
        reply = ChatReply(
            id=self.job.reply_id,
            created=self.job.created,
            model=self.job.model,
            choices=[self._choice(output) for output in item.outputs],
            usage=usage,
        )
        if self.job.return_token_ids:
            reply.prompt_token_ids = item.prompt_token_ids
        if self._num_prompt_logprobs is not None and item.prompt_logprobs is not None:
            reply.prompt_logprobs = prompt_logprobs(
                item.prompt_logprobs, item.prompt_token_ids, self._num_prompt_logprobs
            )
        return reply

    def chunks(self, _place: int, item: RequestOutput) -> Iterator[ChatChunk]:
        """A stream's next chunks: the role first, then text, then why it ended."""
        for output in item.outputs:
            if output.index not in self._begun:
                yield self._first_chunk(item, output.index)
            text_left = output.text or output.finish_reason is None
            if text_left or self._num_logprobs is not None or self.job.return_token_ids:
                yield self._chunk(self._text_part(output))
            if output.finish_reason is not None:
                end = ChunkChoice(
                    index=output.index, delta=Delta(), finish_reason=output.finish_reason
                )
                if output.stop_reason is not None:
                    end.stop_reason = output.stop_reason
                yield self._chunk(end)

    def usage_chunk(self, usage: Usage) -> ChatChunk:
        """The stream's last chunk."""
        job = self.job
        return ChatChunk(
            id=job.reply_id, created=job.created, model=job.model, choices=[], usage=usage
        )

    def _first_chunk(self, item: RequestOutput, index: int) -> ChatChunk:
        self._begun.add(index)
        chunk = self._chunk(ChunkChoice(index=index, delta=Delta(role="assistant", content="")))
        if self.job.return_token_ids:
            chunk.prompt_token_ids = item.prompt_token_ids
        return chunk

    def _chunk(self, choice: ChunkChoice) -> ChatChunk:
        job = self.job
        usage = None if job.include_usage else UNSET
        return ChatChunk(
            id=job.reply_id, created=job.created, model=job.model, choices=[choice], usage=usage
        )

    def _text_part(self, output: CompletionOutput) -> ChunkChoice:
        part = ChunkChoice(index=output.index, delta=Delta(content=output.text))
        part.logprobs = self._logprobs(output)
        if self.job.return_token_ids:
            part.token_ids = output.token_ids
        return part

    def _choice(self, output: CompletionOutput) -> ChatChoice:
        choice = ChatChoice(
            index=output.index,
            message=ChatMessage(content=output.text),
            logprobs=self._logprobs(output),
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
        )
        if self.job.return_token_ids:
            choice.token_ids = output.token_ids
        return choice

    def _logprobs(self, output: CompletionOutput) -> ChatLogprobs | None:
        if self._num_logprobs is None:
            return None
        return chat_logprobs(
            output.logprobs or [], output.token_ids, self._num_logprobs, self._tokenizer
        )
