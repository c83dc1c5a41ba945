"""Fields of requests as other engines have them: what they mean, and whose name an error has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgi_client import Reply, call
from fake_engine import FakeEngine
from starlette.applications import Starlette

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/completion": {"prompt": "hi"},
    "/api/chat": {"messages": MESSAGES, "stream": False},
    "/api/generate": {"prompt": "hi", "stream": False},
    "/api/embed": {"input": "hi"},
}


def post(app: Starlette, path: str, fields: dict[str, Any]) -> Reply:
    return call(app, path, BODIES[path] | fields)


def problem(reply: Reply) -> str:
    assert reply.status == 400, reply.body
    error = reply.json()["error"]
    return str(error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize("kind", ["json_schema", "json_object"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion"])
def test_a_schema_stands_beside_its_type_as_llama_cpp_has_it(
    app: Starlette, engine: FakeEngine, path: str, kind: str
) -> None:
    assert post(app, path, {"response_format": {"type": kind, "schema": SCHEMA}}).status == 200
    assert json.loads(engine.calls[-1]["sampling"].structured_outputs.json) == SCHEMA


def test_a_flat_schema_has_the_fields_of_the_inner_one(app: Starlette, engine: FakeEngine) -> None:
    flat = {"type": "json_schema", "name": "n", "strict": True, "description": "d"}
    whole = flat | {"schema": SCHEMA}
    assert post(app, "/v1/chat/completions", {"response_format": whole}).status == 200
    assert json.loads(engine.calls[-1]["sampling"].structured_outputs.json) == SCHEMA
    inner = {"json_schema": {"schema": SCHEMA}}
    for given, text in (
        (flat, "response_format.json_schema: it is missing; send it"),
        (whole | inner, "response_format.schema: json_schema has one, too; send one of them"),
        (whole | {"schemas": 1}, "response_format.schemas: unknown field; did you mean 'schema'?"),
    ):
        reply = post(app, "/v1/chat/completions", {"response_format": given})
        assert problem(reply).startswith(text)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *((path, "max_tokens") for path in ("/v1/completions", "/completion")),
        *((path, "n_predict") for path in ("/v1/completions", "/completion")),
        *(("/v1/chat/completions", n) for n in ("max_tokens", "max_completion_tokens")),
        ("/v1/chat/completions", "num_predict"),
        ("/v1/responses", "max_output_tokens"),
    ],
)
def test_no_limit_is_minus_1(app: Starlette, engine: FakeEngine, path: str, name: str) -> None:
    assert post(app, path, {name: -1}).status == 200
    assert engine.calls[-1]["sampling"].max_tokens is None
    for wrong in (-3, "2"):
        assert problem(post(app, path, {name: wrong})).startswith(f"{name}: must be an integer")
    if path in ("/v1/chat/completions", "/v1/responses"):
        assert (
            problem(post(app, path, {name: 0})) == f"{name}: must be an integer >= 1, or -1, not 0"
        )


@pytest.mark.parametrize("number", [-1, -2])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_no_limit_in_ollamas_words(
    app: Starlette, engine: FakeEngine, path: str, number: int
) -> None:
    assert post(app, path, {"options": {"num_predict": number}}).status == 200
    assert engine.calls[-1]["sampling"].max_tokens is None


@pytest.mark.parametrize(
    ("path", "fields", "text"),
    [
        ("/completion", {"n_predict": "x"}, "n_predict: must be an integer or null, not a string"),
        ("/completion", {"repeat_penalty": -1}, "repeat_penalty: must be a number > 0.0"),
        ("/completion", {"temp": -1}, "temp: must be a number >= 0.0"),
        ("/completion", {"n_cmpl": 0}, "n_cmpl: must be an integer >= 1"),
        ("/completion", {"n_predict": 8, "min_tokens": 20},
         "min_tokens: 20 is above n_predict (8); lower it"),
        ("/completion", {"n_predict": 0, "min_tokens": 2},
         "min_tokens: 2 is above n_predict (0); lower it"),
        ("/completion", {"guided_decoding": {"jsn": 1}}, "guided_decoding.jsn: unknown field; did"),
        ("/v1/chat/completions", {"n_predict": 0}, "n_predict: must be an integer >= 1, or -1"),
        ("/v1/chat/completions", {"n_predict": 8, "min_tokens": 20},
         "min_tokens: 20 is above n_predict (8); lower it"),
        ("/v1/embeddings", {"use_activation": 3}, "use_activation: must be true or false or null"),
    ],
)  # fmt: skip
def test_an_error_has_the_name_that_was_sent(
    app: Starlette, path: str, fields: dict[str, Any], text: str
) -> None:
    reply = post(app, path, fields)
    assert problem(reply).startswith(text)
    assert reply.error["param"].partition(".")[0] == text.partition(":")[0].partition(".")[0]


def test_a_grammars_errors_have_the_name_that_was_sent(app: Starlette, engine: FakeEngine) -> None:
    for path in ("/completion", "/v1/chat/completions"):
        assert post(app, path, {"guided_decoding": {"regex": "a"}}).status == 200
        assert engine.calls[-1]["sampling"].structured_outputs.field == "guided_decoding.regex"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion"])
def test_penalties_without_reach_are_off(app: Starlette, engine: FakeEngine, path: str) -> None:
    penalties = {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5}
    for reach, is_off in ((0, True), (64, False)):
        reply = post(app, path, penalties | {"repeat_last_n": reach})
        sampling = engine.calls[-1]["sampling"]
        found = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        assert found == ((1.0, 0.0, 0.0) if is_off else (1.3, 0.5, 0.5))
        assert ("repeat_last_n" in reply.headers.get("x-quire-no-effect", "")) is not is_off


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_penalties_without_reach_are_off_in_ollamas_options(
    app: Starlette, engine: FakeEngine, path: str
) -> None:
    options = {"repeat_penalty": 1.3, "presence_penalty": 0.5, "repeat_last_n": 0}
    assert post(app, path, {"options": options}).status == 200
    sampling = engine.calls[-1]["sampling"]
    assert (sampling.repetition_penalty, sampling.presence_penalty) == (1.0, 0.0)
