"""What the scheduler promises, one promise a test. See simulation.py for the pretended model."""

from __future__ import annotations

import pytest
from simulation import EOS, Simulation, answer_alone

from quire.config import SchedulerConfig
from quire.core.messages import AddRequest
from quire.core.request import Request, RequestStatus
from quire.core.sampling_params import SamplingParams
from quire.core.step import ModelRunnerOutput, SampleResult, SchedulerOutput
from quire.errors import ConfigError, InvalidRequestError
from quire.kvcache.manager import KVCacheManager
from quire.scheduler.scheduler import MAX_PREEMPTIONS, Scheduler


def shape(plan: SchedulerOutput | None) -> list[tuple[str, int, int]]:
    """(request, first token, number of tokens) of each entry of a plan."""
    assert plan is not None
    return [(entry.request_id, entry.start, entry.num_tokens) for entry in plan.scheduled]


# ---------------------------------------------------------------------- the one rule


def test_a_prompt_and_then_one_token_a_step() -> None:
    sim = Simulation()
    request = sim.add(10, max_tokens=3)
    assert shape(sim.step()) == [("r0", 0, 10)]
    assert shape(sim.step()) == [("r0", 10, 1)]
    assert shape(sim.step()) == [("r0", 11, 1)]
    assert sim.answer(request) == sim.alone["r0"]
    assert sim.finish_reason(request) == "length"
    assert sim.schedule() is None
    sim.check_idle()


def test_a_request_is_described_once_and_then_only_by_what_changed() -> None:
    sim = Simulation()
    sim.add([1, 2, 3, 4, 5], max_tokens=3)
    first, second = sim.step(), sim.step()
    assert first is not None
    assert second is not None
    [new] = first.new_requests
    assert new.token_ids == [1, 2, 3, 4, 5]
    assert new.num_prompt_tokens == 5
    assert new.eos_token_ids == [EOS]
    assert [len(entry.new_block_ids) for entry in first.scheduled] == [2]
    assert second.new_requests == []
    assert [entry.new_block_ids for entry in second.scheduled] == [[]]


def test_a_slot_is_refilled_in_the_step_after_it_frees() -> None:
    sim = Simulation(max_num_seqs=1)
    sim.add(4, max_tokens=1)
    sim.add(4, max_tokens=1)
    sim.step()
    plan = sim.step()
    assert shape(plan) == [("r1", 0, 4)]
    assert plan is not None
    assert plan.removed_ids == ["r0"]


def test_decodes_come_first_and_prompts_get_what_is_left() -> None:
    sim = Simulation(max_num_batched_tokens=16)
    sim.add(4, max_tokens=9)
    sim.step()
    sim.add(100)
    # half of the budget at most, as long as somebody decodes
    assert shape(sim.step()) == [("r0", 4, 1), ("r1", 0, 8)]
    sim.add(100)
    assert shape(sim.step()) == [("r0", 5, 1), ("r1", 8, 8), ("r2", 0, 7)]


def test_a_short_prompt_behind_a_long_one_is_not_starved() -> None:
    sim = Simulation(max_num_batched_tokens=16, long_prefill_token_threshold=10)
    sim.add(100)
    sim.add(6)
    assert shape(sim.step()) == [("r0", 0, 10), ("r1", 0, 6)]


def test_nor_where_a_step_of_prompts_alone_takes_less_than_the_budget() -> None:
    config = SchedulerConfig(max_num_batched_tokens=8192)
    scheduler = Scheduler(config, KVCacheManager(1024, 16), 16384, paces_prompts=True)
    for arrival, length in enumerate((10_000, 100)):
        message = AddRequest(
            request_id=f"r{arrival}",
            prompt_token_ids=[arrival] * length,
            sampling=SamplingParams(max_tokens=1),
        )
        scheduler.add(Request(message, arrival=arrival, max_model_len=16384))
    assert shape(scheduler.schedule()) == [("r0", 0, 1948), ("r1", 0, 100)]


def test_nor_where_a_step_beside_decodes_is_paced() -> None:
    config = SchedulerConfig(max_num_batched_tokens=8192)
    scheduler = Scheduler(config, KVCacheManager(1024, 16), 16384, paces_prompts=True)
    for arrival, length in enumerate((4, 10_000, 100)):
        message = AddRequest(
            request_id=f"r{arrival}",
            prompt_token_ids=[arrival] * length,
            sampling=SamplingParams(max_tokens=9),
        )
        scheduler.add(Request(message, arrival=arrival, max_model_len=16384))
        if arrival == 0:
            assert shape(scheduler.schedule()) == [("r0", 0, 4)]
    assert shape(scheduler.schedule()) == [("r0", 4, 1), ("r1", 0, 412), ("r2", 0, 100)]


def test_an_explicit_threshold_holds_while_anybody_else_is_there() -> None:
    sim = Simulation(max_num_batched_tokens=16, long_prefill_token_threshold=3)
    sim.add(100, max_tokens=3)
    sim.add(2, max_tokens=2)
    assert shape(sim.step()) == [("r0", 0, 3), ("r1", 0, 2)]
    assert shape(sim.step()) == [("r1", 2, 1), ("r0", 3, 3)]
    assert shape(sim.step()) == [("r0", 6, 16)], "alone, it gets the whole budget"
    sim.add(2)
    assert shape(sim.step()) == [("r0", 22, 3), ("r2", 0, 2)]


def test_an_explicit_threshold_holds_while_another_waits_for_a_row() -> None:
    sim = Simulation(max_num_batched_tokens=16, long_prefill_token_threshold=3, max_num_seqs=1)
    sim.add(100)
    sim.add(2)
    assert shape(sim.step()) == [("r0", 0, 3)]


def test_without_decodes_a_prompt_gets_the_rest_of_the_budget() -> None:
    sim = Simulation(max_num_batched_tokens=16)
    sim.add(100)
    sim.add(6)
    assert shape(sim.step()) == [("r0", 0, 10), ("r1", 0, 6)]
    assert shape(sim.step()) == [("r1", 6, 1), ("r0", 10, 8)]


def test_without_chunks_a_prompt_runs_whole_or_not_at_all() -> None:
    sim = Simulation(
        enable_chunked_prefill=False, max_num_batched_tokens=20, max_num_seqs=4, max_model_len=20
    )
    sim.add(12)
    sim.add(9)
    assert shape(sim.step()) == [("r0", 0, 12)]
    assert shape(sim.step()) == [("r0", 12, 1), ("r1", 0, 9)]


def test_without_chunks_the_budget_must_admit_the_longest_prompt() -> None:
    config = SchedulerConfig(enable_chunked_prefill=False, max_num_batched_tokens=256)
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens \(256\) .* raise the former"):
        Scheduler(config, KVCacheManager(64, 16), max_model_len=257)


def test_priorities_order_the_queue() -> None:
    sim = Simulation(max_num_seqs=1, scheduling_policy="priority")
    sim.add(4, max_tokens=1, priority=1)
    sim.add(4, max_tokens=1, priority=0)
    assert shape(sim.step()) == [("r1", 0, 4)]


# ---------------------------------------------------------------------- ends


def test_every_way_to_end() -> None:
    prompt = [1, 2, 3]
    message = AddRequest(
        request_id="x", prompt_token_ids=prompt, sampling=SamplingParams(max_tokens=30)
    )
    tokens = answer_alone(message, max_model_len=128)
    stop, eos = tokens[3], next(t for t in tokens if t != tokens[3])

    def run(**fields: object) -> tuple[list[int], str | None, int | None]:
        kv = KVCacheManager(64, 4)
        scheduler = Scheduler(SchedulerConfig(max_num_seqs=4).settled("cpu"), kv, 128)
        sampling = SamplingParams(**{"max_tokens": 30} | fields)  # type: ignore[arg-type]
        message = AddRequest(
            request_id="x", prompt_token_ids=prompt, sampling=sampling, eos_token_ids=[eos]
        )
        scheduler.add(Request(message, arrival=0, max_model_len=128))
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


def test_abort_in_every_state_and_twice() -> None:
    sim = Simulation(max_num_seqs=2, num_blocks=32)
    running, also_running, waiting = sim.add(4), sim.add(30), sim.add(4)
    sim.schedule()
    for request in (running, also_running, waiting):
        [delta] = sim.abort(request.request_id, "unknown", request.request_id)
        assert (delta.request_id, delta.finish_reason) == (request.request_id, "abort")
        assert sim.abort(request.request_id) == []
    assert sim.settle() == []  # nobody is left to hear the tokens
    sim.check_idle()


def test_what_left_the_batch_is_told_with_the_next_plan() -> None:
    sim = Simulation()
    sim.add(4)
    sim.step()
    sim.abort("r0")
    sim.add(4)
    plan = sim.step()
    assert plan is not None
    assert plan.removed_ids == ["r0"]


def test_an_id_may_not_run_twice_but_may_come_again() -> None:
    sim = Simulation()
    sim.add(4, max_tokens=1)
    message = sim.messages["r0"]
    twin = Request(message, arrival=1, max_model_len=sim.max_model_len)
    with pytest.raises(InvalidRequestError, match="give each request its own"):
        sim.scheduler.add(twin)
    sim.drain()
    sim.scheduler.add(twin)
    assert shape(sim.scheduler.schedule()) == [("r0", 0, 4)]


def test_a_result_for_a_request_that_left_does_not_reach_its_namesake() -> None:
    sim = Simulation(depth=2)
    sim.add(4)
    sim.schedule()
    sim.abort("r0")
    twin = Request(sim.messages["r0"], arrival=1, max_model_len=sim.max_model_len)
    sim.scheduler.add(twin)
    sim.schedule()
    assert sim.settle() == []
    assert twin.num_output_tokens == 0


# ---------------------------------------------------------------------- failures


def test_a_request_with_damaged_logits_fails_alone() -> None:
    sim = Simulation()
    damaged, neighbour = sim.add(9), sim.add(9)
    sim.schedule(failing={"r0"})
    deltas = {delta.request_id: delta for delta in sim.settle()}
    assert deltas["r0"].finish_reason == "error"
    assert "non-finite numbers" in (deltas["r0"].error or "")
    assert deltas["r0"].token_ids == []
    assert damaged.is_finished
    again = sim.add(sim.messages["r0"].prompt_token_ids)
    assert sim.kv.get_computed_blocks(again) == []
    sim.drain()
    assert sim.answer(neighbour) == sim.alone["r1"]
    assert sim.answer(again) == sim.alone["r2"]


def test_damage_in_a_chunk_that_draws_nothing_is_not_shared() -> None:
    sim = Simulation(max_num_batched_tokens=16)
    sim.add([1] * 40)
    sim.step()
    sim.schedule(failing={"r0"})
    [delta] = sim.settle()
    assert delta.finish_reason == "error"
    again = sim.add([1] * 40)
    sim.drain()
    assert again.num_cached_tokens == 0
    assert sim.answer(again) == sim.alone["r1"]


def test_wishes_that_leave_no_token_cost_nobody_a_cached_block() -> None:
    sim = Simulation()
    prompt = [1, 2, 3, 4, 1, 2, 3, 4, 1]
    sim.add(prompt, max_tokens=1)
    sim.drain()
    sim.add([*prompt, 2, 3, 4, 1])
    sim.schedule(exhausted={"r1"})
    [delta] = sim.settle()
    assert (delta.finish_reason, delta.token_ids) == ("error", [])
    for name in ("logit_bias", "min_tokens", "stop_token_ids", "bad_words", "ban fewer tokens"):
        assert name in (delta.error or "")
    again = sim.add([*prompt, 2, 3, 4, 1])
    sim.drain()
    assert again.num_cached_tokens == 12, "what it computed itself is sound, too"
    assert sim.answer(again) == sim.alone["r2"]
    sim.check_idle()


def test_damage_in_a_late_step_takes_the_early_blocks_out_of_the_cache_too() -> None:
    sim = Simulation()
    sim.add(9)
    sim.step()
    assert sim.kv.pool.lookup(sim.requests["r0"].block_hashes[0]) is not None
    sim.schedule(failing={"r0"})
    sim.settle()
    assert sim.kv.pool.num_free == sim.kv.pool.num_blocks


def test_a_step_that_raised_ends_its_requests_and_no_other() -> None:
    sim = Simulation(max_num_seqs=2)
    sim.add(9)
    sim.add(9)
    waiting = sim.add(9)
    sim.schedule(raises=True)
    deltas = sim.settle()
    assert [(d.request_id, d.finish_reason) for d in deltas] == [("r0", "error"), ("r1", "error")]
    assert all(d.error == "the step failed; send it again" for d in deltas)
    assert sim.kv.pool.num_evictable == 0
    sim.drain()
    assert sim.answer(waiting) == sim.alone["r2"]


# ---------------------------------------------------------------------- steps in flight


def test_the_next_step_is_planned_before_the_token_is_known() -> None:
    sim = Simulation(depth=2)
    request = sim.add(4, max_tokens=3)
    assert shape(sim.schedule()) == [("r0", 0, 4)]
    assert shape(sim.schedule()) == [("r0", 4, 1)]
    assert request.num_in_flight_tokens == 2
    sim.settle()
    assert shape(sim.schedule()) == [("r0", 5, 1)]
    sim.settle()
    assert sim.schedule() is None  # the last token is in flight
    sim.settle()
    assert sim.answer(request) == sim.alone["r0"]
    sim.check_idle()


def test_a_surplus_token_is_dropped() -> None:
    sim = Simulation(depth=2)
    prompt = next(p for p in ([n] * 5 for n in range(1, 99)) if _ends_at_once(p))
    request = sim.add(prompt, max_tokens=30, ignore_eos=False)
    sim.schedule()
    assert shape(sim.schedule()) == [("r0", 5, 1)]
    sim.settle()
    assert sim.settle() == []
    assert sim.answer(request) == [EOS]
    assert sim.finish_reason(request) == "stop"


def _ends_at_once(prompt: list[int]) -> bool:
    message = AddRequest(
        request_id="x", prompt_token_ids=prompt, sampling=SamplingParams(), eos_token_ids=[EOS]
    )
    return answer_alone(message, 128) == [EOS]


def test_a_result_from_before_a_preemption_caches_nothing() -> None:
    """The request runs again, on other blocks, which the late result says nothing about."""
    sim = Simulation(
        num_blocks=18,
        block_size=1,
        max_num_batched_tokens=4,
        max_num_seqs=4,
        depth=4,
        long_prefill_token_threshold=3,
    )
    sim.add(4, max_tokens=12)
    sim.schedule()
    sim.settle()
    request = sim.add(12, max_tokens=2)
    chunks = [shape(sim.schedule())[-1] for _ in range(3)]
    assert chunks == [("r1", 0, 3), ("r1", 3, 3), ("r1", 6, 3)]
    sim.schedule()
    assert request.status is RequestStatus.PREEMPTED
    sim.settle()
    sim.settle()
    sim.abort("r0")
    assert shape(sim.schedule()) == [("r1", 0, 4)]
    sim.settle()  # tells that tokens 6, 7 and 8 were computed, into blocks that are lost
    assert sim.kv.pool.lookup(request.block_hashes[0]) is None
    sim.drain()
    assert sim.answer(request) == sim.alone["r1"]


def test_a_preempted_request_waits_for_its_token_in_flight() -> None:
    """Only then are all its tokens known to those who describe it to the batch again."""
    sim = Simulation(num_blocks=16, block_size=1, max_num_seqs=2, depth=4)
    sim.add(4, max_tokens=12)
    request = sim.add(4, max_tokens=12)
    while request.num_preemptions == 0:
        sim.schedule()
        if request.num_preemptions == 0 and len(sim.in_flight) == 2:
            sim.settle()
    sim.abort("r0")
    assert request.num_in_flight_tokens == 1
    assert sim.schedule() is None
    sim.settle()
    assert shape(sim.schedule()) == [("r1", 7, 2)]
    sim.drain()
    assert sim.answer(request) == sim.alone["r1"]


def test_steps_are_answered_in_their_order() -> None:
    sim = Simulation(depth=2)
    sim.add(4)
    sim.schedule()
    second = sim.schedule()
    assert second is not None
    with pytest.raises(AssertionError, match="out of order"):
        sim.scheduler.update(second, ModelRunnerOutput(results=[SampleResult(token_id=1)]))


# ---------------------------------------------------------------------- sharing prefixes


def test_a_cached_prefix_is_not_computed_again() -> None:
    sim = Simulation()
    sim.add([1, 2, 3, 4] * 5, max_tokens=1)
    sim.drain()
    request = sim.add([1, 2, 3, 4] * 5, max_tokens=1)
    assert shape(sim.step()) == [("r1", 16, 4)]
    assert request.num_cached_tokens == 16
    [delta] = sim.deltas["r1"]
    assert delta.num_cached_tokens == 16
    stats = sim.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (32, 16)


def test_requests_that_come_together_compute_their_prefix_once() -> None:
    sim = Simulation(max_num_batched_tokens=16, max_num_seqs=8)
    prefix = [1, 2, 3, 4] * 5
    for tail in range(5, 8):
        sim.add([*prefix, tail])
    other = sim.add(2)
    # r1 and r2 wait for r0, and nobody waits for them
    assert shape(sim.step()) == [("r0", 0, 14), ("r3", 0, 2)]
    assert shape(sim.step()) == [("r3", 2, 1), ("r0", 14, 7)]
    assert shape(sim.step())[2:] == [("r1", 20, 1), ("r2", 20, 1)]
    sim.drain()
    assert sim.answer(other) == sim.alone["r3"]


def test_a_crowd_that_waits_for_a_prefix_does_not_hold_up_a_step() -> None:
    sim = Simulation(max_num_batched_tokens=8)
    prefix = [1, 2, 3, 4] * 24
    for tail in range(50):
        sim.add([*prefix, 5 + tail])
    sim.add(2)
    assert shape(sim.step()) == [("r0", 0, 8)]  # 32 * 8 tokens are looked at, and r50 is not
    hashed = [bool(request.block_hashes) for request in sim.requests.values()]
    assert hashed == [True] * 4 + [False] * 47
    sim.drain()
    assert sim.scheduler.stats().prefix_cache_hits == 49 * len(prefix)


@pytest.mark.parametrize("ending", ["abort", "damage", "raise"])
def test_who_waits_for_a_prefix_goes_on_when_its_owner_ends(ending: str) -> None:
    sim = Simulation(max_num_batched_tokens=8)
    prefix = [1, 2, 3, 4] * 5
    sim.add([*prefix, 5])
    waiter = sim.add([*prefix, 6])
    sim.schedule(failing={"r0"} if ending == "damage" else set(), raises=ending == "raise")
    if ending == "abort":
        sim.abort("r0")
    sim.settle()
    plan = sim.schedule()
    assert plan is not None
    assert [entry.request_id for entry in plan.scheduled] == ["r1"]
    sim.settle()
    sim.drain()
    assert sim.answer(waiter) == sim.alone["r1"]


def test_tenants_do_not_wait_for_each_other() -> None:
    sim = Simulation()
    prompt = [1, 2, 3, 4] * 5
    sim.add(prompt, salt="one")
    sim.add(prompt, salt="two")
    assert shape(sim.step()) == [("r0", 0, 20), ("r1", 0, 20)]


# ---------------------------------------------------------------------- blocks run out


def test_the_last_in_line_is_preempted_and_answers_as_if_it_had_not_been() -> None:
    sim = Simulation(num_blocks=10, block_size=4, enable_prefix_caching=False)
    first, second = sim.add(9, max_tokens=24), sim.add(9, max_tokens=24)
    while not sim.scheduler.stats().num_preemptions:
        sim.step()
    assert first.status is RequestStatus.RUNNING
    assert second.status is RequestStatus.PREEMPTED
    lost = second.num_lost_tokens
    assert lost > 9
    sim.drain()
    assert sim.answer(first) == sim.alone["r0"]
    assert sim.answer(second) == sim.alone["r1"]
    assert sim.scheduler.stats().num_recomputed_tokens == lost


def test_what_a_preempted_request_finds_again_is_no_hit() -> None:
    sim = Simulation(num_blocks=10, block_size=4)
    first, second = sim.add(9, max_tokens=24), sim.add(9, max_tokens=24)
    sim.drain()
    stats = sim.scheduler.stats()
    assert stats.num_preemptions > 0
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (16, 0)
    assert first.num_cached_tokens == second.num_cached_tokens == 0


def test_an_entry_that_is_taken_back_gives_back_its_budget() -> None:
    """The victim stands before its better in this step, so it has an entry already."""
    sim = Simulation(
        num_blocks=10, block_size=4, scheduling_policy="priority", enable_prefix_caching=False
    )
    victim, better = sim.add(9, max_tokens=24, priority=1), None
    sim.step()
    better = sim.add(9, max_tokens=24, priority=0)
    while not sim.scheduler.stats().num_preemptions:
        plan = sim.step()
    assert shape(plan) == [("r1", better.num_computed_tokens - 1, 1)]
    assert victim.num_in_flight_tokens == 0
    sim.drain()
    assert sim.answer(victim) == sim.alone["r0"]


def test_a_prompt_is_admitted_only_if_all_of_it_has_room() -> None:
    sim = Simulation(num_blocks=12, block_size=4, max_num_batched_tokens=16)
    sim.add(30, max_tokens=4)
    sim.add(30, max_tokens=4)
    assert shape(sim.step()) == [("r0", 0, 16)]  # 4 blocks held, 4 promised, 12 in all
    sim.drain()
    assert sim.scheduler.stats().num_preemptions == 0


def test_preemptions_are_bounded_under_a_storm() -> None:
    """64 requests, room for about three: work thrown away stays small, answers stay the same."""
    sim = Simulation(num_blocks=24, block_size=4, max_num_seqs=64, enable_prefix_caching=False)
    requests = [sim.add(8, max_tokens=20) for _ in range(64)]
    ideal = 64 * 20 / (24 * 4 / 28)  # steps if memory were always full of useful tokens
    num_steps = sim.drain()
    stats = sim.scheduler.stats()
    assert stats.num_preemptions > 0
    assert max(request.num_preemptions for request in requests) <= MAX_PREEMPTIONS
    assert num_steps <= 3 * ideal
    assert all(sim.answer(request) == sim.alone[request.request_id] for request in requests)


def test_a_request_that_was_preempted_too_often_returns_only_for_good() -> None:
    sim = Simulation(num_blocks=10, block_size=4, enable_prefix_caching=False)
    other, spared = sim.add(9, max_tokens=24), sim.add(9, max_tokens=24)
    sim.step()
    assert other.status is spared.status is RequestStatus.RUNNING
    spared.num_preemptions = MAX_PREEMPTIONS - 1
    while spared.status is RequestStatus.RUNNING:
        sim.step()
    while not other.is_finished:
        assert spared.status is RequestStatus.PREEMPTED
        sim.step()
    sim.step()
    assert len(sim.kv.block_table(spared)) == sim.kv.num_blocks_for(9 + 24 - 1)
    sim.drain()
    assert sim.answer(spared) == sim.alone["r1"]


def test_one_request_may_fill_the_whole_cache() -> None:
    sim = Simulation(num_blocks=8, block_size=4)
    request = sim.add(20, max_tokens=13)  # the last token needs no slot
    sim.add(20, max_tokens=13)
    sim.drain()
    assert sim.answer(request) == sim.alone["r0"]


def test_prompt_logprobs_are_told_once_though_computed_twice() -> None:
    sim = Simulation(num_blocks=14, block_size=4, max_num_batched_tokens=8)
    sim.add(9, max_tokens=30)
    request = sim.add(list(range(20)), max_tokens=20, prompt_logprobs=0)
    sim.drain()
    assert request.num_preemptions > 0
    told = [e.token_ids[0] for d in sim.deltas["r1"] for e in d.prompt_logprobs]
    assert told == list(range(1, 20))


# ---------------------------------------------------------------------- figures


def test_stats_say_what_is_going_on() -> None:
    sim = Simulation(max_num_seqs=1, num_blocks=32)
    sim.add(9, max_tokens=3)
    sim.add(9, max_tokens=3)
    sim.step()
    stats = sim.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_steps) == (1, 1, 1)
    assert (stats.num_blocks, stats.num_free_blocks, stats.num_cached_blocks) == (32, 29, 0)
    assert (stats.num_prompt_tokens, stats.num_generation_tokens) == (9, 1)
    assert stats.prefix_cache_misses == {"cold": 8, "evicted": 0, "bypassed": 0}
    sim.drain()
    stats = sim.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert (stats.num_free_blocks, stats.num_cached_blocks) == (28, 4)
    assert (stats.num_prompt_tokens, stats.num_generation_tokens) == (18, 6)
