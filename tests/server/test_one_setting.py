"""One setting under several names: equal values are taken, others refused, by the names sent."""

from __future__ import annotations

from typing import Any

import pytest
from asgi_client import Reply, call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.core.sampling_params import SamplingParams
from quire.errors import InvalidRequestError

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/chat/completions/batch": {"messages": [MESSAGES, MESSAGES]},
    "/v1/responses": {"input": "hi"},
    "/completion": {"prompt": "hi"},
}
ROUTES = [path for path in BODIES if path != "/v1/responses"]
LONG = 5000  # tokens, more than the context has


def post(app: Starlette, path: str, fields: dict[str, Any]) -> Reply:
    return call(app, path, BODIES[path] | fields)


def problem(reply: Reply) -> str:
    assert reply.status == 400, reply.body
    return str(reply.error["message"])


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"n_predict": 2, "max_tokens": 2, "max_new_tokens": 2.0}, "max_tokens", 2),
        ({"n_predict": -1, "max_tokens": -1}, "max_tokens", None),
        ({"num_predict": -2, "max_new_tokens": -1}, "max_tokens", None),
        ({"stop": "a", "stop_sequences": ["a"]}, "stop", ["a"]),
        ({"repeat_penalty": 1, "repetition_penalty": 1.0}, "repetition_penalty", 1.0),
        ({"n_predict": None, "max_tokens": 5}, "max_tokens", 5),
        ({"n_predict": 5, "max_tokens": None}, "max_tokens", 5),
        ({"temp": None, "temperature": 0.5}, "temperature", 0.5),
        ({"trim_stop": False, "include_stop_str_in_output": True}, "stop", []),
    ],
)
def test_equal_values_and_none_are_taken(
    app: Starlette, engine: FakeEngine, path: str, fields: dict[str, Any], name: str, value: Any
) -> None:
    reply = post(app, path, fields)
    assert reply.status == 200, reply.body
    assert getattr(engine.calls[-1]["sampling"], name) == value


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"n_predict": 2, "max_tokens": 3}, "n_predict: it is the same as max_tokens; use one"),
        ({"n_predict": -1, "max_tokens": 3}, "n_predict: it is the same as max_tokens; use one"),
        ({"n_predict": 2, "num_predict": 3}, "num_predict: it is the same as n_predict; use one"),
        ({"n_predict": -1, "num_predict": 3}, "num_predict: it is the same as n_predict; use one"),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2},
         "repeat_penalty: it is the same as repetition_penalty; use one"),
        ({"trim_stop": True, "include_stop_str_in_output": True},
         "trim_stop: it is the same as include_stop_str_in_output; use one"),
    ],
)  # fmt: skip
def test_different_values_are_refused(
    app: Starlette, path: str, fields: dict[str, Any], text: str
) -> None:
    assert problem(post(app, path, fields)).startswith(text)


def test_none_leaves_the_default_of_a_route(app: Starlette, engine: FakeEngine) -> None:
    assert post(app, "/v1/completions", {"n_predict": None}).status == 200
    assert engine.calls[-1]["sampling"].max_tokens == 16
    assert problem(post(app, "/v1/completions", {"n_predict": None, "max_tokens": LONG}))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses", "/tokenize", "/api/chat"])
def test_none_under_another_engines_name_asks_for_nothing(app: Starlette, path: str) -> None:
    bodies = {"/tokenize": {"content": "hi"}, "/api/chat": {"messages": MESSAGES, "stream": False}}
    nothing = dict.fromkeys(("n_predict", "temp", "repeat_penalty", "trim_stop", "rep_pen"))
    reply = call(app, path, bodies.get(path, {"input": "hi"}) | nothing)
    assert reply.status == 200, reply.body


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_a_list_that_equals_the_prompt_is_read_as_it_is(
    app: Starlette, engine: FakeEngine, path: str
) -> None:
    body = {"stop": ["a"], "stop_sequences": ["a"], "prompt": ["a"]}
    reply = call(app, path, body)
    assert reply.status == 200, reply.body
    assert engine.calls[-1]["sampling"].stop == ["a"]


def test_options_of_ollama_with_none(app: Starlette) -> None:
    body = {"messages": MESSAGES, "stream": False, "options": {"n_predict": None, "temp": None}}
    assert call(app, "/api/chat", body).status == 200


def test_probabilities_that_are_switched_off_are_not_asked_for(app: Starlette) -> None:
    body = {"messages": MESSAGES, "stream": False, "top_logprobs": 2}
    assert call(app, "/api/chat", body).status == 200
    reply = call(app, "/api/chat", body | {"logprobs": False})
    assert reply.json()["error"] == "top_logprobs: it needs logprobs; set logprobs to true"


def test_two_own_names_and_another_engines(app: Starlette) -> None:
    fields = {"max_completion_tokens": 2, "n_predict": 3}
    text = problem(post(app, "/v1/chat/completions", fields))
    assert text == "max_completion_tokens: it differs from n_predict; set one of them"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "name", "param"),
    [
        ("/v1/completions", "max_new_tokens", "prompt"),
        ("/v1/chat/completions", "max_new_tokens", "messages"),
        ("/v1/chat/completions", "max_completion_tokens", "messages"),
        ("/v1/chat/completions/batch", "max_new_tokens", "messages[0]"),
        ("/v1/chat/completions/batch", "max_completion_tokens", "messages[0]"),
        ("/v1/responses", "max_output_tokens", "input"),
    ],
)
def test_a_context_error_has_the_name_that_was_sent(
    app: Starlette, path: str, name: str, param: str, stream: bool
) -> None:
    if not (stream and path.endswith("batch")):
        error = post(app, path, {name: LONG, "stream": stream}).error
        assert error["message"].endswith(f"reduce the length of the input prompt or lower {name}")
        assert error["param"] == param


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_an_error_names_the_prompt_of_several(app: Starlette, path: str, stream: bool) -> None:
    error = post(app, path, {"prompt": ["hi", ""], "stream": stream}).error
    assert error["message"] == "prompt[1]: must have at least one token"
    assert error["param"] == "prompt[1]"


def test_an_error_names_the_conversation_of_a_batch(app: Starlette) -> None:
    longer = [{"role": "user", "content": "hi there " * 40}]
    fields = {"max_new_tokens": 1000, "messages": [MESSAGES, longer]}
    error = post(app, "/v1/chat/completions/batch", fields).error
    assert (error["param"], error["message"][:12]) == ("messages[1]", "messages[1]:")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"n_predict": 0}, "n_predict: must be an integer >= 1, or -1, not 0"),
        ({"n_predict": 5, "min_tokens": 7}, "min_tokens: 7 is above n_predict (5); lower it"),
        ({"repeat_penalty": 0}, "repeat_penalty: must be a number > 0.0"),
    ],
)
def test_errors_of_a_batch_have_the_names_that_were_sent(
    app: Starlette, fields: dict[str, Any], text: str
) -> None:
    assert problem(post(app, "/v1/chat/completions/batch", fields)).startswith(text)


def test_a_grammars_errors_in_a_batch(app: Starlette, engine: FakeEngine) -> None:
    fields = {"guided_decoding": {"regex": "a"}}
    assert post(app, "/v1/chat/completions/batch", fields).status == 200
    assert engine.calls[-1]["sampling"].structured_outputs.field == "guided_decoding.regex"


def test_tokens_of_a_response_are_refused_by_its_names(app: Starlette) -> None:
    tools = [{"type": "function", "name": "f"}] * 2
    error = call(app, "/v1/responses/input_tokens", {"input": "hi", "tools": tools}).error
    assert error["param"] == "tools[1].name"
    text = problem(call(app, "/v1/responses/input_tokens", {"input": "hi", "max_output_tokens": 0}))
    assert text == "max_output_tokens: must be an integer >= 1, or -1, not 0"


def test_sampling_params_follow_the_same_rule() -> None:
    assert SamplingParams(n_predict=5, max_tokens=5).max_tokens == 5  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError, match=r"^max_new_tokens: it is max_tokens here"):
        SamplingParams(n_predict=5, max_new_tokens=6)  # type: ignore[call-arg]


def test_none_under_another_name_asks_for_nothing_of_sampling_params() -> None:
    assert SamplingParams(max_new_tokens=None, max_tokens=5).max_tokens == 5  # type: ignore[call-arg]
    params = SamplingParams(n_predict=None, repeat_penalty=None, trim_stop=None)  # type: ignore[call-arg]
    assert params == SamplingParams()


def test_special_tokens_under_two_names(app: Starlette) -> None:
    body = {"prompt": "hi", "add_special": True, "add_special_tokens": True}
    assert call(app, "/tokenize", body).status == 200
    text = problem(call(app, "/tokenize", body | {"add_special": False}))
    assert text == "add_special: it is the same as add_special_tokens; use one of them"
