"""The TTFT target, on a machine whose steps cost what we say, and on single steps."""

from __future__ import annotations

import msgspec
import pytest
from machine import Machine
from simulation import Simulation

from quire.config import SchedulerConfig
from quire.core.request import Request
from quire.errors import ConfigError
from quire.scheduler.chunk_policy import LONG, ChunkPolicy

pytestmark = pytest.mark.usefixtures("no_burst_rule")

TARGET = 300.0


def mixed(itl_target_ms: float | None, ttft_target_ms: float | None) -> Machine:
    """About three quarters of the machine: short prompts of 20 ms, and long ones of 600 ms."""
    machine = Machine(itl_target_ms, ttft_target_ms)
    return machine.run_mixed(16.0, shorts_per_second=10.0, longs_per_second=0.8)


def test_short_prompts_are_in_time_at_the_price_of_long_ones() -> None:
    free, bound = mixed(30.0, None), mixed(30.0, TARGET)
    assert free.ttft_ms("short", 0.99) > 4 * TARGET  # what it is good for
    assert bound.ttft_ms("short", 0.99) <= TARGET
    assert bound.ttft_ms("long", 0.99) <= 1.5 * free.ttft_ms("long", 0.99)
    assert bound.ttft_ms("", 0.5) <= 0.95 * free.ttft_ms("", 0.5)
    assert bound.gap_ms(0.99) <= 30.0  # the other target stays


def test_it_needs_no_itl_target() -> None:
    free, bound = mixed(None, None), mixed(None, TARGET)
    assert free.ttft_ms("short", 0.99) > 3 * TARGET
    assert bound.ttft_ms("short", 0.99) <= TARGET
    assert bound.ttft_ms("long", 0.99) <= 1.25 * free.ttft_ms("long", 0.99)


def test_a_prompt_is_due_after_the_target_or_a_multiple_of_what_it_takes() -> None:
    policy = ChunkPolicy(None, 0.1, full_step=2048)
    assert policy.due_time(7.0, 0, 10_000) == pytest.approx(7.1)  # nothing is known of costs
    for number in range(40):
        policy.observe(0, 1000 + 100 * (number % 8), 0.1 + 0.01 * (number % 8))
    assert policy.due_time(7.0, 0, 10) == pytest.approx(7.1)
    assert policy.due_time(7.0, 0, 5000) == pytest.approx(7.0 + LONG * 0.5, rel=0.05)


def test_the_prompt_that_is_due_first_may_have_all_that_decodes_leave() -> None:
    sim = Simulation(max_num_batched_tokens=20, ttft_target_ms=50.0)
    sim.add(1, 100)
    sim.step()
    sim.add(60, 2)
    plan = sim.schedule()
    assert plan is not None
    assert [entry.num_tokens for entry in plan.scheduled] == [1, 19]


def test_who_is_due_first_goes_before_a_started_prompt() -> None:
    sim = Simulation(max_num_batched_tokens=20, ttft_target_ms=10.0, max_model_len=200)
    sim.add(1, 100)
    for length in (5, 10, 15, 19):
        sim.add(length, 1)
    for _ in range(30):  # now the costs are known: a millisecond a token
        sim.step()
    long, short = sim.add(120, 2), sim.add(15, 2)
    assert short.due_time < long.due_time
    plan = sim.schedule()
    assert plan is not None
    assert [entry.request_id for entry in plan.scheduled] == [
        "r0",
        short.request_id,
        long.request_id,
    ]


def test_a_request_that_another_engine_began_is_due_at_once() -> None:
    sim = Simulation(ttft_target_ms=10.0)
    sim.now = 5.0
    fresh = sim.add(4)
    message = msgspec.structs.replace(
        sim.messages[fresh.request_id], request_id="started", output_token_ids=[1, 2]
    )
    started = Request(message, arrival_number=1, max_model_len=100, queued=5.0)
    sim.scheduler.add(started)
    assert (started.due_time, fresh.due_time) == (5.0, pytest.approx(5.01))


def test_the_target_is_a_positive_number() -> None:
    with pytest.raises(ConfigError, match="ttft_target_ms"):
        SchedulerConfig(ttft_target_ms=0.0)
