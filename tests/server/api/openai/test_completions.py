"""/v1/completions: the shape of whole answers and of streams."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from asgi_client import Post
from fake_engine import LIMITS, FakeEngine

from quire.core.sampling_checks import MAX_ALLOWED_TOKEN_IDS, MAX_N


def test_whole_answer(complete: Post) -> None:
    reply = complete(model="fake").json()
    assert reply["id"].startswith("cmpl-")
    assert (reply["object"], reply["model"]) == ("text_completion", "fake")
    assert isinstance(reply["created"], int)
    assert reply["choices"] == [
        {
            "index": 0,
            "text": "Hello!",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": None,
            "prompt_token_ids": None,
            "prompt_logprobs": None,
        }
    ]
    assert reply["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 6,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [[97, 98]]),
        ([97, 98], [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([[97, 98], [99]], [[97, 98], [99]]),
    ],
)
def test_four_types_of_prompt(
    complete: Post, engine: FakeEngine, prompt: object, ids: list[list[int]]
) -> None:
    reply = complete(prompt=prompt).json()
    assert [call["ids"] for call in engine.calls] == ids
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(ids)))
    assert reply["usage"]["prompt_tokens"] == sum(map(len, ids))


def test_choices_come_in_order_of_prompts(complete: Post, engine: FakeEngine) -> None:
    engine.delay = 0.001
    reply = complete(prompt=["a", "bc"], n=3, echo=True).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3, 4, 5]
    texts = [choice["text"] for choice in reply["choices"]]
    assert texts == ["aHello!"] * 3 + ["bcHello!"] * 3
    assert reply["usage"]["completion_tokens"] == 36
    assert reply["usage"]["prompt_tokens"] == 3


def test_prompts_run_at_once(complete: Post, engine: FakeEngine) -> None:
    engine.script, engine.delay = "x", 0.05
    complete(prompt=["a"] * 30)  # one after the other, this would take longer than the time limit
    assert len(engine.calls) == 30


def test_echo_of_token_ids_is_decoded(complete: Post) -> None:
    assert complete(prompt=[97, 98], echo=True).json()["choices"][0]["text"] == "abHello!"


def test_logprobs(complete: Post, engine: FakeEngine) -> None:
    engine.script = "xyz"
    (choice,) = complete(logprobs=1).json()["choices"]
    assert choice["logprobs"] == {
        "tokens": ["x", "y", "z"],
        "token_logprobs": [-1.5, -1.5, -1.5],
        "top_logprobs": [{"x": -1.5, "y": -0.5}, {"y": -1.5, "z": -0.5}, {"z": -1.5, "{": -0.5}],
        "text_offset": [0, 1, 2],
    }


def test_logprobs_of_zero_lists_the_token_alone(complete: Post, engine: FakeEngine) -> None:
    engine.script = "x"
    (choice,) = complete(logprobs=0).json()["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"x": -1.5}]
    assert complete(logprobs=0, logprob_token_ids=[80]).status == 200, "0 asks for them, too"
    error = complete(logprob_token_ids=[80]).error
    assert error["message"] == "logprob_token_ids: it needs logprobs; ask for them"


def test_minus_infinity_is_a_number_in_json(complete: Post, engine: FakeEngine) -> None:
    engine.script = "x"
    (choice,) = complete(logprobs=5).json()["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"x": -1.5, "y": -0.5, "z": -9999.0}]


BYTES = [0xD800 + byte for byte in "é".encode()]  # tokens of one byte each


def test_offsets_are_those_of_the_tokens(complete: Post, engine: FakeEngine) -> None:
    """Two tokens may share a character, and a stop string may hold the text back."""
    engine.script, engine.hold = "x" + "".join(map(chr, BYTES)) + "yz", True
    (whole,) = complete(logprobs=0).json()["choices"]
    assert whole["text"] == "xéyz"
    assert whole["logprobs"]["text_offset"] == [0, 1, 1, 2, 3]
    *chunks, _ = complete(logprobs=0, stream=True).events
    offsets = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks]
    assert offsets == [[0], [1], [1], [2], [3]]


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("\ud8c3yz", [0, 1, 2]),
        ("\ud8e2\ud882yz", [0, 0, 1, 2]),
        ("\ud8c3\ud8c3\ud8a9z", [0, 1, 1, 2]),
        ("\ud8ef\ud8bf\ud8bdz", [0, 0, 0, 1]),  # U+FFFD itself
    ],
)
def test_a_token_behind_bytes_of_no_character_begins_behind_them(
    complete: Post, engine: FakeEngine, text: str, offsets: list[int]
) -> None:
    engine.script, engine.hold = text, True
    (choice,) = complete(logprobs=0).json()["choices"]
    assert choice["logprobs"]["text_offset"] == offsets
    engine.script = "x"
    (choice,) = complete(prompt=list(map(ord, text)), logprobs=0, echo=True).json()["choices"]
    assert choice["logprobs"]["text_offset"] == [*offsets, len(choice["text"]) - 1]


def test_tokens_without_text_are_shown_as_bytes(complete: Post, engine: FakeEngine) -> None:
    engine.script = chr(BYTES[0])
    (choice,) = complete(logprobs=1).json()["choices"]
    assert choice["logprobs"]["tokens"] == [r"bytes:\xc3"]
    assert choice["logprobs"]["top_logprobs"] == [{r"bytes:\xc3": -1.5, r"bytes:\xc4": -0.5}]


def test_echo_with_logprobs_scores_the_prompt(complete: Post, engine: FakeEngine) -> None:
    engine.script = "x"
    (choice,) = complete(prompt="ab", logprobs=0, echo=True).json()["choices"]
    assert choice["text"] == "abx"
    assert choice["logprobs"]["tokens"] == ["a", "b", "x"]
    assert choice["logprobs"]["token_logprobs"] == [None, -1.5, -1.5]
    assert choice["logprobs"]["top_logprobs"] == [None, {"b": -1.5}, {"x": -1.5}]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert choice["prompt_logprobs"] is None


@pytest.mark.parametrize("skips", [True, False])
def test_offsets_of_an_echoed_prompt_count_the_control_tokens_that_it_names(
    complete: Post, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, skips: bool
) -> None:
    def shows(token_id: int, *, skip_special_tokens: bool) -> bool:
        return not skip_special_tokens or token_id != ord("^")

    monkeypatch.setattr(engine.tokenizer, "shows", shows)
    engine.script = "x"
    fields = {"logprobs": 0, "echo": True, "skip_special_tokens": skips}
    (choice,) = complete(prompt="a^b", **fields).json()["choices"]
    assert choice["text"] == "a^bx"
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]


def test_all_log_probabilities_of_an_echoed_prompt(complete: Post, engine: FakeEngine) -> None:
    engine.info.limits = msgspec.structs.replace(LIMITS, max_logprobs=-1, vocab_size=1 << 17)
    (choice,) = complete(prompt="ab", logprobs=-1, echo=True, max_tokens=1).json()["choices"]
    assert [tops and len(tops) for tops in choice["logprobs"]["top_logprobs"]] == [None, 3, 3]
    assert complete(prompt="a" * 9, prompt_logprobs=-1).error["param"] == "prompt_logprobs"
    assert complete(prompt="ab", logprobs=-1).error["param"] == "logprobs"  # 16 tokens by default


SCORE = {"prompt": ["ab", "cde"], "n": 2, "echo": True, "max_tokens": 0, "return_token_ids": True}


@pytest.mark.parametrize("sampling_fields", [{}, {"logprobs": 1}])
def test_no_tokens_with_echo_score_the_prompt(
    complete: Post, sampling_fields: dict[str, int]
) -> None:
    reply = complete(**SCORE, **sampling_fields).json()
    assert reply["usage"]["completion_tokens"] == 0
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] == 5
    choices = reply["choices"]
    assert [choice["text"] for choice in choices] == ["ab", "ab", "cde", "cde"]
    assert {(c["finish_reason"], c["stop_reason"], *c["token_ids"]) for c in choices} == {
        ("length", None)
    }
    if sampling_fields:
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [len(choice["logprobs"][name]) for choice in choices] == [2, 2, 3, 3]
        assert choices[2]["logprobs"]["tokens"] == ["c", "d", "e"]
    *chunks, last, _ = complete(
        **SCORE, **sampling_fields, stream=True, stream_options={"include_usage": True}
    ).events
    assert last["usage"]["completion_tokens"] == 0
    streamed = sorted((chunk["choices"][0] for chunk in chunks), key=lambda choice: choice["index"])
    for index, choice in enumerate(choices):
        parts = [part for part in streamed if part["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert parts[-1]["finish_reason"] == "length"
        assert (parts[0].get("logprobs") or None) == choice["logprobs"]


def test_no_tokens_need_echo_and_no_others(complete: Post) -> None:
    assert complete(max_tokens=0).error["param"] == "max_tokens"
    assert complete(max_tokens=0, echo=False).status == 400
    error = complete(max_tokens=0, echo=True, min_tokens=2).error
    assert error["message"] == "min_tokens: 2 is above max_tokens (0); lower it"


def test_prompt_logprobs(complete: Post) -> None:
    (choice,) = complete(prompt="ab", prompt_logprobs=1).json()["choices"]
    first, second = choice["prompt_logprobs"]
    assert first is None
    assert second == {
        "98": {"logprob": -1.5, "rank": 2, "decoded_token": "b"},
        "99": {"logprob": -0.5, "rank": 1, "decoded_token": "c"},
    }


def test_token_ids_on_request(complete: Post) -> None:
    (choice,) = complete(return_token_ids=True, max_tokens=2).json()["choices"]
    assert choice["prompt_token_ids"] == [97, 98, 99]
    assert choice["token_ids"] == [72, 101]


def test_stream(complete: Post) -> None:
    *chunks, done = complete(stream=True).events
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello!"
    assert len({chunk["id"] for chunk in chunks}) == 1
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * 5 + ["stop"]
    assert all("usage" not in chunk for chunk in chunks)


def test_stream_with_usage(complete: Post) -> None:
    *chunks, last, done = complete(stream=True, stream_options={"include_usage": True}).events
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("prompt_steps", [1, 2, 3])
@pytest.mark.parametrize("hold", [False, True])
def test_stream_equals_whole_answer(
    complete: Post, engine: FakeEngine, prompt_steps: int, hold: bool
) -> None:
    engine.prompt_steps, engine.hold = prompt_steps, hold
    sampling_fields = {
        "prompt": ["ab", "c"],
        "n": 2,
        "echo": True,
        "logprobs": 2,
        "return_token_ids": True,
    }
    whole = complete(**sampling_fields).json()["choices"]
    *chunks, _ = complete(**sampling_fields, stream=True).events
    joined = [
        {"index": i, "text": "", "token_ids": [], "logprobs": {}, "finish_reason": None}
        for i in range(4)
    ]
    for chunk in chunks:
        (part,) = chunk["choices"]
        choice = joined[part["index"]]
        choice["text"] += part["text"]
        choice["token_ids"] += part["token_ids"]
        choice["finish_reason"] = part["finish_reason"]
        for name, values in part["logprobs"].items():
            choice["logprobs"].setdefault(name, []).extend(values)
        if "prompt_token_ids" in part:
            assert "prompt_token_ids" not in choice
            choice["prompt_token_ids"] = part["prompt_token_ids"]
    for choice in whole:
        del choice["stop_reason"], choice["prompt_logprobs"]
    assert joined == whole


def test_load_generator_flow(complete: Post) -> None:
    """What load generators send: token ids, forced length, usage at the end."""
    *chunks, last, done = complete(
        model="fake",
        prompt=list(range(1000, 1100)),
        max_tokens=20,
        temperature=0.0,
        ignore_eos=True,
        stream=True,
        stream_options={"include_usage": True},
    ).events
    assert (len(chunks), done) == (20, "[DONE]")
    assert last["usage"]["completion_tokens"] == 20
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("num_chars", "in_thread"), [(800, False), (820, True)])
def test_many_short_texts_do_not_hold_up_the_event_loop_together(
    complete: Post, engine: FakeEngine, num_chars: int, in_thread: bool
) -> None:
    assert complete(prompt=["a" * num_chars] * 5, max_tokens=1).status == 200
    assert [call["in_thread"] for call in engine.calls] == [in_thread] * 5
    engine.calls.clear()
    assert complete(prompt="a" * num_chars, max_tokens=1).status == 200
    assert complete(prompt=[[5] * num_chars] * 5, max_tokens=1).status == 200
    assert not any(call["in_thread"] for call in engine.calls)


def test_many_prompts_with_long_lists_hold_up_nobody(complete: Post, engine: FakeEngine) -> None:
    """Their params are prepared in threads, and lists that would be very long together refused."""
    assert complete(prompt=["a"] * 17, max_tokens=1, logit_bias={"5": 1}).status == 200
    assert all(call["in_thread"] for call in engine.calls)
    for field, value in {
        "allowed_token_ids": [*range(1000)] * 3,
        "bad_words": ["a" * 250] * 10,
    }.items():
        body: dict[str, Any] = {"max_tokens": 1, field: value}
        error = complete(prompt=["a"] * 1024, **body).error
        assert error["param"] == field
        assert error["message"].endswith("in all; send fewer prompts in one request, or lower n")
    longest = [5] * MAX_ALLOWED_TOKEN_IDS
    assert complete(max_tokens=1, allowed_token_ids=longest, n=MAX_N).status == 200
