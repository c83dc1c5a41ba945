"""Deltas of an engine become errors of their kind, and tokens with the times of the engine."""

from __future__ import annotations

import time

import pytest

from quire.core.messages import AddRequest, ErrorKind, RequestDelta, RequestTiming
from quire.core.request_limits import RequestLimits
from quire.core.sampling_params import SamplingParams
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


def with_request(arrival: float = 0.0, queue_timeout: float | None = None) -> OutputProcessor:
    """An output processor with the request `a`."""
    outputs = OutputProcessor(Wordless(), RequestMetrics())  # type: ignore[arg-type]
    sampling = SamplingParams(detokenize=False)
    message = AddRequest(
        request_id="a/0", prompt_token_ids=[1], sampling=sampling, queue_timeout=queue_timeout
    )
    outputs.add(PreparedRequest("a", None, [], sampling, [message], LIMITS), arrival)
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
