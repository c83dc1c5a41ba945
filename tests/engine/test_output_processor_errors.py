"""Deltas of an engine become errors of their kind, and tokens with the times of the engine."""

from __future__ import annotations

import time
from typing import Any

import pytest

from quire.core.messages import (
    AddRequest,
    ErrorKind,
    RequestDelta,
    RequestTiming,
    TokenLogprobs,
)
from quire.core.request_limits import RequestLimits
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.answer_state import position_logprobs
from quire.engine.frontend.input_processor import PreparedRequest
from quire.engine.frontend.output_processor import OutputProcessor
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.errors import (
    CallerLimitError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    QueueTimeoutError,
    QuireError,
)
from quire.tokenizer.token_spelling import Pieces

LIMITS = RequestLimits(max_model_len=9, max_kv_tokens=9, vocab_size=9, max_num_seqs=1)


class Wordless:
    """A tokenizer without words."""

    def pieces(self, *_: object) -> Pieces:
        return Pieces(lambda _: b"")

    def token_text(self, _token_id: int) -> str:
        return ""


def with_request(
    arrival: float = 0.0, queue_timeout: float | None = None, **fields: Any
) -> OutputProcessor:
    """An output processor with the request `a`. fields: of its SamplingParams."""
    outputs = OutputProcessor(Wordless(), RequestMetrics())  # type: ignore[arg-type]
    sampling = SamplingParams(detokenize=False, **fields)
    messages = [
        AddRequest(
            request_id=f"a/{index}",
            prompt_token_ids=[1],
            sampling=sampling,
            queue_timeout=queue_timeout,
        )
        for index in range(sampling.n)
    ]
    outputs.add(PreparedRequest("a", None, [], sampling, messages, LIMITS), arrival)
    return outputs


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        (ErrorKind.ENGINE, EngineError),
        (ErrorKind.REQUEST, InvalidRequestError),
        (ErrorKind.OVERLOAD, OverloadedError),
        (ErrorKind.QUEUE_TIMEOUT, QueueTimeoutError),
        (ErrorKind.CALLER_LIMIT, CallerLimitError),
    ],
)
def test_each_kind_has_its_error(kind: ErrorKind, failure: type[QuireError]) -> None:
    outputs = with_request()
    delta = RequestDelta(request_id="a/0", finish_reason="error", error="why", error_kind=kind)
    error = outputs.process([delta]).failures["a"]
    assert type(error) is failure
    assert str(error) == "why"
    assert outputs.num_unfinished == 0


def test_tokens_that_come_together_have_the_time_of_the_first() -> None:
    outputs = with_request()
    timing = RequestTiming(1.0, 2.0, 3.0, 5.0)
    delta = RequestDelta(
        request_id="a/0", token_ids=[1, 2, 3], finish_reason="length", timing=timing
    )
    times = outputs.process([delta]).outputs["a"].times
    assert times.first_token == 3.0
    assert times.last_token is not None
    assert times.last_token > 3.0


@pytest.mark.parametrize("has_run", [False, True])
def test_another_engine_process_does_not_begin_the_queue_timeout_anew(has_run: bool) -> None:
    for seconds, left in ((100.0, 60.0), (10.0, 0.0)):
        outputs = with_request(time.monotonic() - 40.0, seconds)
        outputs.record_death(lambda ids: {*ids} if has_run else set(), is_blameless=True)
        (message,) = outputs.unfinished()
        assert message.queue_timeout == (None if has_run else pytest.approx(left, abs=5.0))


def test_a_request_of_which_one_answer_fails_has_no_output_beside_the_error() -> None:
    outputs = with_request(n=2)
    found = outputs.process(
        [
            RequestDelta(request_id="a/0", token_ids=[1]),
            RequestDelta(request_id="a/1", finish_reason="error", error="why"),
            RequestDelta(request_id="a/0", token_ids=[2]),
        ]
    )
    assert (found.outputs, [*found.failures], found.aborts) == ({}, ["a"], ["a/0", "a/1"])


def test_another_engine_process_goes_on_after_the_scores_of_the_prompt_that_have_come() -> None:
    outputs = with_request(n=2, prompt_logprobs=0)
    scores = [TokenLogprobs([3], [-1.0], 1), TokenLogprobs([4], [-2.0], 1)]
    outputs.process([RequestDelta(request_id="a/0", prompt_logprobs=scores)])
    assert [message.num_prompt_logprobs for message in outputs.unfinished()] == [2, 0]


def test_a_token_that_was_also_asked_for_keeps_its_rank() -> None:
    scores = TokenLogprobs([3, 2, 3], [-1.0, -2.0, -1.0], 7)
    found = position_logprobs(scores, Wordless(), is_ranked=False)  # type: ignore[arg-type]
    assert [(token_id, one.rank) for token_id, one in found.items()] == [(3, 7), (2, None)]
