"""llama.cpp's own routes: /completion, /apply-template, /props, and its fields of /tokenize."""

from __future__ import annotations

from typing import Any

import pytest
from asgi_client import Reply, call
from fake_engine import LIMITS, FakeEngine
from starlette.applications import Starlette

from quire.server.api.common import prompt_types
from quire.server.api.llama_cpp.completion_reply import NativePart, TokenProbabilities
from quire.server.api.llama_cpp.native_completion import _by_token


def ask(app: Starlette, **fields: Any) -> Reply:
    return call(app, "/completion", {"prompt": "hi"} | fields)


def ids_of(call_: dict[str, Any]) -> str:
    return "".join(map(chr, call_["ids"]))


@pytest.mark.parametrize(
    ("fields", "content", "stop_type", "word"),
    [
        ({"n_predict": 3, "ignore_eos": True}, "Hel", "limit", ""),
        ({"n_predict": -1}, "Hello!", "eos", ""),
        ({}, "Hello!", "eos", ""),
        ({"n_predict": 0}, "", "limit", ""),
    ],
)
def test_an_answer(
    app: Starlette, fields: dict[str, Any], content: str, stop_type: str, word: str
) -> None:
    reply = ask(app, **fields).json()
    assert (reply["content"], reply["stop"], reply["tokens"]) == (content, True, [])
    assert (reply["stop_type"], reply["stopping_word"]) == (stop_type, word)
    assert (reply["truncated"], reply["has_new_line"]) == (False, False)
    assert (reply["tokens_predicted"], reply["tokens_evaluated"]) == (len(content), 2)
    assert reply["timings"]["predicted_n"] == len(content)
    assert reply["timings"]["prompt_n"] + reply["timings"]["cache_n"] == 2
    settings = reply["generation_settings"]
    assert settings["n_predict"] == settings["max_tokens"] == fields.get("n_predict", -1)


def test_fields_under_their_names_there(app: Starlette, engine: FakeEngine) -> None:
    fields = {"repeat_penalty": 1.5, "cache_prompt": True, "id_slot": 0, "samplers": []}
    reply = ask(app, n_predict=2, seed=7, temperature=0, return_tokens=True, **fields)
    assert reply.json()["tokens"] == [72, 101]
    sampling = engine.calls[-1]["sampling"]
    assert (sampling.repetition_penalty, sampling.seed, sampling.max_tokens) == (1.5, 7, 2)
    assert reply.headers["x-quire-no-effect"] == "id_slot has no effect: there are no slots"
    for name, value in [("mirostat", 2), ("lora", [{"id": 0}]), ("post_sampling_probs", True)]:
        refused = ask(app, **{name: value})
        assert (refused.status, refused.error["param"]) == (400, name)


@pytest.mark.parametrize(
    ("name", "value", "nothing"),
    [
        ("prompt_logprobs", 1, None),
        ("return_token_ids", True, False),
        ("return_tokens_as_token_ids", True, False),
        ("stream_options", {"include_usage": True}, {"include_usage": False}),
    ],
)
def test_fields_of_completions_that_it_does_not_have_are_refused(
    app: Starlette, name: str, value: Any, nothing: Any
) -> None:
    error = ask(app, stream=True, **{name: value}).error
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert ask(app, stream=True, **{name: nothing}).status == 200


def test_no_tokens_only_cache_the_prompt(app: Starlette, engine: FakeEngine) -> None:
    (only,) = ask(app, n_predict=0, stream=True, n_probs=1).events
    assert (only["tokens_predicted"], only["tokens_evaluated"]) == (0, 2)
    assert ids_of(engine.calls[-1]) == "hi"
    assert ask(app, n_predict=0, min_tokens=1).error["param"] == "min_tokens"


def test_biases_in_pairs_are_those_of_a_map(app: Starlette, engine: FakeEngine) -> None:
    settings = ask(app, logit_bias=[[5, 1.5], [6, -2], [5, 1]]).json()["generation_settings"]
    assert engine.calls[-1]["sampling"].logit_bias == {5: 2.5, 6: -2.0}
    assert settings["logit_bias"] == [{"token": 5, "bias": 2.5}, {"token": 6, "bias": -2.0}]
    ask(app, logit_bias=[[5, 99], [5, 99], [6, -60], [6, -60]])
    assert engine.calls[-1]["sampling"].logit_bias == {5: 100.0, 6: -100.0}
    for wrong in ([[5]], [[5, True]], [[5, 101]], [5], [["", 1]], {"": 1}, {"9" * 99: 1}):
        assert ask(app, logit_bias=wrong).error["param"].startswith("logit_bias")


@pytest.mark.parametrize("given", [[["ab", 1.5], ["b", -2], [5, 1]], {"ab": 1.5, "b": -2, "5": 1}])
def test_all_tokens_of_a_text_get_its_bias(app: Starlette, engine: FakeEngine, given: Any) -> None:
    assert ask(app, logit_bias=given).status == 200
    assert engine.calls[-1]["sampling"].logit_bias == {97: 1.5, 98: -0.5, 5: 1.0}


def test_tokens_that_cannot_end_an_answer_are_biases_without_a_number(
    app: Starlette, engine: FakeEngine
) -> None:
    settings = ask(app, ignore_eos=True, n_predict=2).json()["generation_settings"]
    ends = [{"token": i, "bias": None} for i in engine.eos_token_ids]
    assert settings["logit_bias"] == ends


def test_completions_without_a_version_are_llama_cpps(app: Starlette) -> None:
    replies = [
        call(app, f"/{name}", {"prompt": "hi"}).json() for name in ("completion", "completions")
    ]
    assert replies[0]["content"] == replies[1]["content"] == "Hello!"


def test_tokens_of_a_conversation_are_counted_as_it_is_answered(app: Starlette) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    counted = call(app, "/chat/completions/input_tokens", body).json()
    assert counted["object"] == "response.input_tokens"
    answered = call(app, "/v1/chat/completions", body).json()
    assert counted["input_tokens"] == answered["usage"]["prompt_tokens"]


def test_parts_of_a_prompt_get_special_tokens_as_asked(
    app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ids(_parts: Any, *, special: bool | None, **_given: Any) -> list[int]:
        asked.append(special)
        return [97]

    monkeypatch.setattr(prompt_types, "ids_of_parts", ids)
    for special in (None, False, True):
        ask(app, prompt=["a", 98], add_special_tokens=special)
    assert asked == [None, False, True]


def test_a_stream_ends_with_the_facts(app: Starlette) -> None:
    *parts, last = ask(app, stream=True, n_predict=4, ignore_eos=True).events
    assert "".join(part["content"] for part in parts) == "Hell"
    assert [part["tokens"] for part in parts] == [[72], [101], [108], [108]]
    assert not any(part["stop"] for part in parts)
    whole = ask(app, n_predict=4, ignore_eos=True).json()
    assert (last["content"], last["stop"], last["stop_type"]) == ("", True, "limit")
    assert set(last) == set(whole)


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("ab", ["ab"]),
        ({"prompt_string": "ab"}, ["ab"]),
        ([97, 98], ["ab"]),
        ([97, "bc", 100], ["abcd"]),
        (["a", "b"], ["a", "b"]),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, ["ab"]),
        ([[97], "b", {"prompt_string": "c"}, [100, "e"]], ["a", "b", "c", "de"]),
    ],
)
def test_prompts(app: Starlette, engine: FakeEngine, prompt: Any, read: list[str]) -> None:
    reply = ask(app, prompt=prompt).json()
    assert [ids_of(made) for made in engine.calls] == read
    answers = reply if isinstance(reply, list) else [reply]
    assert [answer["index"] for answer in answers] == list(range(len(read)))
    assert isinstance(reply, list) == (len(read) > 1)


@pytest.mark.parametrize(
    "prompt",
    [None, 1, [], [[]], [97, [98]], [97, {"prompt_string": "a"}], [-1], [True], {}, [None],
     {"prompt_string": "a", "multimodal_data": ["aGk="]}, {"content": "a"}, {"content": []},
     {"prompt_string": "a", "content": [{"type": "text", "text": "a"}]},
     {"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
)  # fmt: skip
def test_prompts_that_are_refused(app: Starlette, prompt: Any) -> None:
    refused = ask(app, prompt=prompt)
    assert refused.status == 400
    assert refused.error["param"].startswith("prompt")


def test_candidates(app: Starlette) -> None:
    first, *_ = ask(app, n_predict=2, n_probs=2).json()["completion_probabilities"]
    assert (first["id"], first["token"], first["bytes"]) == (72, "H", [72])
    assert [(top["id"], top["token"]) for top in first["top_logprobs"]] == [(73, "I"), (72, "H")]
    assert "completion_probabilities" not in ask(app, n_probs=0).json()
    chosen = ask(app, n_predict=1, n_probs=1, logprob_token_ids=[80, 81]).json()
    (only,) = chosen["completion_probabilities"]
    assert len(only["top_logprobs"]) == 3, "all that the engine reports, not n_probs"
    error = ask(app, n_probs=0, logprob_token_ids=[80]).error
    assert error["message"] == "logprob_token_ids: it needs n_probs; ask for them"
    assert ask(app, n_probs=LIMITS.max_logprobs + 1).error["param"] == "n_probs"


def test_tokens_that_come_together_have_a_chunk_each() -> None:
    entries = [
        TokenProbabilities(id=i, token=t, bytes=[], logprob=0.0, top_logprobs=[])
        for i, t in enumerate("abc")
    ]
    part = NativePart(
        index=0,
        content="abc",
        tokens=[0, 1, 2],
        tokens_predicted=5,
        tokens_evaluated=1,
        completion_probabilities=entries,
    )
    found = list(_by_token(part))
    assert [p.completion_probabilities for p in found] == [[entry] for entry in entries]
    assert [(p.content, p.tokens, p.tokens_predicted) for p in found] == [
        ("", [0], 3),
        ("", [1], 4),
        ("abc", [2], 5),
    ]


def test_a_template_is_applied(app: Starlette) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    prompt = call(app, "/apply-template", body).json()["prompt"]
    assert prompt.removesuffix("</s>") == "<user>x<assistant>"
    assert call(app, "/apply-template", {"messages": []}).error["param"] == "messages"


def test_props(app: Starlette) -> None:
    props = call(app, "/props").json()
    assert props["default_generation_settings"]["n_ctx"] == LIMITS.max_model_len
    assert props["total_slots"] == LIMITS.max_num_seqs
    assert (props["model_alias"], props["model_path"]) == ("fake", "/models/fake.gguf")
    assert call(app, "/props", query="model=other").status == 404


def test_tokens_in_its_format(app: Starlette) -> None:
    plain = call(app, "/tokenize", {"prompt": "aé"}).json()["tokens"]
    for special in (None, True):
        found = call(app, "/tokenize", {"content": "aé", "add_special": special}).json()
        assert found["tokens"] == plain
    pieces = call(app, "/tokenize", {"content": "aé", "with_pieces": True}).json()["tokens"]
    assert pieces == [{"id": 97, "piece": "a"}, {"id": 233, "piece": "é"}]
    text = call(app, "/detokenize", {"tokens": plain}).json()
    assert text["content"] == text["prompt"]
    for fields in ({"prompt": "a"}, {"messages": [{"role": "user", "content": "a"}]}):
        assert call(app, "/tokenize", {"content": "a"} | fields).status == 400


@pytest.mark.parametrize("path", ["/apply-template", "/v1/chat/completions/input_tokens"])
def test_a_conversation_that_is_only_counted_is_checked_as_in_a_chat(
    app: Starlette, path: str
) -> None:
    body = {"messages": [{"role": "user", "content": "a"}]}
    assert call(app, path, body).status == 200
    reply = call(app, path, body | {"guided_json": {}, "guided_whitespace_pattern": "a"})
    assert (reply.status, reply.error["param"]) == (400, "guided_whitespace_pattern")
