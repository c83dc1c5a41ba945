from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.core.messages import (
    AbortRequests,
    AddRequest,
    EngineMessage,
    EngineStats,
    ErrorKind,
    RequestDelta,
    RequestTiming,
    StepOutput,
    TokenLogprobs,
)
from quire.core.request import FinishReason
from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import (
    ModelRunnerOutput,
    NewRequest,
    SampleResult,
    ScheduledRequest,
    SchedulerOutput,
)

SAMPLING = SamplingParams(temperature=0.5, logit_bias={3: -1.5}, stop=["\n"], seed=-1)
LOGPROBS = TokenLogprobs(token_ids=[5, 6], logprobs=[-0.5, -1.25], rank=1)

ADD = AddRequest(
    request_id="a",
    prompt_token_ids=[1, 2, 2**31],
    sampling=SAMPLING,
    eos_token_ids=[0],
    bad_words_ids=[[7, 8], [9]],
    priority=-2,
    cache_salt="tenant é",
)
ABORT = AbortRequests(request_ids=["a", "b"])
STEP = StepOutput(
    deltas=[
        RequestDelta(request_id="a", token_ids=[5], logprobs=[LOGPROBS], num_cached_tokens=16),
        RequestDelta(request_id="b", finish_reason="stop", stop_token_id=4),
        RequestDelta(request_id="c", finish_reason="error", error="it broke; send it again"),
    ],
    stats=EngineStats(num_running=2, prefix_cache_misses={"cold": 32}),
)
PLAN = SchedulerOutput(
    step_id=3,
    removed_ids=["old"],
    new_requests=[
        NewRequest(
            request_id="a",
            token_ids=[1, 2, 3],
            num_prompt_tokens=2,
            sampling=SAMPLING,
            bad_words_ids=[],
            eos_token_ids=[0],
        )
    ],
    scheduled=[
        ScheduledRequest(request_id="b", start=8, num_tokens=1, new_block_ids=[], samples=True),
        ScheduledRequest(request_id="a", start=0, num_tokens=3, new_block_ids=[4], samples=True),
    ],
)
RESULT = ModelRunnerOutput(
    results=[SampleResult(token_id=5, logprobs=LOGPROBS), SampleResult(failed=True)]
)


@pytest.mark.parametrize(
    "message", [ADD, ABORT, STEP, PLAN, RESULT], ids=lambda m: type(m).__name__
)
def test_what_goes_into_a_frame_comes_out_of_it(message: Any) -> None:
    frame = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(frame, type=type(message)) == message


@pytest.mark.parametrize("message", [ADD, ABORT])
def test_messages_decode_to_their_own_type(message: EngineMessage) -> None:
    frame = msgspec.msgpack.encode(message)
    decoded = msgspec.msgpack.decode(frame, type=AddRequest | AbortRequests)
    assert decoded == message
    assert type(decoded) is type(message)


def test_a_finish_reason_travels_as_its_name() -> None:
    delta = RequestDelta(request_id="a", finish_reason=FinishReason.LENGTH)
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(delta), type=RequestDelta)
    assert decoded.finish_reason == "length"


def test_an_empty_delta_is_small() -> None:
    """One delta is sent for each request in each step."""
    delta = RequestDelta(request_id="a", token_ids=[5])
    assert len(msgspec.msgpack.encode(delta)) < 24


def test_deltas_of_several_steps_join_to_one() -> None:
    whole = RequestDelta(request_id="a", token_ids=[5], logprobs=[LOGPROBS], num_cached_tokens=16)
    whole.join(
        RequestDelta(
            request_id="a",
            token_ids=[6],
            logprobs=[LOGPROBS],
            num_cached_tokens=16,
            finish_reason="stop",
            stop_token_id=6,
        )
    )
    assert (whole.token_ids, len(whole.logprobs)) == ([5, 6], 2)
    assert (whole.finish_reason, whole.stop_token_id) == ("stop", 6)
    assert whole.num_cached_tokens == 16


def test_joining_loses_no_field() -> None:
    """A joined delta has every field of the later one; fields added in future are tested, too."""
    values = {
        "request_id": "a",
        "token_ids": [6],
        "logprobs": [LOGPROBS],
        "prompt_logprobs": [LOGPROBS],
        "num_cached_tokens": 16,
        "finish_reason": "stop",
        "stop_token_id": 6,
        "grammar_terminated": True,
        "error": "it broke",
        "error_kind": ErrorKind.REQUEST,
        "error_param": "stop",
        "timing": RequestTiming(queued=1.0),
        "embedding": b"abcd",
        "prompt_progress": [16],
    }
    assert set(values) == set(RequestDelta.__struct_fields__)
    joined = RequestDelta(request_id="a")
    joined.join(RequestDelta(**values))
    assert joined == RequestDelta(**values)


def test_messages_do_not_share_their_empty_lists() -> None:
    first, second = RequestDelta(request_id="a"), RequestDelta(request_id="b")
    first.token_ids.append(1)
    assert second.token_ids == []


def test_a_plan_counts_a_request_with_one_token_as_a_decode() -> None:
    assert PLAN.count_tokens() == (3, 1)
