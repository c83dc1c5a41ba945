from __future__ import annotations

import math
import warnings
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.config import EngineConfig
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_checks import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_N,
    MAX_STOP_STRINGS,
    MAX_TOKEN_IDS,
    MAX_WORD_CHARS,
)
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.engine.frontend.beam_search import BeamSearchParams
from quire.engine.frontend.prompt_options import read_encoding
from quire.errors import InvalidRequestError, NoEffectWarning

# field, lowest, just below it, highest, just above it
RANGES: list[tuple[str, Any, Any, Any, Any]] = [
    ("n", 1, 0, MAX_N, MAX_N + 1),
    ("temperature", 0.0, -1e-9, 100.0, 100.1),
    ("top_p", 1e-9, 0.0, 1.0, 1.0001),
    ("top_k", -1, -2, 2**31 - 1, 2**31),
    ("min_p", 0.0, -1e-9, 1.0, 1.0001),
    ("presence_penalty", -2.0, -2.001, 2.0, 2.001),
    ("frequency_penalty", -2.0, -2.001, 2.0, 2.001),
    ("repetition_penalty", 1e-9, 0.0, 100.0, 100.1),
    ("seed", -(2**63), -(2**63) - 1, 2**63 - 1, 2**63),
    ("max_tokens", 1, 0, 2**31 - 1, 2**31),
    ("min_tokens", 0, -1, 16, 17),  # the default of max_tokens is 16
    ("logprobs", -1, -2, 2**31 - 1, 2**31),
    ("prompt_logprobs", -1, -2, 2**31 - 1, 2**31),
]
INTS = ["n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"]
FLOATS = [
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
]
BOOLS = ["include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "detokenize"]
OPTIONAL = ["seed", "max_tokens", "logprobs", "prompt_logprobs"]


def refusal(**fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**fields)
    return caught.value


def assert_names(error: InvalidRequestError, field: str) -> None:
    """The message starts with the field and says what its value must be, or what to do."""
    assert error.param == field
    assert error.code == "invalid_value"
    assert error.status == 400
    assert str(error).startswith(f"{field}: ")
    assert any(word in str(error) for word in ("must", "; lower")), f"no fix in {error}"


@pytest.mark.parametrize(("field", "low", "below", "high", "above"), RANGES)
def test_ranges_include_their_ends_and_nothing_beyond(
    field: str, low: Any, below: Any, high: Any, above: Any
) -> None:
    assert getattr(SamplingParams(**{field: low}), field) == low
    assert getattr(SamplingParams(**{field: high}), field) == high
    assert_names(refusal(**{field: below}), field)
    assert_names(refusal(**{field: above}), field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            (field, value)
            for field in FLOATS
            for value in (math.nan, math.inf, -math.inf, True, "0.5", None, [0.5])
        ),
        *((field, value) for field in INTS for value in (1.0, True, "1", [1], math.nan)),
        *((field, value) for field in BOOLS for value in (1, "true", None)),
    ],
)
def test_values_have_the_kind_of_their_field(field: str, value: Any) -> None:
    assert_names(refusal(**{field: value}), field)


@pytest.mark.parametrize("field", FLOATS)
def test_a_whole_number_is_a_number(field: str) -> None:
    assert getattr(SamplingParams(**{field: 1}), field) == 1


@pytest.mark.parametrize("field", INTS)
def test_only_some_may_be_left_out(field: str) -> None:
    if field in OPTIONAL:
        assert getattr(SamplingParams(**{field: None}), field) is None
    else:
        assert_names(refusal(**{field: None}), field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", [""]),
        ("stop", ""),
        ("stop", 3),
        ("stop", [1]),
        ("stop", ["x"] * (MAX_STOP_STRINGS + 1)),
        ("stop", ["x" * (MAX_WORD_CHARS + 1)]),
        ("bad_words", [""]),
        ("bad_words", [b"word"]),
        ("bad_words", ["x"] * (MAX_BAD_WORDS + 1)),
        ("bad_words", ["x" * (MAX_WORD_CHARS + 1)]),
        ("stop_token_ids", [1] * (MAX_TOKEN_IDS + 1)),
        ("stop_token_ids", [10**5000]),
        ("stop_token_ids", 5),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [1.0]),
        ("stop_token_ids", [True]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [3, -1]),
        ("allowed_token_ids", [3, True]),
        ("allowed_token_ids", [3, 10**5000]),
        ("allowed_token_ids", [3] * (MAX_ALLOWED_TOKEN_IDS + 1)),
        ("kept_token_ids", ["a"]),
        ("logit_bias", [1]),
        ("logit_bias", {"1": 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {True: 1.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", {1: -100.5}),
        ("logit_bias", {1: 10**400}),
        ("logit_bias", {1: -(10**5000)}),
        ("logit_bias", {10**5000: 1}),
        ("logit_bias", {1: "1"}),
        ("logit_bias", {1: None}),
        ("logit_bias", dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0)),
    ],
)
def test_lists_and_maps_are_checked_inside(field: str, value: Any) -> None:
    assert_names(refusal(**{field: value}), field)


@pytest.mark.parametrize("field", sorted({*SamplingParams.__struct_fields__} - {"reasoning_marks"}))
@pytest.mark.parametrize("value", [np.array([0.5, 2]), np.array([[1, 2], [3, 4]]), object()])
def test_values_of_any_type_are_refused_by_name(field: str, value: Any) -> None:
    assert_names(refusal(**{field: value}), field)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"stop": "END"}, {"stop": ["END"]}),
        ({"stop": None, "bad_words": None, "stop_token_ids": None}, {}),
        ({"stop": ("a", "b"), "bad_words": "w"}, {"stop": ["a", "b"], "bad_words": ["w"]}),
        ({"stop_token_ids": (1, 2)}, {"stop_token_ids": [1, 2]}),
        ({"stop_token_ids": np.array([1, 2])}, {"stop_token_ids": [1, 2]}),
        ({"max_tokens": np.int64(5), "n": np.uint8(2), "ignore_eos": np.bool_(True)},
         {"max_tokens": 5, "n": 2, "ignore_eos": True}),
        ({"temperature": np.float32(0.5), "seed": torch.tensor(3)},
         {"temperature": 0.5, "seed": 3}),
        ({"logit_bias": {np.int64(5): np.float32(1)}, "stop_token_ids": [np.int64(4)]},
         {"logit_bias": {5: 1.0}, "stop_token_ids": [4]}),
        ({"allowed_token_ids": {4, 3}}, {"allowed_token_ids": [3, 4]}),
        ({"structured_outputs": {"regex": "a"}},
         {"structured_outputs": StructuredOutputs(regex="a")}),
        ({"guided_decoding": {"json": {}, "backend": None}},
         {"structured_outputs": StructuredOutputs(json={})}),
        ({"structured_outputs": {"choice": ("a", "b")}},
         {"structured_outputs": StructuredOutputs(choice=["a", "b"])}),
        ({"best_of": 1, "use_beam_search": False, "length_penalty": 1.0}, {}),
        ({"best_of": 3, "n": 3}, {"n": 3}),
        ({"n_predict": -1, "temp": 0.5}, {"max_tokens": None, "temperature": 0.5}),
        ({"repeat_last_n": 0, "repeat_penalty": 1.3, "presence_penalty": 1.0}, {}),
    ],
)  # fmt: skip
def test_other_spellings(given: dict[str, Any], same: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        params = SamplingParams(**given)
    assert params == SamplingParams(**same)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_objects_of_other_engines_that_constrain_the_answer() -> None:
    class StructuredOutputsParams:
        json, regex, choice = None, "a+", None
        disable_any_whitespace, disable_additional_properties = False, False

    params = SamplingParams(structured_outputs=StructuredOutputsParams())  # type: ignore[arg-type]
    assert params.structured_outputs == StructuredOutputs(regex="a+", disable_any_whitespace=None)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"structured_outputs": 3}, "structured_outputs: must be StructuredOutputs"),
        ({"structured_outputs": {}}, "structured_outputs: must have one of json"),
        ({"structured_outputs": {"structural_tag": ""}}, r"structured_outputs\.structural"),
        ({"best_of": 3, "n": 2}, "best_of 3 is not supported: .*; use n"),
        ({"best_of": 2}, "best_of 2 is not supported: .*; use n"),
        ({"n_predict": 3, "max_tokens": 4}, "n_predict: it is max_tokens here"),
        ({"detokenize": False, "stop": "x"}, "stop: there is no text without detokenize"),
    ],
)  # fmt: skip
def test_what_other_engines_have_and_this_one_has_not(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{text}"):
        SamplingParams(**given)


def test_hints_without_effect_warn() -> None:
    with pytest.warns(NoEffectWarning, match="^stream_interval has no effect: ") as caught:
        assert SamplingParams(stream_interval=2) == SamplingParams()
    assert caught[0].filename == __file__


def test_a_field_is_checked_when_it_is_set() -> None:
    params = SamplingParams(stop="x")
    clone = params.clone()
    clone.stop = "y"  # type: ignore[assignment]
    clone.max_tokens = 8
    clone.stop.append("z")
    assert clone == SamplingParams(stop=["y", "z"], max_tokens=8)
    assert params == SamplingParams(stop=["x"])
    with pytest.raises(InvalidRequestError, match=r"^max_tokens: "):
        clone.max_tokens = 0
    assert clone.max_tokens == 8


def test_no_field_can_be_deleted() -> None:
    params = SamplingParams(temperature=0.5)
    with pytest.raises(InvalidRequestError, match=r"^temperature: cannot be deleted"):
        del params.temperature
    assert params == SamplingParams(temperature=0.5)


def test_lists_that_were_changed_are_checked_again() -> None:
    params = SamplingParams(logit_bias={1: 2.0}, allowed_token_ids=[1])
    params.check_lists()
    changes: list[tuple[str, Any, Any]] = [
        ("stop", params.stop, 7),
        ("bad_words", params.bad_words, ""),
        ("stop_token_ids", params.stop_token_ids, -1),
        ("kept_token_ids", params.kept_token_ids, "a"),
        ("allowed_token_ids", params.allowed_token_ids, None),
    ]
    for field, values, wrong in changes:
        values.append(wrong)
        with pytest.raises(InvalidRequestError, match=rf"^{field}: "):
            params.check_lists()
        values.pop()
    assert params.logit_bias is not None
    params.logit_bias[-1] = 1.0
    with pytest.raises(InvalidRequestError, match=r"^logit_bias: "):
        params.check_lists()


def test_lists_and_maps_at_their_limits() -> None:
    params = SamplingParams(
        stop=["x"] * MAX_STOP_STRINGS,
        bad_words=["x" * MAX_WORD_CHARS] * MAX_BAD_WORDS,
        stop_token_ids=[7] * MAX_TOKEN_IDS,
        logit_bias=dict.fromkeys(range(MAX_LOGIT_BIAS), -100) | {0: 100.0},
    )
    assert len(params.stop_token_ids) == MAX_TOKEN_IDS


@pytest.mark.parametrize("field", [*INTS, *FLOATS])
def test_integers_too_long_to_be_written_out_are_refused(field: str) -> None:
    assert_names(refusal(**{field: 10**5000}), field)
    assert len(str(refusal(**{field: "x" * 5000}))) < 200


def test_fewer_tokens_at_most_than_at_least() -> None:
    error = refusal(max_tokens=3, min_tokens=4)
    assert_names(error, "min_tokens")
    assert "max_tokens (3)" in str(error)
    assert SamplingParams(max_tokens=None, min_tokens=4).min_tokens == 4


def test_a_field_cannot_be_misspelt() -> None:
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]


def test_the_checks_hold_for_what_comes_over_the_wire() -> None:
    frame = msgspec.msgpack.encode({"top_p": 1.5})
    with pytest.raises(InvalidRequestError, match="top_p"):
        msgspec.msgpack.decode(frame, type=SamplingParams)


def test_numbers_of_numpy_elsewhere() -> None:
    assert PoolingParams(dimensions=np.int64(8)) == PoolingParams(dimensions=8)
    beams = BeamSearchParams(beam_width=np.int64(2), max_tokens=np.int32(3))
    assert (beams.beam_width, type(beams.max_tokens)) == (2, int)
    config = EngineConfig.from_options(max_model_len=np.int64(64), seed=np.int32(3))
    assert type(config.model.max_model_len) is type(config.model.seed) is int
    assert read_encoding({"truncate_prompt_tokens": np.int64(2)}).keep == 2
    assert type(SamplingParams(temperature=np.float64(0.5)).temperature) is float
    params = SamplingParams()
    params.max_tokens = np.int64(7)
    assert type(params.max_tokens) is int


def test_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams().is_greedy


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers() | st.text(max_size=3), max_size=3),
    st.dictionaries(st.integers() | st.text(max_size=3), st.floats() | st.text(max_size=3)),
)


@settings(max_examples=200)
@given(field=st.sampled_from(SamplingParams.__struct_fields__), value=anything)
def test_any_value_is_taken_or_refused_by_name(field: str, value: Any) -> None:
    refused = None
    try:
        SamplingParams(**{field: value})
    except InvalidRequestError as error:
        refused = error.param
    # what is wrong may be the pair: max_tokens below min_tokens
    assert refused in (None, field, "min_tokens")


def test_how_to_ask_for_as_many_tokens_as_fit_is_said() -> None:
    with pytest.raises(InvalidRequestError, match=r"; None asks for as many as fit$"):
        SamplingParams(max_tokens=-1)
    with pytest.raises(InvalidRequestError, match=r"not -2$"):
        SamplingParams(max_tokens=-2)
