"""Blocks run out: who waits, who is preempted, and that nothing changes by it."""

from __future__ import annotations

from kv_usage import block_table
from simulation import Simulation, shape

from quire.core.request import RequestStatus
from quire.scheduler.scheduler_batch import MAX_PREEMPTIONS


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
    """The victim precedes the better request in this step, so it has an entry already."""
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


def test_a_prompt_is_admitted_only_if_all_of_it_fits() -> None:
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
    assert len(block_table(sim.kv, spared)) == sim.kv.num_blocks_for(9 + 24 - 1)
    sim.drain()
    assert sim.answer(spared) == sim.alone["r1"]


def test_one_request_may_fill_the_whole_cache() -> None:
    sim = Simulation(num_blocks=8, block_size=4)
    request = sim.add(20, max_tokens=13)  # the last token needs no slot
    sim.add(20, max_tokens=13)
    sim.drain()
    assert sim.answer(request) == sim.alone["r0"]


def test_prompt_logprobs_are_sent_once_though_computed_twice() -> None:
    sim = Simulation(num_blocks=14, block_size=4, max_num_batched_tokens=8)
    sim.add(9, max_tokens=30)
    request = sim.add(list(range(20)), max_tokens=20, prompt_logprobs=0)
    request.reports_progress = True
    sim.drain()
    assert request.num_preemptions > 0
    assert max(count for d in sim.deltas["r1"] for count in d.prompt_progress) == 20
    sent = [e.token_ids[0] for d in sim.deltas["r1"] for e in d.prompt_logprobs]
    assert sent == list(range(1, 20))
