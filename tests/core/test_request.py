from __future__ import annotations

from typing import Any

import pytest

from quire.core.messages import AddRequest
from quire.core.request import FinishReason, Request, RequestStatus
from quire.core.request_limits import RequestLimits
from quire.core.sampling_params import SamplingParams
from quire.errors import ContextLengthError, InvalidRequestError

EOS = 9


def make_request(prompt: list[int], max_model_len: int = 100, **sampling: Any) -> Request:
    message = AddRequest(
        request_id="r",
        prompt_token_ids=prompt,
        sampling=SamplingParams(**sampling),
        eos_token_ids=[EOS],
        priority=3,
        cache_salt="salt",
    )
    return Request(message, arrival_number=7, max_model_len=max_model_len)


# ---------------------------------------------------------------------- birth and lengths


def test_a_request_starts_with_its_prompt_and_nothing_computed() -> None:
    request = make_request([1, 2, 3])
    assert request.status is RequestStatus.WAITING
    assert (request.num_tokens, request.num_prompt_tokens, request.num_output_tokens) == (3, 3, 0)
    assert request.num_uncomputed_tokens == 3
    assert (request.arrival_number, request.priority, request.cache_salt) == (7, 3, "salt")
    assert not request.is_finished
    request.check_lengths()


def test_the_message_is_not_changed_by_what_happens_to_the_request() -> None:
    message = AddRequest(request_id="r", prompt_token_ids=[1], sampling=SamplingParams())
    Request(message, arrival_number=0, max_model_len=10).append(2)
    assert message.prompt_token_ids == [1]


def test_an_answer_started_elsewhere_counts_as_an_answer() -> None:
    message = AddRequest(
        request_id="r",
        prompt_token_ids=[1, 2],
        sampling=SamplingParams(max_tokens=3, min_tokens=3),
        eos_token_ids=[EOS],
        output_token_ids=[4],
        num_prompt_logprobs=1,
    )
    request = Request(message, arrival_number=0, max_model_len=100)
    assert (request.num_tokens, request.num_prompt_tokens, request.num_output_tokens) == (3, 2, 1)
    assert (request.max_total_tokens, request.num_prompt_logprobs) == (5, 1)
    assert ends(request, [EOS, EOS]) == [None, FinishReason.STOP]


@pytest.mark.parametrize(
    ("started", "max_tokens", "words"),
    [([1] * 5, 5, "5 tokens"), ([1] * 14, None, "14 tokens"), ([50], 5, "between 0 and 49")],
)
def test_an_answer_that_cannot_have_been_started_is_refused(
    started: list[int], max_tokens: int | None, words: str
) -> None:
    message = AddRequest(
        request_id="r",
        prompt_token_ids=[1, 2],
        sampling=SamplingParams(max_tokens=max_tokens),
        output_token_ids=started,
    )
    limits = RequestLimits(max_model_len=16, max_kv_tokens=99, vocab_size=50, max_num_seqs=1)
    with pytest.raises(InvalidRequestError, match=words):
        limits.check(message)


@pytest.mark.parametrize(
    ("max_tokens", "max_model_len", "expected"), [(5, 100, 8), (5, 6, 6), (None, 100, 100)]
)
def test_the_end_is_set_by_the_sampling_param_or_by_the_model(
    max_tokens: int | None, max_model_len: int, expected: int
) -> None:
    request = make_request([1, 2, 3], max_model_len, max_tokens=max_tokens)
    assert request.max_total_tokens == expected


def test_a_token_in_flight_is_known_to_come() -> None:
    request = make_request([1, 2, 3])
    request.num_computed_tokens, request.num_in_flight_tokens = 3, 1
    assert request.num_uncomputed_tokens == 1
    request.check_lengths()


@pytest.mark.parametrize(
    ("cached", "computed", "in_flight"), [(-1, 0, 0), (2, 1, 0), (0, 4, 0), (0, 5, 1)]
)
def test_the_order_of_lengths_is_asserted(cached: int, computed: int, in_flight: int) -> None:
    request = make_request([1, 2, 3])
    request.num_cached_tokens = cached
    request.num_computed_tokens = computed
    request.num_in_flight_tokens = in_flight
    with pytest.raises(AssertionError):
        request.check_lengths()


# ---------------------------------------------------------------------- ends


def ends(request: Request, tokens: list[int]) -> list[FinishReason | None]:
    return [request.append(token) for token in tokens]


def test_the_models_end_token_ends() -> None:
    request = make_request([1], max_tokens=5)
    assert ends(request, [2, EOS]) == [None, FinishReason.STOP]
    assert request.token_ids == [1, 2, EOS]


def test_an_end_token_in_the_prompt_does_not() -> None:
    assert ends(make_request([EOS], max_tokens=5), [2]) == [None]


def test_ignore_eos_goes_on() -> None:
    request = make_request([1], max_tokens=3, ignore_eos=True)
    assert ends(request, [EOS, EOS, EOS]) == [None, None, FinishReason.LENGTH]


def test_stop_tokens_end_even_if_the_end_token_is_ignored() -> None:
    request = make_request([1], max_tokens=3, ignore_eos=True, stop_token_ids=[4, EOS])
    assert ends(request, [2, EOS]) == [None, FinishReason.STOP]


def test_no_end_before_min_tokens() -> None:
    request = make_request([1], max_tokens=9, min_tokens=3, stop_token_ids=[4])
    assert ends(request, [EOS, 4, EOS]) == [None, None, FinishReason.STOP]


def test_a_stop_on_the_last_token_is_a_stop() -> None:
    assert ends(make_request([1], max_tokens=2), [2, EOS]) == [None, FinishReason.STOP]


def test_length_is_counted_with_the_prompt_against_the_model() -> None:
    request = make_request([1, 2], max_model_len=4, max_tokens=9)
    assert ends(request, [3, 4]) == [None, FinishReason.LENGTH]


# ---------------------------------------------------------------------- limits

LIMITS = RequestLimits(max_model_len=20, max_kv_tokens=12, vocab_size=10, max_num_seqs=4)


def check(prompt: list[int], limits: RequestLimits = LIMITS, **sampling: Any) -> None:
    message = AddRequest(
        request_id="r", prompt_token_ids=prompt, sampling=SamplingParams(**sampling)
    )
    limits.check(message)


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([], {}, "prompt: must have at least one token"),
        (
            [1, 10],
            {"max_tokens": 1},
            "prompt: token ids of this model must be between 0 and 9, not 10, which is out of "
            "vocabulary (vocab_size 10)",
        ),
        (
            [-1, 3],
            {"max_tokens": 1},
            "prompt: token ids of this model must be between 0 and 9, not -1, which is out of "
            "vocabulary (vocab_size 10)",
        ),
        (
            [1],
            {"stop_token_ids": [10]},
            "stop_token_ids: token ids of this model must be between 0 and 9, "
            "not 10, which is out of vocabulary (vocab_size 10)",
        ),
        (
            [1],
            {"logit_bias": {12: 1.0}},
            "logit_bias: token ids of this model must be between 0 and 9, "
            "not 12, which is out of vocabulary (vocab_size 10)",
        ),
    ],
)
def test_what_is_no_prompt_or_no_token_is_refused(
    prompt: list[int], sampling: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check(prompt, **sampling)
    assert str(caught.value) == message
    assert caught.value.param == message.partition(":")[0]
    assert caught.value.code == "invalid_value"


def test_beyond_the_models_limit() -> None:
    with pytest.raises(ContextLengthError) as caught:
        check([1] * 18, max_tokens=3)
    assert str(caught.value) == (
        "prompt: 18 tokens and 3 for the answer are 21, but this model's maximum context length "
        "is 20 tokens. Please reduce the length of the input prompt or lower max_tokens"
    )
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "prompt"


def test_beyond_the_whole_kv_cache() -> None:
    with pytest.raises(ContextLengthError) as caught:
        check([1] * 10, max_tokens=4)
    assert str(caught.value) == (
        "prompt: 10 tokens and up to 4 for the answer need 13 slots, but the whole KV cache has "
        "12; shorten the prompt, lower max_tokens, or start the server with a larger KV cache"
    )
    check([1] * 10, max_tokens=3)  # the last token needs no slot


def test_without_max_tokens_the_answer_may_fill_the_model() -> None:
    roomy = RequestLimits(max_model_len=20, max_kv_tokens=19, vocab_size=10, max_num_seqs=4)
    check([1] * 19, roomy, max_tokens=None)
    with pytest.raises(ContextLengthError, match="20 tokens and 1 for the answer are 21"):
        check([1] * 20, roomy, max_tokens=None)
    with pytest.raises(ContextLengthError, match="up to 19 for the answer need 19 slots"):
        check([1], max_tokens=None)
