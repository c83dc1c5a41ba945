"""Fields of requests as other engines have them: what they mean, and whose name an error has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgi_client import Reply, call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.compat.field_homes import OLLAMA_OPTIONS
from quire.server.api.ollama.ollama_options import Options
from quire.server.http import strict_json

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/tokenize": {"prompt": "hi"},
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
        *((path, "max_completion_tokens") for path in ("/v1/completions", "/completion")),
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
        ("/v1/completions", {"n_predict": 0}, "n_predict: must be at least 1 without echo"),
        ("/v1/chat/completions", {"n_predict": 8, "min_tokens": 20},
         "min_tokens: 20 is above n_predict (8); lower it"),
        ("/completion", {"samplers": [None, True]}, "samplers: [null, true] is not supported"),
        ("/v1/embeddings", {"use_activation": 3}, "use_activation: must be true, false or null"),
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


@pytest.mark.parametrize(
    ("path", "name", "advice"),
    [
        ("/v1/completions", "messages", "send prompt, or use /v1/chat/completions"),
        ("/v1/completions", "input", "send prompt, or use /v1/responses and /v1/embeddings"),
        ("/v1/completions", "system", "remove it"),
        ("/v1/chat/completions", "prompt", "send messages, or use /v1/completions"),
        ("/v1/chat/completions", "max_output_tokens", "send max_tokens"),
        ("/v1/chat/completions", "enable_thinking", "send chat_template_kwargs.enable_thinking"),
        ("/v1/chat/completions", "reasoning", "send reasoning_effort"),
        ("/v1/chat/completions", "reasoning_budget", "send thinking_token_budget"),
        ("/v1/chat/completions", "regex", "send structured_outputs.regex"),
        ("/v1/completions", "ebnf", "send structured_outputs.grammar"),
        ("/v1/responses", "thinking_budget", "send reasoning.max_tokens"),
        ("/v1/chat/completions", "system", "send it as a message with the role system"),
        ("/v1/chat/completions", "instructions", "send it as a message with the role system"),
        ("/v1/responses", "messages", "send input, or use /v1/chat/completions"),
        ("/v1/responses", "max_tokens", "send max_output_tokens"),
        ("/v1/responses", "response_format", "send text.format"),
        ("/v1/responses", "format", "send text.format"),
        ("/v1/responses", "reasoning_effort", "send reasoning.effort"),
        ("/v1/responses", "system", "send instructions"),
        ("/v1/embeddings", "prompt", "send input, or use /v1/completions"),
        ("/completion", "messages", "send prompt, or use /v1/chat/completions"),
        ("/api/chat", "prompt", "send messages, or use /api/generate"),
        ("/api/chat", "max_tokens", "send options.num_predict"),
        ("/api/chat", "n_predict", "send options.num_predict"),
        ("/api/chat", "temperature", "send options.temperature"),
        ("/api/chat", "repetition_penalty", "send options.repeat_penalty"),
        ("/api/chat", "response_format", "send format"),
        ("/api/chat", "reasoning_effort", "send think"),
        ("/api/chat", "system", "send it as a message with the role system"),
        ("/api/generate", "messages", "send prompt, or use /api/chat"),
        ("/api/generate", "instructions", "send system"),
        ("/api/embed", "prompt", "send input, or use /api/generate"),
    ],
)
def test_a_field_of_another_route_says_where_it_belongs(
    app: Starlette, path: str, name: str, advice: str
) -> None:
    assert problem(post(app, path, {name: "low"})) == f"{name}: unknown field; {advice}"


@pytest.mark.parametrize(
    ("path", "name", "advice"),
    [
        ("/v1/responses", "structured_outputs", "send text.format"),
        ("/v1/messages", "structured_outputs", "send output_config.format"),
        ("/api/chat", "structured_outputs", "send format"),
        ("/v1/embeddings", "structured_outputs", "leave it out"),
        ("/tokenize", "structured_outputs", "leave it out"),
        ("/v1/responses", "max_length", "send max_output_tokens"),
        ("/v1/responses", "mirostat", "use top_p, top_k or min_p"),
        ("/v1/embeddings", "mirostat", "leave it out"),
        ("/v1/embeddings", "n_probs", "leave it out"),
        ("/v1/embeddings", "conversation", "leave it out"),
        (
            "/v1/responses",
            "conversation",
            "use previous_response_id, or send the whole conversation",
        ),
    ],
)
def test_advice_names_fields_that_the_route_has(
    app: Starlette, path: str, name: str, advice: str
) -> None:
    value = {"json": {"type": "object"}} if name == "structured_outputs" else 2
    assert problem(post(app, path, {name: value})).endswith(f"; {advice}")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("topK", "did you mean 'top_k'?"),
        ("topP", "did you mean 'top_p'?"),
        ("minP", "did you mean 'min_p'?"),
        ("MAX_TOKENS", "did you mean 'max_tokens'?"),
        ("logit-bias", "did you mean 'logit_bias'?"),
        ("maxOutputTokens", "send max_tokens"),
        ("stopSequences", "send stop"),
        ("enableThinking", "send chat_template_kwargs.enable_thinking"),
        ("systemPrompt", "send it as a message with the role system"),
    ],
)
def test_a_name_in_another_spelling(app: Starlette, name: str, advice: str) -> None:
    """As JavaScript's, Java's and Gemini's clients spell names."""
    text = problem(post(app, "/v1/chat/completions", {name: 1}))
    assert text == f"{name}: unknown field; {advice}"


def test_a_field_instead_of_a_missing_one(app: Starlette) -> None:
    for path, sent, text in (
        ("/v1/responses", "messages", "input: it is missing; messages is a field of /v1/chat/comp"),
        ("/v1/embeddings", "prompt", "prompt: unknown field; send input, or use /v1/completions"),
        ("/tokenize", "text", "text: unknown field; send prompt"),
        ("/v1/chat/completions", "input", "messages: it is missing; input is a field of /v1/respo"),
        ("/api/embed", "prompt", "input: it is missing; prompt is a field of /api/generate"),
        ("/v1/responses", "query", "input: it is missing; send it"),
        ("/detokenize", "token_ids", "tokens: it is missing; send it in place of token_ids"),
    ):
        assert problem(call(app, path, {sent: "hi"})).startswith(text)


@pytest.mark.parametrize(
    ("name", "own"),
    [("n_predict", "num_predict"), ("max_tokens", "num_predict"), ("temp", "temperature"),
     ("repetition_penalty", "repeat_penalty")],
)  # fmt: skip
def test_an_option_under_another_engines_name(app: Starlette, name: str, own: str) -> None:
    text = problem(post(app, "/api/chat", {"options": {name: 1}}))
    assert text == f"options.{name}: unknown field; send {own}"


@pytest.mark.parametrize(
    ("path", "name", "advice"),
    [
        ("/api/generate", "prompt", "send it beside options"),
        ("/api/chat", "prompt", "send messages, or use /api/generate"),
        ("/api/embed", "prompt", "send input, or use /api/generate"),
        ("/api/chat", "format", "send it beside options"),
        ("/api/chat", "num_ctxs", "did you mean 'num_ctx'?"),
    ],
)
def test_an_option_that_is_none_says_where_it_belongs(
    app: Starlette, path: str, name: str, advice: str
) -> None:
    text = problem(post(app, path, {"options": {name: 1}}))
    assert text == f"options.{name}: unknown field; {advice}"


def test_the_options_are_those_of_the_route() -> None:
    assert strict_json.names_of(Options) == OLLAMA_OPTIONS


@pytest.mark.parametrize(
    "value", ["s", "soon", "5 minutes", "5x", "forever", "m5", "1h 30m", "0" * 63 + "x"]
)
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/embed"])
def test_what_is_no_duration_is_refused(app: Starlette, path: str, value: str) -> None:
    text = problem(post(app, path, {"keep_alive": value}))
    assert text == (
        f"keep_alive: must be a number of seconds, or a duration such as '5m', not {value!r}"
    )


@pytest.mark.parametrize(
    "samplers",
    [["penalties", "dry", "top_k", "top_p", "temperature"], "penalties;top_k;top_p;temp", "ekpt"],
)
def test_stages_that_are_left_out_are_off(
    app: Starlette, engine: FakeEngine, samplers: Any
) -> None:
    params = {"top_k": 5, "top_p": 0.5, "min_p": 0.5, "repeat_penalty": 1.5, "temperature": 0.5}
    assert post(app, "/completion", params | {"samplers": samplers}).status == 200
    sampling = engine.calls[-1]["sampling"]
    assert (sampling.top_k, sampling.top_p, sampling.min_p) == (5, 0.5, 0.0)
    assert (sampling.repetition_penalty, sampling.temperature) == (1.5, 0.5)
    assert post(app, "/completion", params | {"samplers": ["min_p"]}).status == 200
    sampling = engine.calls[-1]["sampling"]
    assert (sampling.top_k, sampling.top_p, sampling.min_p) == (0, 1.0, 0.5)
    assert (sampling.repetition_penalty, sampling.temperature) == (1.0, 1.0)


@pytest.mark.parametrize("samplers", [["top_p", "top_k"], ["top_k", "top_k"], ["tfs_z"], "pk", 5])
def test_other_stages_are_refused(app: Starlette, samplers: Any) -> None:
    assert problem(post(app, "/completion", {"samplers": samplers})).startswith("samplers: ")


def test_a_bias_may_be_false(app: Starlette, engine: FakeEngine) -> None:
    for given in ([[5, False]], {"5": False}):
        assert post(app, "/completion", {"logit_bias": given}).status == 200
        assert engine.calls[-1]["sampling"].logit_bias == {5: -100.0}
    assert post(app, "/completion", {"logit_bias": False}).status == 200
    assert engine.calls[-1]["sampling"].logit_bias is None
    for given, text in (
        ([[5, True]], "logit_bias: must be numbers, or false for never, not true"),
        (True, "logit_bias: must be a map, a list of pairs, or false for none"),
        ("5", "logit_bias: must be false, an object, a list or null, not a string"),
        ([[5, "a"]], "logit_bias[0][1]: must be false or a number, not a string"),
        ({"5": "a"}, "logit_bias['5']: must be false or a number, not a string"),
    ):
        assert problem(post(app, "/completion", {"logit_bias": given})) == text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion"])
def test_stop_strings_that_are_not_trimmed_stay(
    app: Starlette, engine: FakeEngine, path: str
) -> None:
    for is_trimmed in (True, False):
        assert post(app, path, {"stop": ["a"], "trim_stop": is_trimmed}).status == 200
        assert engine.calls[-1]["sampling"].include_stop_str_in_output is not is_trimmed


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/embed"])
def test_whole_numbers_of_options_are_integers(app: Starlette, path: str) -> None:
    options = {"num_ctx": 8192.0, "num_predict": 3.0, "seed": -1.0, "stop": ['": 1.0,', "}"]}
    backwards = dict(reversed(options.items()))  # a bracket in a text before the numbers
    for given in (options, backwards, {"num_ctx": 1e3}, {"stop": ["{", '\\"}'], "top_k": 2.0}):
        assert post(app, path, {"options": given}).status == 200
    text = problem(post(app, path, {"options": {"num_ctx": 2.5}}))
    assert text == "options.num_ctx: must be an integer or null, not a number"


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        (b', "messages": [}', "the body is not valid JSON: "),
        (b', "stream": false, "stream": false}', "stream: it is sent twice; send it once"),
        (b', "messages": 5}', "messages: must be a list or null, not an integer"),
    ],
)
def test_what_else_is_wrong_beside_whole_numbers(app: Starlette, rest: bytes, text: str) -> None:
    found = problem(call(app, "/api/chat", b'{"options": {"num_ctx": 8192.0}' + rest))
    assert found.startswith(text)
    assert "too long" not in found


def test_stops_with_numbers_stay_as_they_are(app: Starlette, engine: FakeEngine) -> None:
    options = {"num_predict": 3.0, "stop": ['"a": 1.0,', "2.0"]}
    assert post(app, "/api/chat", {"options": options}).status == 200
    sampling = engine.calls[-1]["sampling"]
    assert (sampling.max_tokens, sampling.stop) == (3, ['"a": 1.0,', "2.0"])


def test_all_options_of_ollamas_documents_have_a_meaning(app: Starlette) -> None:
    options = {
        "num_keep": 5, "seed": 42, "num_predict": 100, "top_k": 20, "top_p": 0.9, "min_p": 0.0,
        "typical_p": 1.0, "repeat_last_n": 33, "temperature": 0.8, "repeat_penalty": 1.2,
        "presence_penalty": 1.5, "frequency_penalty": 1.0, "mirostat": 0, "mirostat_tau": 0.8,
        "mirostat_eta": 0.6, "penalize_newline": True, "stop": ["\n", "user:"], "numa": False,
        "num_ctx": 1024, "num_batch": 2, "num_gpu": 1, "main_gpu": 0, "low_vram": False,
        "vocab_only": False, "use_mmap": True, "use_mlock": False, "num_thread": 8,
    }  # fmt: skip
    fields = {"options": options, "truncate": True, "shift": True, "keep_alive": "-1s"}
    assert post(app, "/api/generate", fields).status == 200


def test_values_of_json_are_spelled_as_in_json(app: Starlette) -> None:
    text = problem(call(app, "/tokenize", {"content": "a", "parse_special": False}))
    assert text == "parse_special: must be true, not false"


def test_an_empty_name_of_a_model_is_none(app: Starlette) -> None:
    assert post(app, "/v1/chat/completions", {"model": ""}).status == 200


def test_fields_of_sglang_and_others_on_openais_routes(app: Starlette, engine: FakeEngine) -> None:
    fields = {"rid": "a", "separate_reasoning": True, "stream_reasoning": True, "lora_path": None}
    fields |= {"num_ctx": 8192, "ttl": 300, "no_stop_trim": True, "return_hidden_states": False}
    fields |= {"session_params": None, "custom_logit_processor": None, "draft_model": ""}
    for path in ("/v1/completions", "/v1/chat/completions"):
        reply = post(app, path, fields)
        assert reply.status == 200, reply.body
        assert engine.calls[-1]["sampling"].include_stop_str_in_output
        assert all(name in reply.headers["x-quire-no-effect"] for name in ("rid", "num_ctx", "ttl"))
        text = problem(post(app, path, {"draft_model": "a"}))
        assert text.startswith("draft_model: 'a' is not supported: a step samples one token")


def test_what_must_be_empty_is_said_so(app: Starlette) -> None:
    prompt = {"prompt_string": "a", "multimodal_data": ["b"]}
    text = problem(post(app, "/completion", {"prompt": prompt}))
    assert text == "prompt.multimodal_data: must be empty"


def test_all_that_sillytavern_sends_to_llama_cpp(app: Starlette, engine: FakeEngine) -> None:
    fields = {
        "max_new_tokens": 4, "max_tokens": 4, "n_predict": 4, "num_predict": 4, "num_ctx": 8192,
        "temperature": 0.7, "top_p": 0.5, "typical_p": 1, "typical": 1, "typ_p": 1, "seed": -1,
        "sampler_seed": -1, "min_p": 0, "repetition_penalty": 1.2, "rep_pen": 1.2,
        "repeat_penalty": 1.2, "frequency_penalty": 0, "presence_penalty": 0, "top_k": 40,
        "skew": 0, "min_length": 0, "min_tokens": 0, "add_bos_token": True, "smoothing_factor": 0,
        "smoothing_curve": 1, "dry_allowed_length": 2, "dry_multiplier": 0, "dry_base": 1.75,
        "dry_sequence_breakers": ["\n"], "dry_penalty_last_n": 0, "max_tokens_second": 0,
        "stopping_strings": ["\nYou:"], "stop": ["\nYou:"], "truncation_length": 8192,
        "ban_eos_token": False, "ignore_eos": False, "skip_special_tokens": True, "top_a": 0,
        "tfs": 1, "tfs_z": 1, "mirostat_mode": 0, "mirostat": 0, "mirostat_tau": 5,
        "mirostat_eta": 0.1, "custom_token_bans": "", "banned_strings": [], "nsigma": 0,
        "top_n_sigma": 0, "min_keep": 0, "xtc_threshold": 0.1, "xtc_probability": 0,
        "api_type": "llamacpp", "api_server": "http://127.0.0.1:8080/", "legacy_api": False,
        "rep_pen_range": 0, "repetition_penalty_range": 0, "repeat_last_n": 64,
        "guidance_scale": 1, "negative_prompt": "", "grammar_string": "", "grammar": "",
        "dynamic_temperature": False, "dynatemp_low": 1, "dynatemp_high": 1, "dynatemp_range": 0,
        "dynatemp_exponent": 1, "temperature_last": True, "cache_prompt": True, "logit_bias": [],
        "include_reasoning": True, "samplers": ["top_k", "top_p", "min_p", "temperature"],
    }  # fmt: skip
    refused = {}
    for name, value in fields.items():
        reply = post(app, "/completion", {name: value})
        if reply.status != 200:
            refused[name] = problem(reply)
    assert refused == {}
    assert post(app, "/completion", fields).status == 200
    sampling = engine.calls[-1]["sampling"]
    assert (sampling.max_tokens, sampling.stop, sampling.seed) == (4, ["\nYou:"], None)


def test_marks_of_a_prefix_to_be_cached_ask_for_nothing(app: Starlette) -> None:
    for mark in ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}):
        part = {"type": "text", "text": "hi", "cache_control": mark}
        user = {"role": "user", "content": [part], "cache_control": mark}
        assert post(app, "/v1/chat/completions", {"messages": [user]}).status == 200
    user = {"role": "user", "content": "hi", "prefix": True}
    text = problem(post(app, "/v1/chat/completions", {"messages": [user]}))
    assert text == "messages[0].prefix: is not supported: send continue_final_message"


def test_a_call_of_a_stream_may_be_sent_back_with_its_index(app: Starlette) -> None:
    """As clients do that add up the parts of a stream."""
    function = {"name": "f", "arguments": "{}"}
    call_back = {"index": 1, "id": "a", "type": "function", "function": function}
    messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call_back]},
                {"role": "tool", "tool_call_id": "a", "content": "x"}]  # fmt: skip
    assert post(app, "/v1/chat/completions", {"messages": messages}).status == 200
    call_back["index"] = "x"
    text = problem(post(app, "/v1/chat/completions", {"messages": messages}))
    assert text.startswith("messages[1].tool_calls[0].index: is not supported: ")


@pytest.mark.parametrize("owner", ["tool", "function"])
def test_a_tool_may_have_the_mark_of_a_prefix_to_be_cached(app: Starlette, owner: str) -> None:
    mark, function = {"cache_control": {"type": "ephemeral"}}, {"name": "f"}
    tool = {"type": "function", "function": function | (mark if owner == "function" else {})}
    tools = [tool | (mark if owner == "tool" else {})]
    reply = post(app, "/v1/chat/completions", {"messages": MESSAGES, "tools": tools})
    assert "cache_control" not in reply.body.decode()


def test_a_kind_of_message_asks_for_nothing(app: Starlette) -> None:
    """lm-eval 0.4.8 sends it with each message."""
    message = {"role": "user", "content": "hi", "type": "text"}
    assert post(app, "/v1/chat/completions", {"messages": [message]}).status == 200
    text = problem(post(app, "/v1/chat/completions", {"messages": [message | {"type": "image"}]}))
    assert text == "messages[0].type: is not supported: send parts with a type as its content"


def test_what_litellm_keeps_of_an_answer_is_taken_back(app: Starlette) -> None:
    """Agents built on it send a message back with all that it knows of the answer."""
    answer = {"role": "assistant", "content": "a", "reasoning_content": "b",
              "provider_specific_fields": {"reasoning": "b", "refusal": None}}  # fmt: skip
    messages = [*MESSAGES, answer, *MESSAGES]
    reply = post(app, "/v1/chat/completions", {"messages": messages})
    assert reply.status == 200


def test_what_codex_says_of_itself_has_no_effect(app: Starlette) -> None:
    reply = call(app, "/v1/responses", {"input": "hi", "client_metadata": {"turn": "x"}})
    assert reply.headers["x-quire-no-effect"].startswith("client_metadata has no effect: ")


def test_what_tabby_sends_to_llama_cpp(app: Starlette, engine: FakeEngine) -> None:
    fields = {"seed": 1, "prompt": "a", "n_predict": 4, "temperature": 0.1, "stream": True,
              "penalty_last_n": 0, "presence_penalty": 0.5}  # fmt: skip
    assert call(app, "/completion", fields).status == 200
    assert engine.calls[-1]["sampling"].presence_penalty == 0.5, "llama.cpp does not know the name"


def test_empty_fields_of_other_routes_ask_for_nothing(app: Starlette) -> None:
    fields = {"system": None, "stop": None, "prompt": None, "template": None, "temperature": None}
    assert post(app, "/api/chat", fields | {"template": None}).status == 200
    assert post(app, "/v1/responses", {"max_tokens": None, "messages": None}).status == 200
    assert problem(post(app, "/api/chat", {"sistem": None})).startswith("sistem: unknown field")
