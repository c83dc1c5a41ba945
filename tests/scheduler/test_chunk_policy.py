"""The ITL target, on a machine whose steps cost what we say."""

from __future__ import annotations

import random

import numpy as np
import pytest
from machine import Machine

from quire.config import SchedulerConfig
from quire.errors import ConfigError
from quire.scheduler.chunk_policy import (
    CROWDED_STEP,
    FEW_REQUESTS,
    FIRST_CHUNK,
    LEAST_CHUNK,
    LONGEST_WAIT,
    UNPACED_CHUNK,
    WHOLE_STEP,
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
    """Whose chunks could take all that a step beside decodes may have."""
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


def test_without_decodes_or_target_nothing_is_held_back() -> None:
    policy = ChunkPolicy(0.02)
    for _ in range(50):
        policy.observe(0, 1000, 0.1)
    assert policy.prompt_tokens(0, 2048) == 2048
    assert policy.prompt_tokens(10, 2048) < 300
    assert ChunkPolicy(None).prompt_tokens(10, 2048) == 2048


def test_without_a_target_a_paced_step_takes_a_multiple_of_one_that_only_decodes() -> None:
    def seconds(num_decodes: int, num_prompt_tokens: int) -> float:
        return 0.005 + 0.00003 * num_decodes + 0.000025 * num_prompt_tokens

    policy = ChunkPolicy(None, paces=True)
    assert policy.prompt_tokens(16, 8192) == UNPACED_CHUNK
    for step in range(60):
        num_decodes, num_tokens = 4 * (step % 16), 0 if step % 3 else 100 * (step % 20 + 1)
        policy.observe(num_decodes, num_tokens, seconds(num_decodes, num_tokens))
    assert policy.prompt_tokens(0, 8192) == WHOLE_STEP
    for num_decodes, num_prompts, slowdown in (
        (1, 1, 2.5), (4, 1, 2.5), (16, 1, 2.5), (32, 1, 4.0), (64, 30, 8.0), (256, 1, 10.0),
        (64, 40, 10.0), (8, 99, 10.0),
    ):  # fmt: skip
        num_tokens = policy.prompt_tokens(num_decodes, 8192, num_prompts)
        assert seconds(num_decodes, num_tokens) == pytest.approx(
            slowdown * seconds(num_decodes, 0), rel=0.02
        )
    assert policy.prompt_tokens(64, 700) == 700
    for num_decodes, num_prompts in ((1, 2), (4, 2), (16, 8)):  # few would hold up many
        num_tokens = policy.prompt_tokens(num_decodes, 8192, num_prompts)
        assert seconds(num_decodes, num_tokens) == pytest.approx(CROWDED_STEP, rel=0.02)


@pytest.mark.parametrize(("per_token", "holds"), [(0.00002, True), (0.002, False)])
def test_answers_are_held_back_only_where_a_whole_step_is_short(
    per_token: float, holds: bool
) -> None:
    policy = ChunkPolicy(None, paces=True)
    for step in range(60):
        num_tokens = 0 if step % 3 else 100 * (step % 20 + 1)
        policy.observe(8, num_tokens, 0.005 + per_token * num_tokens)
    assert policy.holds_decodes(FEW_REQUESTS, waited=0.5) is holds
    assert not policy.holds_decodes(FEW_REQUESTS + 1, waited=0.5)
    assert not policy.holds_decodes(2, waited=LONGEST_WAIT)


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


def test_a_short_step_is_never_cut_for_the_pace() -> None:
    policy = ChunkPolicy(None, paces=True)
    for step in range(60):
        num_tokens = 0 if step % 3 else 100 * (step % 20 + 1)
        policy.observe(8, num_tokens, 0.001 + 0.000005 * num_tokens)
    assert policy.prompt_tokens(8, 8192) == pytest.approx(1800, rel=0.02)


def test_the_first_chunk_is_cautious_and_none_is_nothing() -> None:
    policy = ChunkPolicy(0.02)
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
