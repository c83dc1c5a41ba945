"""Prefixes that are there, or in the making, are not computed again."""

from __future__ import annotations

import pytest
from simulation import Simulation, shape

pytestmark = pytest.mark.usefixtures("no_burst_rule")


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
    assert shape(sim.step()) == [("r3", 0, 2), ("r0", 0, 14)]
    assert shape(sim.step()) == [("r3", 2, 1), ("r0", 14, 7)]
    assert shape(sim.step())[2:] == [("r1", 20, 1), ("r2", 20, 1)]
    sim.drain()
    assert sim.answer(other) == sim.alone["r3"]


def test_a_crowd_that_waits_for_a_prefix_does_not_hold_up_a_step() -> None:
    sim = Simulation(max_num_batched_tokens=98)
    prefix = [1, 2, 3, 4] * 24
    for tail in range(50):
        sim.add([*prefix, 5 + tail])
    sim.add(98)
    assert shape(sim.step()) == [("r0", 0, 97)]  # 32 * 98 tokens are looked at, and r50 is not
    hashed = [bool(request.block_hashes) for request in sim.requests.values()]
    assert hashed == [True] * 34 + [False] * 17
    sim.drain()
    assert sim.scheduler.stats().prefix_cache_hits == 49 * len(prefix)


def test_few_long_prompts_are_not_all_looked_up_in_a_step() -> None:
    sim = Simulation(max_num_batched_tokens=8, num_blocks=256)
    for _ in range(6):
        sim.add(100)
    sim.step()  # 32 * 8 tokens are looked at
    hashed = [bool(request.block_hashes) for request in sim.requests.values()]
    assert hashed == [True] * 2 + [False] * 4


@pytest.mark.parametrize("ending", ["abort", "damage", "raise"])
def test_who_waits_for_a_prefix_goes_on_when_its_owner_ends(ending: str) -> None:
    sim = Simulation(max_num_batched_tokens=8)
    prefix = [1, 2, 3, 4] * 5
    sim.add([*prefix, 5])
    waiter = sim.add([*prefix, 6])
    sim.schedule(
        failing={"r0"} if ending == "damage" else set(),
        raises=ending == "raise",
    )
    if ending == "abort":
        sim.abort("r0")
    sim.finish_step()
    plan = sim.schedule()
    assert plan is not None
    assert [entry.request_id for entry in plan.scheduled] == ["r1"]
    sim.finish_step()
    sim.drain()
    assert sim.answer(waiter) == sim.alone["r1"]


def test_tenants_do_not_wait_for_each_other() -> None:
    sim = Simulation()
    prompt = [1, 2, 3, 4] * 5
    sim.add(prompt, salt="one")
    sim.add(prompt, salt="two")
    assert shape(sim.step()) == [("r0", 0, 20), ("r1", 0, 20)]


def test_nobody_waits_for_a_prefix_of_one_of_lower_priority() -> None:
    """Others, of a priority in between, could hold that one up for ever."""
    sim = Simulation(max_num_batched_tokens=8, scheduling_policy="priority")
    prefix = [1, 2, 3, 4] * 5
    sim.add([*prefix, 5], max_tokens=1, priority=2)
    sim.step()
    sim.add(16, max_tokens=1, priority=1)
    sim.add([*prefix, 6], max_tokens=1, priority=0)
    sim.add([*prefix, 7], max_tokens=1, priority=0)  # waits for the one before it
    assert shape(sim.step()) == [("r2", 8, 8)]
    assert shape(sim.step()) == [("r2", 16, 5), ("r1", 0, 3)]
    assert shape(sim.step()) == [("r3", 20, 1), ("r1", 3, 7)]
    sim.drain()
    sim.check_idle()


def test_priorities_say_nothing_in_order_of_arrival() -> None:
    sim = Simulation(max_num_batched_tokens=8)
    prefix = [1, 2, 3, 4] * 5
    sim.add([*prefix, 5], max_tokens=1, priority=2)
    sim.step()
    sim.add([*prefix, 6], max_tokens=1, priority=0)
    assert shape(sim.step()) == [("r0", 8, 8)]
    assert shape(sim.step()) == [("r0", 16, 5)]
    assert shape(sim.step()) == [("r1", 20, 1)]
