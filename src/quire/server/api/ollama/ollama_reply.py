"""Replies of Ollama's /api/chat and /api/generate: one object, or a stream of lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.request_output import CompletionOutput, RequestOutput
from quire.server.api.common.conversation import Conversation
from quire.server.api.common.generation_job import ReplyFormatter
from quire.server.api.common.logprob_formats import ChatLogprob
from quire.server.api.common.timings import durations
from quire.server.api.common.usage import Usage
from quire.server.api.ollama.ollama_request import OllamaCall, OllamaFunction
from quire.server.http.http_errors import ErrorReply, PlainError
from quire.server.model_registry import RegisteredModel
from quire.server.parsing.output_events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    arguments_of,
)


class OllamaAnswer(msgspec.Struct, kw_only=True):
    """The assistant's message; in a stream, its next part."""

    role: str = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaPart(msgspec.Struct, kw_only=True):
    """The fields that all lines of an answer share; the last has nanoseconds and token counts.

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


class OllamaFormatter(ReplyFormatter):
    """The ReplyFormatter of both paths."""

    def __init__(
        self, conversation: Conversation, model: RegisteredModel, *, has_message: bool
    ) -> None:
        self.job = conversation.job
        self._conversation = conversation
        self._tokenizer = model.engine.tokenizer
        self._has_message = has_message
        self._num_tokens = 0
        self._logprobs: list[ChatLogprob] = []  # of the tokens since the last line
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
        return self._ended(self._part(whole), item, output)

    def chunks(self, _index: int, item: RequestOutput) -> Iterator[OllamaPart]:
        """A stream's next lines; the last one has no text."""
        for output in item.outputs:
            yield from map(self._part, self._answers(output))
            if output.finish_reason is not None:
                yield self._ended(self._part(OllamaAnswer()), item, output)

    def failure(self, reply: ErrorReply) -> PlainError:
        """The last line of a stream that failed."""
        return PlainError(reply.error.message)

    def _answers(self, output: CompletionOutput) -> list[OllamaAnswer]:
        self._num_tokens += len(output.token_ids)
        if (shown := self._conversation.logprobs(output, self._tokenizer)) is not None:
            self._logprobs += shown.content
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
        if (arguments := arguments_of(text)) is None:
            return []
        function = OllamaFunction(name=name, arguments=arguments)
        return [OllamaAnswer(tool_calls=[OllamaCall(id=call_id, function=function)])]

    def _part(self, answer: OllamaAnswer) -> OllamaPart:
        """A line, with the log-probabilities of the tokens since the last one."""
        part = make_part(self.job.model, answer, has_message=self._has_message)
        if self._logprobs:
            part.logprobs, self._logprobs = self._logprobs, []
        return part

    def _ended(self, part: OllamaPart, item: RequestOutput, output: CompletionOutput) -> OllamaPart:
        prompt, answer = durations(item.times)
        part.done = True
        part.done_reason = "length" if output.finish_reason == "length" else "stop"
        part.total_duration = _nanoseconds(prompt + answer)
        part.load_duration = 0
        part.prompt_eval_count = len(item.prompt_token_ids)
        part.prompt_eval_duration = _nanoseconds(prompt)
        part.eval_count = self._num_tokens
        part.eval_duration = _nanoseconds(answer)
        return part


def make_part(model: str, part: OllamaAnswer, *, has_message: bool) -> OllamaPart:
    """One line of a reply, with the time of now."""
    now = datetime.now(UTC)
    if has_message:
        return ChatPart(model=model, created_at=now, message=part)
    return PromptPart(model=model, created_at=now, response=part.content, thinking=part.thinking)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
