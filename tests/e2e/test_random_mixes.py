"""Random engines, requests and events: each answer is what it is alone, and nothing is left.

Events are aborts, queue timeouts, resets of the prefix cache, answers that another engine began,
and errors at random places within a step. Here are the kinds that test_mixed_load.py lacks.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from test_mixed_load import random_sampling, start
from test_overlapped_steps import Rerun, overlap  # noqa: F401 - a fixture

from quire import StructuredOutputs
from quire.core.messages import AbortRequests, AddRequest, RequestDelta, ResetPrefixCache
from quire.core.pooling_params import PoolingParams
from quire.core.reasoning_marks import ReasoningMarks
from quire.core.request import FinishReason
from quire.core.sampling_params import SamplingParams
from quire.engine.core.engine_core import EngineCore
from quire.engine.gpu.step_graphs import Record

VOCAB_SIZE = 500
MAX_MODEL_LEN = 320
NUM_REQUESTS = 40
GRAMMARS = [{"regex": "[a-f]{9,20}"}, {"choice": ["yes", "not at all"]}, {"json_object": True}]
ABORT, ERROR = FinishReason.ABORT.value, FinishReason.ERROR.value


def tokens(rng: random.Random, most: int) -> list[int]:
    return rng.choices(range(3, VOCAB_SIZE), k=rng.randint(1, most))


def sampling(rng: random.Random) -> SamplingParams:
    """Sampling params of the other mix, with the fields that it leaves out."""
    given = msgspec.structs.asdict(random_sampling(rng, 30))
    if rng.random() < 0.2:
        given["structured_outputs"] = StructuredOutputs(**rng.choice(GRAMMARS))
    if rng.random() < 0.1:
        given["allowed_token_ids"] = tokens(rng, 40)
    if rng.random() < 0.1:
        given["logprob_token_ids"] = tokens(rng, 4)
    if rng.random() < 0.1:
        marks = ReasoningMarks(begin=tokens(rng, 1), end=tokens(rng, 3))
        given |= {"thinking_token_budget": rng.randint(0, 8), "reasoning_marks": marks}
    return SamplingParams(**given)


def requests(rng: random.Random) -> list[AddRequest]:
    beginnings = [tokens(rng, 120) for _ in range(3)]
    return [
        AddRequest(
            request_id=f"r{number}",
            prompt_token_ids=rng.choice([[], [], *beginnings]) + tokens(rng, 60),
            sampling=sampling(rng),
            eos_token_ids=[2],
            bad_words_ids=rng.choice([[], [], [tokens(rng, 3) for _ in range(20)]]),
            priority=rng.randint(-2, 2),
            cache_salt=rng.choice(["", "", "tenant"]),
            stream=rng.random() < 0.5,
            report_progress=rng.random() < 0.1,
            pooling=rng.choice([None] * 10 + [PoolingParams(pooling="mean"), PoolingParams()]),
        )
        for number in range(NUM_REQUESTS)
    ]


def options(rng: random.Random) -> dict[str, Any]:
    block_size, max_num_seqs = rng.choice([1, 2, 4, 16]), rng.choice([2, 4, 10, 40])
    found = {
        "block_size": block_size,
        "num_blocks": rng.choice([340, 400, 1500]) // block_size,
        "max_num_seqs": max_num_seqs,
        "enable_prefix_caching": rng.random() < 0.7,
        "scheduling_policy": rng.choice(["fcfs", "priority"]),
        "enable_chunked_prefill": rng.random() < 0.7,
    }
    if found["enable_chunked_prefill"]:
        found["max_num_batched_tokens"] = max_num_seqs + rng.choice([1, 7, 50, 256])
        found["long_prefill_token_threshold"] = rng.choice([0, 0, 3, 20])
    return found


class Answer:
    """All that came for one request."""

    def __init__(self) -> None:
        self.delta: RequestDelta | None = None

    def take(self, delta: RequestDelta) -> None:
        assert self.delta is None or self.delta.finish_reason is None, "it has ended already"
        if self.delta is None:
            self.delta = msgspec.structs.replace(delta)
        else:
            self.delta.join(delta)

    @property
    def whole(self) -> RequestDelta:
        assert self.delta is not None
        assert self.delta.finish_reason is not None
        return self.delta


def run_alone(core: EngineCore, request: AddRequest) -> RequestDelta:
    answer = Answer()
    core.handle(request)
    while core.has_work:
        for delta in core.step().deltas:
            answer.take(delta)
    return answer.whole


def continued(rng: random.Random, request: AddRequest, alone: RequestDelta) -> AddRequest:
    """The request as another engine has begun to answer it, now and then."""
    most = len(alone.token_ids) - 1
    if most < 1 or alone.error is not None or rng.random() < 0.8:
        return request
    return msgspec.structs.replace(
        request,
        output_token_ids=alone.token_ids[: rng.randint(1, most)],
        num_prompt_logprobs=len(alone.prompt_logprobs),
    )


def runner_of(core: EngineCore) -> Any:
    """What runs the steps; where they overlap that is the executor."""
    executor: Any = core._executor
    return getattr(executor, "_runner", executor)


def let_fail(core: EngineCore, rng: random.Random, share: float) -> None:
    """Have calls within a step raise errors: this share of them."""
    runner = runner_of(core)
    running = runner._running
    calls = [(running, "apply_differences")]
    if hasattr(runner, "launch"):
        calls += [(runner._graphs, "run"), (runner._logits, "draw"), (runner, "_finish")]
    else:
        calls += [(running.batch, "prepare"), (running, "sample")]

    def failing(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if rng.random() < share:
            raise RuntimeError("before")
        found = call(*args, **options)
        if rng.random() < share:
            raise RuntimeError("after")
        return found

    for owner, name in calls:
        call = getattr(owner, name)
        setattr(owner, name, lambda *args, call=call, **how: failing(call, *args, **how))


def check(core: EngineCore) -> None:
    """Each block is in as many block tables as its reference count says, and all are there."""
    kv = core._scheduler._kv
    kv.pool.check()
    held = Counter(block_id for table in kv._tables.values() for block_id in table.block_ids)
    assert [held[block_id] for block_id in range(kv.pool.num_blocks)] == kv.pool._ref_counts
    assert kv._tables.keys() == core._scheduler._batch.running.keys()


def check_idle(core: EngineCore) -> None:
    """Nothing is left of any request, but rows that the next plan removes."""
    check(core)
    scheduler, log = core._scheduler, core._log
    batch, prefixes = scheduler._batch, scheduler._kv._in_flight
    left = [batch.requests, batch.running, batch.waiting._entries, prefixes._owner_of]
    left += [prefixes._claims, prefixes._waiters, core._grammars.ready, core._grammars._pending]
    left += [log._times, log._without_token, core._in_flight, scheduler._in_flight]
    assert not any(map(len, left))
    last = SamplingParams(max_tokens=1)
    run_alone(core, AddRequest(request_id="last", prompt_token_ids=[5], sampling=last))
    running = runner_of(core)._running
    assert running.batch._rows.keys() <= {"last"}
    by_row = [*running.sampling._ragged, running._prompt_logprobs, running.pooler]
    assert not any(len(each) for each in by_row if each is not running.sampling.callers)
    assert len(running.sampling.callers) == len(running.batch._rows)


def run(core: EngineCore, rng: random.Random, sent: list[AddRequest]) -> dict[str, RequestDelta]:
    answers = {request.request_id: Answer() for request in sent}
    waiting, names = sent[::-1], list(answers)
    while waiting or core.has_work:
        doomed = [rng.choice(names)] if rng.random() < 0.1 else []  # or it has ended, or not come
        while waiting and rng.random() < 0.6:
            core.handle(waiting.pop())
            if rng.random() < 0.1:
                doomed.append(names[-1 - len(waiting)])  # its grammar may be being compiled
        if doomed:
            core.handle(AbortRequests(request_ids=["unknown", *doomed, *doomed]))
        for delta in core.step().deltas:
            answers[delta.request_id].take(delta)
        if rng.random() < 0.3:
            check(core)
        if rng.random() < 0.01:
            core.handle(ResetPrefixCache())
    return {name: answer.whole for name, answer in answers.items()}


def check_answer(request: AddRequest, found: RequestDelta, alone: RequestDelta) -> None:
    known = len(request.output_token_ids)
    found_ids = request.output_token_ids + found.token_ids
    if found.finish_reason == ABORT or found.error not in (None, alone.error):
        assert found_ids == alone.token_ids[: len(found_ids)]
        return
    assert found_ids == alone.token_ids
    for name in ("finish_reason", "error", "grammar_terminated", "stop_token_id"):
        assert getattr(found, name) == getattr(alone, name)
    for scores, expected in (
        (found.logprobs, alone.logprobs[known:]),
        (found.prompt_logprobs, [] if request.num_prompt_logprobs else alone.prompt_logprobs),
    ):
        assert [each.token_ids[0] for each in scores] == [each.token_ids[0] for each in expected]
        for one, other in zip(scores, expected, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=2e-3)
    if alone.embedding is not None:
        vectors = [np.frombuffer(each.embedding or b"", "<f4") for each in (found, alone)]
        assert vectors[0] == pytest.approx(vectors[1], abs=1e-4)


@pytest.mark.parametrize(
    ("model", "kv_cache_dtype", "overlaps"),
    [
        ("tiny_model", "auto", False),
        ("tiny_model", "int8", False),
        ("odd_model", "auto", False),
        ("odd_model", "auto", True),
    ],
)
def test_answers_are_as_alone_and_nothing_is_left(
    model: str,
    kv_cache_dtype: str,
    overlaps: bool,
    request: pytest.FixtureRequest,
    overlap: Callable[[Record | None], None],  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)  # of errors there are many
    folder, common = request.getfixturevalue(model), {"kv_cache_dtype": kv_cache_dtype}
    common |= {"max_model_len": MAX_MODEL_LEN}
    own = start(folder, enable_prefix_caching=False, num_blocks=64, **common)
    counts = Counter[str]()
    wanted = "stop", "length", ABORT, ERROR, "preemptions", "hits"
    for seed in range(12):
        if seed >= 4 and all(counts[name] for name in wanted):  # what comes depends on time, too
            break
        rng = random.Random(seed)
        mix = requests(rng)
        alone = {each.request_id: run_alone(own, each) for each in mix}
        if overlaps:
            overlap(rng.choice([None, Rerun]))
        core = start(folder, **options(rng), **common)
        if seed % 3 == 2:
            let_fail(core, rng, 0.01)
        sent = [continued(rng, each, alone[each.request_id]) for each in mix]
        late = [msgspec.structs.replace(r, queue_timeout=rng.random() / 100) for r in sent[::7]]
        sent = [*late, *(r for i, r in enumerate(sent) if i % 7)]
        found = run(core, rng, sent)
        if seed % 3 != 2:
            check_idle(core)
        for each in sent:
            try:
                check_answer(each, found[each.request_id], alone[each.request_id])
            except AssertionError as error:
                error.add_note(f"seed {seed}: {each}")
                raise
        counts.update(str(each.finish_reason) for each in found.values())
        counts["preemptions"] += core.stats.num_preemptions
        counts["hits"] += core.stats.prefix_cache_hits
    assert all(counts[name] for name in wanted), counts
