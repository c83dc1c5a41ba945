"""How requests end, by themselves, from outside, or by a failure."""

from __future__ import annotations

from typing import Any

import pytest
from simulation import Simulation, answer_alone

from quire.config import SchedulerConfig
from quire.core.messages import AddRequest, TokenLogprobs
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import ModelRunnerOutput, SampleResult
from quire.core.structured_outputs import StructuredOutputs
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.scheduler.request_outputs import no_token_left
from quire.scheduler.scheduler import Scheduler


def test_every_finish_reason() -> None:
    prompt = [1, 2, 3]
    message = AddRequest(
        request_id="x", prompt_token_ids=prompt, sampling=SamplingParams(max_tokens=30)
    )
    tokens = answer_alone(message, max_model_len=128)
    stop, eos = tokens[3], next(t for t in tokens if t != tokens[3])

    def run(**fields: object) -> tuple[list[int], str | None, int | None]:
        kv = KVCacheManager(64, 4)
        scheduler = Scheduler(SchedulerConfig(max_num_seqs=4).resolved("cpu", 128), kv, 128)
        sampling = SamplingParams(**{"max_tokens": 30} | fields)  # type: ignore[arg-type]
        message = AddRequest(
            request_id="x", prompt_token_ids=prompt, sampling=sampling, eos_token_ids=[eos]
        )
        scheduler.add(Request(message, arrival_number=0, max_model_len=128))
        given: list[int] = []
        while (plan := scheduler.schedule()) is not None:
            result = SampleResult(token_id=tokens[len(given)])
            [delta] = scheduler.update(plan, ModelRunnerOutput(results=[result]))
            given += delta.token_ids
        return given, delta.finish_reason, delta.stop_token_id

    def until(token: int, first: int = 0) -> list[int]:
        return tokens[: tokens.index(token, first) + 1]

    assert run() == (until(eos), "stop", None)
    assert run(ignore_eos=True) == (tokens, "length", None)
    assert run(ignore_eos=True, stop_token_ids=[stop]) == (until(stop), "stop", stop)
    assert run(max_tokens=1, ignore_eos=True) == (tokens[:1], "length", None)
    at_least = tokens.index(eos) + 2
    assert run(min_tokens=at_least) == (until(eos, at_least - 1), "stop", None)


def test_who_waits_for_the_end_gets_the_first_token_and_then_all_others() -> None:
    sim = Simulation(depth=2)
    request = sim.add(4, max_tokens=8, stream=False)
    scored = sim.add(4, max_tokens=8, stream=False, prompt_logprobs=0)
    aborted = sim.add(4, max_tokens=20, stream=False)
    while not (request.is_finished and scored.is_finished):
        sim.step()
    assert [len(delta.token_ids) for delta in sim.deltas["r0"]] == [1, 7]
    assert sim.answer(request) == sim.alone["r0"]
    assert sim.answer(scored) == sim.alone["r1"]
    [last] = sim.abort("r2")
    assert len(last.token_ids) > 5
    assert sim.answer(aborted) == aborted.token_ids[4:]
    assert sim.scheduler.num_generation_tokens == 16 + aborted.num_output_tokens


def test_many_log_probabilities_do_not_wait_for_the_end() -> None:
    scheduler = Scheduler(SchedulerConfig().resolved("cpu", 128), KVCacheManager(64, 4), 128)
    sampling = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=999)
    message = AddRequest(request_id="x", prompt_token_ids=[1], sampling=sampling, stream=False)
    scheduler.add(Request(message, arrival_number=0, max_model_len=128))
    scores, found = TokenLogprobs([1] * 1000, [-1.0] * 1000, 1), []
    while (plan := scheduler.schedule()) is not None:
        result = SampleResult(token_id=1, logprobs=scores)
        found += scheduler.update(plan, ModelRunnerOutput(results=[result]))
    assert [len(delta.token_ids) for delta in found] == [1, 5, 5, 1]
    assert [len(delta.logprobs) for delta in found] == [1, 5, 5, 1]


def test_abort_in_every_state_and_twice() -> None:
    sim = Simulation(max_num_seqs=2, num_blocks=32)
    running, also_running, waiting = sim.add(4), sim.add(30), sim.add(4)
    sim.schedule()
    for request in (running, also_running, waiting):
        [delta] = sim.abort(request.request_id, "unknown", request.request_id)
        assert (delta.request_id, delta.finish_reason) == (request.request_id, "abort")
        assert sim.abort(request.request_id) == []
    assert sim.finish_step() == []  # nobody is left to hear the tokens
    sim.check_idle()


def test_rows_that_left_the_batch_are_in_the_next_plan() -> None:
    sim = Simulation()
    sim.add(4)
    sim.step()
    sim.abort("r0")
    sim.add(4)
    plan = sim.step()
    assert plan is not None
    assert plan.removed_ids == ["r0"]


def test_a_result_for_a_request_that_left_does_not_reach_its_namesake() -> None:
    sim = Simulation(depth=2)
    sim.add(4)
    sim.schedule()
    sim.abort("r0")
    twin = Request(sim.messages["r0"], arrival_number=1, max_model_len=sim.max_model_len)
    sim.scheduler.add(twin)
    sim.schedule()
    assert sim.finish_step() == []
    assert twin.num_output_tokens == 0


def test_a_request_with_damaged_logits_fails_alone() -> None:
    sim = Simulation()
    damaged, other = sim.add(9), sim.add(9)
    sim.schedule(failing={"r0"})
    deltas = {delta.request_id: delta for delta in sim.finish_step()}
    assert deltas["r0"].finish_reason == "error"
    assert "non-finite numbers" in (deltas["r0"].error or "")
    assert deltas["r0"].token_ids == []
    assert damaged.is_finished
    again = sim.add(sim.messages["r0"].prompt_token_ids)
    assert sim.kv.get_computed_blocks(again) == []
    sim.drain()
    assert sim.answer(other) == sim.alone["r1"]
    assert sim.answer(again) == sim.alone["r2"]


def test_damage_in_a_chunk_that_draws_nothing_is_not_shared() -> None:
    sim = Simulation(max_num_batched_tokens=16)
    sim.add([1] * 40)
    sim.step()
    sim.schedule(failing={"r0"})
    [delta] = sim.finish_step()
    assert delta.finish_reason == "error"
    again = sim.add([1] * 40)
    sim.drain()
    assert again.num_cached_tokens == 0
    assert sim.answer(again) == sim.alone["r1"]


def test_sampling_params_that_leave_no_token_cost_nobody_a_cached_block() -> None:
    sim = Simulation()
    prompt = [1, 2, 3, 4, 1, 2, 3, 4, 1]
    sim.add(prompt, max_tokens=1)
    sim.drain()
    sim.add([*prompt, 2, 3, 4, 1])
    sim.schedule(exhausted={"r1"})
    [delta] = sim.finish_step()
    assert (delta.finish_reason, delta.token_ids) == ("error", [])
    assert (delta.error or "").startswith("the sampling params: left no token to draw")
    again = sim.add([*prompt, 2, 3, 4, 1])
    sim.drain()
    assert again.num_cached_tokens == 12, "what it computed itself is sound, too"
    assert sim.answer(again) == sim.alone["r2"]
    sim.check_idle()


@pytest.mark.parametrize(
    ("params", "names", "param"),
    [
        ({}, "the sampling params", None),
        ({"bad_words": ["a"]}, "bad_words", "bad_words"),
        ({"min_tokens": 2, "logit_bias": {7: -9.0}}, "logit_bias, min_tokens", "logit_bias"),
        (
            {"structured_outputs": StructuredOutputs(regex="a", field="text.format")},
            "text.format",
            "text.format",
        ),
    ],
)
def test_the_params_that_left_no_token_are_named(
    params: dict[str, Any], names: str, param: str | None
) -> None:
    text, _, found = no_token_left(SamplingParams(**params))
    assert (text.partition(":")[0], found) == (names, param)


def test_a_grammar_that_allows_no_token_says_why() -> None:
    outputs = StructuredOutputs(regex="a", field="response_format")
    text, _, param = no_token_left(SamplingParams(structured_outputs=outputs), "too many items")
    assert text == "response_format: too many items; make it simpler"
    assert param == "response_format"


def test_damage_in_a_late_step_takes_the_early_blocks_out_of_the_cache_too() -> None:
    sim = Simulation()
    sim.add(9)
    sim.step()
    assert sim.kv.pool.lookup(sim.requests["r0"].block_hashes[0]) is not None
    sim.schedule(failing={"r0"})
    sim.finish_step()
    assert sim.kv.pool.num_free == sim.kv.pool.num_blocks


def test_a_step_that_raised_ends_its_requests_and_no_other() -> None:
    sim = Simulation(max_num_seqs=2)
    sim.add(9)
    sim.add(9)
    waiting = sim.add(9)
    sim.schedule(raises=True)
    deltas = sim.finish_step()
    assert [(d.request_id, d.finish_reason) for d in deltas] == [("r0", "error"), ("r1", "error")]
    assert all(d.error == "the step failed; send it again" for d in deltas)
    assert sim.kv.pool.num_evictable == 0
    sim.drain()
    assert sim.answer(waiting) == sim.alone["r2"]
