"""A field that a route refuses says why, and what to do instead."""

from __future__ import annotations

import pytest
from asgi_client import call
from starlette.applications import Starlette

from quire.compat.refused_fields import WHY_REFUSED
from quire.server.api.anthropic.messages_request import MESSAGES_REFUSED
from quire.server.api.common.chat_messages import MESSAGE_UNSUPPORTED
from quire.server.api.common.chat_request import CHAT_REFUSED
from quire.server.api.common.response_format import UNSUPPORTED
from quire.server.api.llama_cpp.completion_request import REFUSED
from quire.server.api.ollama import ollama_request
from quire.server.api.openai.responses_request import RESPONSES_REFUSED

OLLAMA = {*ollama_request._REFUSED, *ollama_request.OllamaMessage.neutral}
TABLES = (MESSAGES_REFUSED, MESSAGE_UNSUPPORTED, CHAT_REFUSED, UNSUPPORTED)
TABLES += (REFUSED, RESPONSES_REFUSED)


def test_each_has_its_reason() -> None:
    assert OLLAMA.union(*TABLES) == set(WHY_REFUSED)
    assert all(text[0].islower() and not text.endswith(".") for text in WHY_REFUSED.values())


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        ("/v1/chat/completions", {"chat_template": "x"}, "chat_template"),
        ("/v1/completions", {"detokenize": False}, "detokenize"),
        ("/v1/responses", {"prompt": {"id": "x"}}, "prompt"),
        ("/v1/messages", {"thread": "x", "max_tokens": 1}, "thread"),
        ("/completion", {"return_token_ids": True}, "return_token_ids"),
        ("/api/generate", {"suffix": "x"}, "suffix"),
    ],
)
def test_a_refusal_says_it(app: Starlette, path: str, fields: dict[str, object], name: str) -> None:
    messages = [{"role": "user", "content": "a"}]
    bodies = {
        "/v1/chat/completions": {"messages": messages},
        "/v1/messages": {"messages": messages},
    }
    body = bodies.get(path, {"input": "a"} if "responses" in path else {"prompt": "a"})
    error = call(app, path, {**body, **fields}).json()["error"]
    said = error if isinstance(error, str) else error["message"]
    assert said == f"{name}: is not supported: {WHY_REFUSED[name]}"
