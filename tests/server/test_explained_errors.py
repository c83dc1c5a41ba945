"""The code that explains a refusal, with any JSON in any field of every endpoint: never a 5xx."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from asgi_client import JSON, Reply, call
from cpu_limit import cpu_limit
from fake_engine import FakeEngine, FakeTokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette

from quire.errors import InvalidRequestError
from quire.server.api.anthropic.messages_request import MessagesRequest
from quire.server.api.common.chat_request import ChatRequest
from quire.server.app import build_app
from quire.server.http import strict_json
from quire.server.http.request_body import read_body
from quire.server.settings import ServerSettings

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "enum": [1, 2.5]}}}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": False}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TALK = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "t"}], "name": "n"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "r"},
]
SAMPLING = {
    "model": "fake", "temperature": 0.5, "max_tokens": 2, "stop": ["x"], "seed": 1,
    "logit_bias": {"5": 1.0}, "stop_token_ids": [5], "bad_words": ["w"], "timeout": 5.0,
}  # fmt: skip
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
CUSTOM = {"name": "f", "description": "d", "input_schema": SCHEMA}
USE = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "t"}]},
    {"role": "assistant", "content": [USE]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]},
]
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "t"}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "o"},
]
FLAT_TOOL = {"type": "function", "name": "f", "parameters": SCHEMA}
TEXT = {"format": {"type": "text"}}
OLLAMA = {
    "model": "fake",
    "stream": False,
    "keep_alive": "5m",
    "options": {"seed": 1, "num_ctx": 8192.0, "temperature": 0.5, "num_predict": 2},
}
OLLAMA_CALL = {"function": {"name": "f", "arguments": {"a": 1}}}
OLLAMA_TALK = [*TALK[:1], {"role": "assistant", "content": "", "tool_calls": [OLLAMA_CALL]}]
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": [[1, 2]], "structured_outputs": {"json": SCHEMA}} | SAMPLING),
    ("/v1/completions", {"prompt": "a", "guided_json": SCHEMA, "stream_options": {}}),
    ("/v1/chat/completions", {"messages": TALK, "response_format": FORMAT} | SAMPLING),
    (
        "/v1/chat/completions",
        {"messages": TALK, "tools": [TOOL], "metadata": {"a": "b"}, "tool_choice": "auto"},
    ),
    ("/v1/chat/completions", {"messages": TALK, "chat_template_kwargs": {"a": {"b": [1]}}}),
    ("/v1/responses", {"input": ITEMS, "metadata": {"a": "b"}, "text": TEXT}),
    ("/v1/responses", {"input": "a", "tools": [FLAT_TOOL]}),
    (
        "/v1/messages",
        {"messages": BLOCKS, "max_tokens": 2, "tools": [CUSTOM], "metadata": {"user_id": "u"}},
    ),
    ("/v1/messages/count_tokens", {"messages": BLOCKS, "tools": [CUSTOM], "system": "s"}),
    ("/v1/embeddings", {"input": [[1, 2]], "model": "fake", "dimensions": 2}),
    ("/tokenize", {"prompt": "a", "return_token_strs": True}),
    ("/tokenize", {"messages": TALK, "tools": [TOOL], "chat_template_kwargs": {"a": 1}}),
    ("/detokenize", {"tokens": [1, 2]}),
    ("/v1/chat/completions/batch", {"messages": [TALK[:1]], "tools": [TOOL], "max_tokens": 2}),
    ("/v1/score", {"queries": "a", "documents": ["b"], "truncate_prompt_tokens": 2}),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 1}),
    ("/pooling", {"input": [[1, "a"]], "dimensions": 2, "embed_dtype": "float16"}),
    ("/completion", {"prompt": {"prompt_string": "a"}, "n_predict": 2, "json_schema": SCHEMA}),
    ("/completion", {"prompt": [[1, "a"]], "n_predict": 2, "logit_bias": [[5, 1.0]]}),
    ("/apply-template", {"messages": TALK, "tools": [TOOL]}),
    ("/api/chat", OLLAMA | {"messages": OLLAMA_TALK, "tools": [TOOL], "format": SCHEMA}),
    ("/api/generate", OLLAMA | {"prompt": "a", "system": "s", "think": True}),
    ("/api/embed", OLLAMA | {"input": ["a"], "dimensions": 2}),
    ("/stats", {}),
    ("/admin/models/load", {"model": "fake"}),
    ("/admin/models/unload", {"model": "fake"}),
]  # fmt: skip
HOSTILE = (b"1e309", b"-1e999", b"9" * 5000, b"-" + b"9" * 400, b"NaN", b"1e-999", b"\xff", b"[[")
CHAT_DECODER = msgspec.json.Decoder(ChatRequest)
MARK = "\ue000put here"


@pytest.fixture(scope="module")
def apps() -> dict[str, Starlette]:
    class Tokenizer(FakeTokenizer):
        chat_variables = frozenset({"messages", "tools", "a"})
        chat_template_text = "<tool_call>"

    public = build_app(FakeEngine(tokenizer=Tokenizer()), ServerSettings())
    return {"/admin": public.state.admin, "/stats": public.state.admin, "": public}


def positions(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value inside."""
    if path:
        yield path
    steps: Any = value.items() if isinstance(value, dict) else ()
    for step, inner in enumerate(value) if isinstance(value, list) else steps:
        yield from positions(inner, (*path, step))


def with_value(body: dict[str, Any], path: tuple[Any, ...], raw: bytes, name: str) -> bytes:
    """The body with raw JSON at a path, or, if it is an object there, in a new member of it."""
    holder: Any = (made := {"": copy.deepcopy(body)})
    for step in ("", *path[:-1]):
        holder = holder[step]
    if not path:
        made[""][name] = MARK
    elif isinstance(holder[path[-1]], dict) and name:
        holder[path[-1]][name] = MARK
    else:
        holder[path[-1]] = MARK
    return json.dumps(made[""]).encode().replace(json.dumps(MARK).encode(), raw)


def post(apps: dict[str, Starlette], path: str, body: bytes) -> Reply:
    app = next(app for prefix, app in apps.items() if path.startswith(prefix))
    reply = call(app, path, body, headers=JSON)
    assert reply.status < 500, (path, body[:500], reply.body)
    if reply.status >= 400:
        error = reply.json()["error"]
        text = error if path.startswith("/api/") else error["message"]
        assert 0 < len(text) <= 1000
        assert text[0] not in "[:"  # a field has a name
        for foreign in ("recursion", "JSON: JSON", "or false or"):
            assert foreign not in text
    return reply


@pytest.mark.parametrize("raw", HOSTILE, ids=lambda raw: repr(raw[:6]))
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_hostile_number_anywhere_is_the_callers_mistake(
    apps: dict[str, Starlette], path: str, body: dict[str, Any], raw: bytes
) -> None:
    for position in [(), *positions(body)]:
        for name in ("", "new", "5"):
            post(apps, path, with_value(body, position, raw, name))


VALUES = st.recursive(
    st.one_of(
        st.sampled_from(HOSTILE),
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)).map(
            lambda value: json.dumps(value).encode()
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: b"[" + b",".join(items) + b"]"),
        st.lists(
            st.tuples(st.sampled_from(["a", "5", "", "type", "$", "a`b", "key", "\ud800"]), inner),
            max_size=3,
        ).map(
            lambda pairs: b"{%b}" % b",".join(json.dumps(k).encode() + b":" + v for k, v in pairs)
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_json_in_any_field_is_no_server_error(
    apps: dict[str, Starlette], data: st.DataObject
) -> None:
    path, body = data.draw(st.sampled_from(BODIES))
    position = data.draw(st.sampled_from([(), *positions(body)]))
    name = data.draw(st.sampled_from(["", "new", "`key` in `$.a[...]`", "5"]))
    post(apps, path, with_value(body, position, data.draw(VALUES), name))


@pytest.mark.parametrize("raw", [b'"' + b"k" * 3000 + b'"', b"[" * 3000 + b"]" * 3000])
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_long_value_of_a_field_keeps_the_fix(
    apps: dict[str, Starlette], path: str, body: dict[str, Any], raw: bytes
) -> None:
    for position in positions(body):
        if "schema" not in str(position) and "parameters" not in position:  # of a library
            reply = post(apps, path, with_value(body, position, raw, ""))
            assert "…" not in reply.body.decode()


def test_deep_values_behind_an_unknown_name_are_too_deep() -> None:
    body = (
        b'{"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "text", "x": %b}]}]}'
    )
    for deep, text in (
        (b"[" * 3000 + b"]" * 3000, "nested too deeply"),
        (b"[1, ]", "trailing comma"),
    ):
        with pytest.raises(InvalidRequestError, match=f"not valid JSON: .*{text}"):
            read_body(body % deep, MessagesRequest)


HIDDEN = {"x": [{"z": 1, "y": MARK}]}
DEEP_TOOL = TOOL | {"function": FUNCTION | {"parameters": HIDDEN}}


@pytest.mark.parametrize("raw", [b"1e309", b"9" * 5000])
@pytest.mark.parametrize(
    ("field", "value", "param", "entry"),
    [
        ("guided_json", {"b": 1, "a": MARK}, "guided_json", "['a']"),
        ("logit_bias", {"5": 1, "6": MARK}, "logit_bias", "['6']"),
        (
            "tools",
            [TOOL, DEEP_TOOL],
            "tools[1].function.parameters",
            "['x'][0]['y']",
        ),
    ],
)
def test_the_entry_at_fault_is_named(
    apps: dict[str, Starlette], field: str, value: Any, param: str, entry: str, raw: bytes
) -> None:
    body = json.dumps({"messages": TALK, field: value}).encode()
    sent = body.replace(json.dumps(MARK).encode(), raw)
    error = post(apps, "/v1/chat/completions", sent).error
    assert error["param"] == param
    assert error["message"].startswith(f"{param}{entry}: ")
    assert "out of range" in error["message"]


def test_an_explanation_takes_time_in_proportion_to_the_body() -> None:
    many = {f"k{i}": "v" for i in range(50_000)}
    tool = TOOL | many | {"function": FUNCTION | many | {"parameters": many | {"z": MARK}}}
    sent = json.dumps({"messages": TALK, "tools": [tool]}).encode()
    sent = sent.replace(json.dumps(MARK).encode(), b"1e309")
    said = r"parameters\['z'\]: number out of range"
    with cpu_limit(5.0), pytest.raises(InvalidRequestError, match=said):  # a square: minutes
        strict_json.decode(sent, CHAT_DECODER)
