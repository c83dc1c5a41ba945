"""The order in which prompts are due without a TTFT target, and how far others may pass them."""

from __future__ import annotations

import pytest
from simulation import Simulation, shape

from quire.core.request import Request, RequestStatus

pytestmark = pytest.mark.usefixtures("no_burst_rule")


def test_a_short_prompt_goes_before_a_long_one() -> None:
    sim = Simulation(max_num_batched_tokens=16)
    sim.add(100)
    sim.add(6)
    assert shape(sim.step()) == [("r1", 0, 6), ("r0", 0, 10)]


def test_but_not_before_one_that_waits_since_as_many_tokens_as_it_is_longer() -> None:
    sim = Simulation(max_num_batched_tokens=8, max_model_len=200, num_blocks=200)
    long = sim.add(60, max_tokens=1)
    planned = 0
    while long.num_computed_tokens == 0:
        sim.add(8, max_tokens=1)  # there is always one that fills a step
        sim.step()
        planned += 8
    assert 60 - 8 <= planned <= 60 + 8
    sim.drain()


@pytest.mark.parametrize(
    ("num_cached", "num_new", "max_tokens"), [(0, 100, 10), (96, 4, 10), (0, 8, 40)]
)
def test_passing_is_bounded_by_tokens_whether_cached_new_or_of_answers(
    num_cached: int, num_new: int, max_tokens: int
) -> None:
    num_rows, num_waiting, size = 4, 4, num_cached + num_new + max_tokens
    sim = Simulation(max_num_seqs=num_rows, max_model_len=500, num_blocks=1000)
    sim.add([1] * num_cached + [2], max_tokens=1)
    sim.drain()
    long, shorts = sim.add(400, max_tokens=1), list[Request]()
    while long.status is RequestStatus.WAITING:
        while sim.scheduler.stats().num_waiting <= num_waiting:
            number = len(shorts) + 3
            shorts.append(sim.add([1] * num_cached + [number] * num_new, max_tokens))
        sim.step()
    started = [r for r in shorts if r.status is not RequestStatus.WAITING]
    assert all(request.num_cached_tokens >= num_cached for request in started)
    assert len(started) * size <= 400 + (num_rows + num_waiting) * size


def test_of_two_prompts_alike_the_first_is_done_before_the_second_begins() -> None:
    sim = Simulation(max_num_batched_tokens=16, num_blocks=200)
    for _ in range(3):
        sim.add(30, max_tokens=1)
    assert shape(sim.step()) == [("r0", 0, 16)]
    assert shape(sim.step()) == [("r0", 16, 14), ("r1", 0, 2)]
    assert shape(sim.step()) == [("r1", 2, 16)]
