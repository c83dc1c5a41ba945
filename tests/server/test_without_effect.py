"""Values that ask for what is not done here are in a header, on all routes, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from asgi_client import call
from starlette.applications import Starlette

HEADER = "x-quire-no-effect"
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {"messages": MESSAGES}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache_prompt", False),
        ("parse_tool_calls", False),
        ("penalize_nl", False),
        ("id_slot", 0),
        ("keep_alive", 0),
        ("ttl", 0),
        ("max_tool_calls", 0),
        ("thinking", False),
        ("truncation", "auto"),
        ("reasoning_format", "none"),
        ("n_keep", 4),
    ],
)
def test_what_asks_for_something_is_reported(app: Starlette, name: str, value: Any) -> None:
    reply = call(app, "/v1/chat/completions", CHAT | {name: value})
    assert reply.status == 200, reply.body
    assert reply.headers[HEADER].startswith(f"{name} has no effect: ")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/completion", {"prompt": "a"}),
        ("/v1/embeddings", {"input": "a"}),
    ],
)
def test_metadata_is_a_hint_where_replies_have_none(
    app: Starlette, path: str, body: dict[str, Any]
) -> None:
    reply = call(app, path, body | {"metadata": {"a": "b"}})
    assert reply.status == 200, reply.body
    assert reply.headers[HEADER].startswith("metadata has no effect: ")
    assert HEADER not in call(app, path, body | {"metadata": {}}).headers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache_prompt", True),
        ("parse_tool_calls", True),
        ("penalize_nl", True),
        ("id_slot", -1),
        ("keep_alive", None),
        ("truncation", "disabled"),
        ("reasoning_format", "auto"),
        ("repeat_last_n", -1),
        ("store", False),
        ("n_keep", 0),
        ("mirostat_tau", 5.0),
        ("dry_base", 1.75),
        ("dry_sequence_breakers", ["\n", ":"]),
        ("xtc_threshold", 0.1),
        ("include", []),
    ],
)
def test_what_is_done_anyway_is_not(app: Starlette, name: str, value: Any) -> None:
    reply = call(app, "/v1/chat/completions", CHAT | {name: value})
    assert reply.status == 200, reply.body
    assert HEADER not in reply.headers


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "hi"}),
        ("/tokenize", CHAT),
        ("/detokenize", {"tokens": [72]}),
        ("/apply-template", CHAT),
        ("/v1/chat/completions/input_tokens", CHAT),
        ("/v1/responses/input_tokens", {"input": "hi"}),
        ("/v1/messages/count_tokens", CHAT),
        ("/api/show", {}),
        ("/v1/embeddings", {"input": "hi"}),
        ("/v1/score", {"queries": "a", "documents": "b"}),
    ],
)
def test_routes_that_run_no_model_report_it_too(
    app: Starlette, path: str, body: dict[str, Any]
) -> None:
    reply = call(app, path, body | {"num_ctx": 8192})
    assert reply.status == 200, reply.body
    assert reply.headers[HEADER] == (
        "num_ctx has no effect: a context is that of the server; see max_model_len"
    )


@pytest.mark.parametrize(
    "path",
    ["/tokenize", "/apply-template", "/v1/embeddings", "/v1/chat/completions/input_tokens"],
)
def test_variables_that_the_template_does_not_read(app: Starlette, path: str) -> None:
    reply = call(app, path, CHAT | {"chat_template_kwargs": {"tone": "x"}})
    assert reply.status == 200, reply.body
    assert reply.headers[HEADER].startswith("chat_template_kwargs.tone has no effect: ")


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        ("/v1/chat/completions", {"reasoning_effort": "low"}, "reasoning_effort"),
        ("/v1/responses", {"input": "hi", "reasoning": {"effort": "low"}}, "reasoning.effort"),
        ("/v1/messages", {"output_config": {"effort": "low"}, "max_tokens": 4},
         "output_config.effort"),
        ("/api/chat", {"think": "low", "stream": False}, "think"),
        ("/api/chat", {"think": True, "stream": False}, "think"),
    ],
)  # fmt: skip
def test_a_field_is_reported_by_its_own_name(
    app: Starlette, path: str, fields: dict[str, Any], name: str
) -> None:
    body = fields if "input" in fields else CHAT | fields
    reply = call(app, path, body)
    assert reply.status == 200, reply.body
    assert (
        reply.headers[HEADER] == f"{name} has no effect: the chat template has no variable for it"
    )


@pytest.mark.parametrize(
    ("texts", "name", "other"),
    [("documents", "return_text", "texts"), ("texts", "return_documents", "documents")],
)
def test_texts_of_a_reply_in_the_other_format(
    app: Starlette, texts: str, name: str, other: str
) -> None:
    reply = call(app, "/v1/rerank", {"query": "a", texts: ["b"], name: True})
    assert reply.status == 200, reply.body
    assert reply.headers[HEADER] == f"{name} has no effect: it goes with {other}"


def test_values_that_are_refused_are_spelled_as_in_json(app: Starlette) -> None:
    error = call(app, "/v1/chat/completions", CHAT | {"separate_reasoning": False}).error
    assert error["message"].startswith("separate_reasoning: false is not supported: ")
    functions = [{"name": "look", "parameters": {"type": "object", "properties": {}}}]
    error = call(app, "/v1/chat/completions", CHAT | {"functions": functions}).error
    cut = 'functions: [{"name": "look", "parameters": {"type": "object", "properties"… is not'
    assert error["message"].startswith(cut)


def test_empty_fields_of_ollama_ask_for_nothing(app: Starlette) -> None:
    nothing = {"options": {}, "keep_alive": ""}
    for path, body in (("/api/embed", {"input": "hi"}), ("/api/chat", CHAT | {"stream": False})):
        reply = call(app, path, body | nothing)
        assert reply.status == 200, reply.body
        assert HEADER not in reply.headers


def test_a_model_that_is_only_loaded_reports_the_options(app: Starlette) -> None:
    reply = call(app, "/api/generate", {"options": {"num_ctx": 8192}, "keep_alive": "5m"})
    assert all(name in reply.headers[HEADER] for name in ("options.num_ctx", "keep_alive"))
