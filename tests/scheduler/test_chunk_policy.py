"""The ITL target, on a machine whose steps cost what we say."""

from __future__ import annotations

import random

import numpy as np
import pytest
from machine import Machine

from quire.config import SchedulerConfig
from quire.errors import ConfigError
from quire.scheduler.chunk_policy import (
    BACKLOG_STEPS,
    FEW_REQUESTS,
    FIRST_CHUNK,
    LEAST_CHUNK,
    LONGEST_WAIT,
    PAUSED_STEPS,
    SHORT_PROMPT,
    SHORT_STEP,
    ChunkPolicy,
)
from quire.scheduler.step_costs import StepCosts


def test_itl_stays_within_the_target_at_a_bounded_price() -> None:
    free, bound = Machine(None).run(15.0), Machine(30.0).run(15.0)
    assert free.gap_ms(0.5) > 90.0  # what it is good for
    assert bound.gap_ms(0.99) <= 30.0
    assert bound.gap_ms(0.5) >= 20.0  # and it does not hold back more than that
    assert bound.num_prompt_tokens / bound.now > 0.7 * free.num_prompt_tokens / free.now


def test_a_short_prompt_does_not_wait_for_the_whole_of_a_long_one() -> None:
    """The long prompt's chunks could take the whole budget beside decodes."""
    machine = Machine(30.0).run(3.0, num_talkers=8)
    while machine.scheduler.stats().num_running > 8:
        machine.step()
    machine.ask("long", 6000, 2)
    machine.step()
    machine.ask("short", 200, 2)
    while "long" not in machine.ttfts:
        machine.step()
    assert machine.ttfts["long"] > 0.6
    assert machine.ttfts["short"] < 0.15


def test_under_load_steps_end_on_sizes_within_the_target() -> None:
    free = Machine(30.0).run(4.0)
    bound = Machine(30.0, step_sizes=range(64, 2049, 64)).run(4.0)
    ends = [sum(n % 64 == 0 for n in m.step_lens) / len(m.step_lens) for m in (free, bound)]
    assert ends[0] < 0.2
    assert ends[1] > 0.9
    assert bound.gap_ms(0.95) <= 30.0
    assert bound.num_prompt_tokens / bound.now > 0.7 * free.num_prompt_tokens / free.now


def test_it_follows_a_machine_that_becomes_slower() -> None:
    machine = Machine(30.0, slowdown=lambda now: 1.0 if now < 5.0 else 2.0).run(15.0)
    assert machine.gap_ms(0.99, since=8.0) <= 30.0
    assert machine.gap_ms(0.5, since=8.0) >= 18.0


@pytest.mark.parametrize("target_ms", [0.01, 5.0])
def test_a_target_that_cannot_be_met_starves_no_prompt(target_ms: float) -> None:
    machine = Machine(target_ms).run(10.0, prompt_len=1000)
    assert "prompt10" in machine.ends
    assert machine.gap_ms(0.95) < 13.0  # and what prompts add stays small


def test_without_decodes_or_target_a_step_is_full() -> None:
    policy = ChunkPolicy(0.02, full_step=2048)
    for _ in range(50):
        policy.observe(0, 1000, 0.1)
    assert policy.prompt_tokens(0, 8192) == 2048
    assert policy.prompt_tokens(10, 8192) < 300
    assert ChunkPolicy(None, full_step=2048).prompt_tokens(10, 8192) == 2048
    assert ChunkPolicy(None, full_step=2048).prompt_tokens(10, 700) == 700


def test_decodes_sit_out_steps_only_for_a_backlog_and_not_for_long() -> None:
    policy = ChunkPolicy(None, full_step=2048)
    allowed = [BACKLOG_STEPS * 2048 * steps for steps in range(1, PAUSED_STEPS + 1)]
    for steps, num_waiting in enumerate(allowed):
        assert not policy.pauses_decodes(num_waiting - 1, steps)
        assert policy.pauses_decodes(num_waiting, steps)
    assert policy.largest_backlog == allowed[-1]
    assert not policy.pauses_decodes(10**9, PAUSED_STEPS)
    assert not ChunkPolicy(0.02, full_step=2048).pauses_decodes(10**9, 0)


def test_answers_that_have_just_started_wait_in_small_bursts() -> None:
    policy = ChunkPolicy(None, full_step=2048)
    assert policy.holds_first_tokens(FEW_REQUESTS, waited=0.5)
    assert not policy.holds_first_tokens(FEW_REQUESTS + 1, waited=0.5)
    assert not policy.holds_first_tokens(2, waited=LONGEST_WAIT)
    assert not ChunkPolicy(0.02, full_step=2048).holds_first_tokens(2, waited=0.0)


# Decodes, prompt tokens and milliseconds of steps in which prompts came all at once, on one H200.
STEPS = [
    (1, 0, 4.1), (4, 0, 4.6), (8, 0, 4.8), (1, 255, 7.8), (3, 317, 10.0), (7, 377, 11.2),
    (1, 1279, 30.5), (10, 1526, 37.2), (15, 1521, 37.4), (24, 1256, 32.3), (29, 1763, 45.7),
]  # fmt: skip


def test_what_many_prompt_tokens_cost_is_not_laid_to_the_decodes_beside_them() -> None:
    costs = StepCosts()
    for num_decodes, num_tokens, milliseconds in 8 * STEPS:
        costs.observe(num_decodes, num_tokens, milliseconds / 1000)
    assert costs.predict(30, 0) == pytest.approx(0.0064, rel=0.2)  # as it was then measured


def test_the_first_chunk_is_cautious_and_none_is_nothing() -> None:
    policy = ChunkPolicy(0.02, full_step=2048)
    assert policy.prompt_tokens(4, 2048) == FIRST_CHUNK
    assert policy.prompt_tokens(4, 9) == 9
    for _ in range(20):
        policy.observe(4, 10, 5.0)
    assert policy.prompt_tokens(4, 2048) == LEAST_CHUNK


@pytest.mark.parametrize("hiccups", [0.0, 0.1])
def test_costs_are_found_again(hiccups: float) -> None:
    costs, rng = StepCosts(), random.Random(3)
    for _ in range(400):
        decodes, tokens = rng.randrange(1, 64), rng.choice([0, 0, rng.randrange(1, 2000)])
        seconds = 0.004 + 0.0001 * decodes + 0.00005 * tokens
        costs.observe(decodes, tokens, seconds * (30.0 if rng.random() < hiccups else 1.0))
    found = np.array([costs.fixed, costs.per_decode, costs.per_prompt_token]) * costs.pace
    assert found == pytest.approx([0.004, 0.0001, 0.00005], rel=0.15)
    assert costs.predict(10, 0) == pytest.approx(0.005, rel=0.1)


def test_costs_are_never_negative_and_always_finite() -> None:
    rng, costs = random.Random(4), StepCosts()
    for _ in range(300):
        costs.observe(rng.randrange(0, 3), rng.randrange(0, 3), rng.choice([0.0, 1e-6, 1.0, 1e4]))
        for value in (costs.fixed, costs.per_decode, costs.per_prompt_token, costs.pace):
            assert np.isfinite(value)
            assert value >= 0.0


def test_a_target_needs_chunks() -> None:
    with pytest.raises(ConfigError, match="enable_chunked_prefill"):
        SchedulerConfig(itl_target_ms=20.0, enable_chunked_prefill=False)
    with pytest.raises(ConfigError, match="itl_target_ms"):
        SchedulerConfig(itl_target_ms=0.0)


def test_steps_are_short_for_few_short_prompts_alone() -> None:
    policy = ChunkPolicy(None, full_step=2048)
    assert policy.step_limit(FEW_REQUESTS, 4, 4 * SHORT_PROMPT) == SHORT_STEP
    assert policy.step_limit(FEW_REQUESTS, 4, 4 * SHORT_PROMPT + 1) == 2048
    assert policy.step_limit(FEW_REQUESTS + 1, 4, 4 * SHORT_PROMPT) == 2048


def test_a_bursts_answers_go_on_where_prompts_take_less_than_half_of_their_steps() -> None:
    policy = ChunkPolicy(None, full_step=2000)
    assert policy.staggers_ends(10, num_prompt_tokens=10 * 2000, num_answer_tokens=10 * 21)
    assert not policy.staggers_ends(10, num_prompt_tokens=10 * 2000, num_answer_tokens=10 * 20)
