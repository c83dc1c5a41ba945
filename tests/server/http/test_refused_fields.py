"""A field that a route refuses says why, and what to do instead."""

from __future__ import annotations

import pytest
from asgi_client import call
from starlette.applications import Starlette

from quire.compat.refused_fields import WHY_REFUSED
from quire.server.api.ollama.ollama_options import Options
from quire.server.api.ollama.ollama_request import OllamaFunction
from quire.server.ops.openapi import entries_of
from quire.server.ops.openapi_schemas import described_in

ELSEWHERE = {Options, OllamaFunction}  # refused by the table of names; taken with any usual value


def test_each_has_its_reason(app: Starlette) -> None:
    bodies = [entry.body for entry in entries_of(app.routes) if entry.body is not None]
    structs = set(described_in(bodies)) - ELSEWHERE
    assert {name for struct in structs for name in struct.neutral} == set(WHY_REFUSED)
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
