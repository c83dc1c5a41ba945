"""From a conversation, by whichever API it came, to a job for the engine, and from the engine's
news to the events of its answers. Owns what every chat-like route shares; wording is theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quire.core.output import CompletionOutput
from quire.core.request import RequestLimits
from quire.core.sampling_params import SamplingParams
from quire.errors import ContextLengthError
from quire.server import protocol
from quire.server.engine_protocol import EngineProtocol
from quire.server.job import Job, check_model, make_job
from quire.server.parsing.events import AnswerParser, Event
from quire.server.parsing.plain import PlainParser

# A token rarely stands for more; longer text is refused before any work is spent on it.
MAX_CHARS_PER_TOKEN = 64


@dataclass(frozen=True, slots=True)
class Conversation:
    """A job, and how its answers are to be read."""

    job: Job
    new_parser: Callable[[], AnswerParser]
    _parsers: dict[int, AnswerParser] = field(default_factory=dict)  # by answer

    def read(self, output: CompletionOutput) -> list[Event]:
        """The events that an answer's next part brings. One-shot: the whole answer is the part."""
        parser = self._parser(output.index)
        events = parser.push(output.text)
        return events if output.finish_reason is None else events + parser.finish()

    def finish_reason(self, output: CompletionOutput) -> str | None:
        """Why the answer ended, after `read`: the engine's reason, or "tool_calls"."""
        if output.finish_reason == "stop" and self._parser(output.index).called_tools:
            return "tool_calls"
        return output.finish_reason

    def _parser(self, index: int) -> AnswerParser:
        if index not in self._parsers:
            self._parsers[index] = self.new_parser()
        return self._parsers[index]


def prepare(
    request: protocol.ChatRequest, engine: EngineProtocol, *, prefix: str = "chatcmpl"
) -> Conversation:
    """Check, render and encode a conversation. prefix: of the reply's id.

    Other APIs bring their requests into the form of a ChatRequest first.
    Raises InvalidRequestError or ContextLengthError, told of the fields of ChatRequest.
    """
    check_model(request.model, engine.info.model_name)
    sampling = protocol.chat_sampling(request)
    token_ids = _encode(request, engine)
    _check_fit(token_ids, sampling, engine.info.limits)
    job = make_job(prefix, request, [token_ids], sampling, engine.info.model_name)
    return Conversation(job, PlainParser)


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
