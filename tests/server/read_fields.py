"""Which accepted request fields no code reads. The house rules use it, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fake_engine import FakeEngine

from quire.server.api.common import chat_request, generation_request
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.common.generation_request import GenerationRequest
from quire.server.api.common.micro_batch import Stages, run_stages
from quire.server.api.openai import chat, completions
from quire.server.api.openai.completions_request import CompletionRequest
from quire.server.model_registry import ModelRegistry
from quire.server.settings import ServerSettings

Prepare = Callable[..., Stages[Any]]

COMPLETION_BODY = b'{"prompt": "a", "stream": true, "stream_options": {"include_usage": true}}'
CHAT_BODY = (
    b'{"messages": [{"role": "user", "content": "a", "name": "b"}], "logprobs": true, '
    b'"tools": [{"type": "function", "function": {"name": "now"}}]}'
)


def unread_fields() -> set[str]:
    """Run both routes on requests that note each access; returns the fields without one."""
    return _unread(completions, CompletionRequest, completions.prepare, COMPLETION_BODY) | _unread(
        chat_request, ChatRequest, chat.prepare, CHAT_BODY
    )


def _unread(protocol: Any, request_type: Any, prepare: Prepare, body: bytes) -> set[str]:
    read: set[str] = set()
    noting = _noting(request_type, read)
    parse: Callable[[bytes, Any], Any] = protocol.parse

    def noting_parse(data: bytes, kind: Any) -> Any:
        plain = parse(data, kind)
        values = {name: getattr(plain, name) for name in request_type.__struct_fields__}
        return noting(**values)

    protocol.parse = noting_parse
    generation_request.GenerationRequest = _noting(GenerationRequest, read)  # type: ignore[misc]
    generation_request._cached_sampling.cache_clear()  # else its fields are not read again
    try:
        engine = FakeEngine()
        engine.tokenizer.chat_variables |= {"tools"}
        models = ModelRegistry.of(engine, ServerSettings(tool_call_parser="hermes"))
        run_stages(prepare(body, models))
    finally:
        protocol.parse = parse
        generation_request.GenerationRequest = GenerationRequest  # type: ignore[misc]
    return set(request_type.__struct_fields__) - read


def _noting(kind: Any, read: set[str]) -> Any:
    """A struct like `kind` that notes each field that is read."""

    class Noting(kind):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    return Noting
