"""Prompts that come all at once, with the step times of a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from scheduling_model import DECODES, MIXED, SUSTAINED, LevelRun, make_scheduler
from simulation import Simulation
from workloads.plan import Workload, make_level

from quire.core.pooling_params import PoolingParams

PROMPT, ANSWER = 1950, 100


def run(
    num_requests: int, policy: str = "fcfs", *, prompt: int = PROMPT, answer: int = ANSWER
) -> LevelRun:
    workload = Workload("burst", "", prompt, answer, (num_requests,))
    level = make_level(workload, num_requests, "m", 32_000, seed=1, seconds=15.0)
    return LevelRun(level, *make_scheduler(policy)).run()


def seconds_of_prompts(num_requests: int) -> float:
    return num_requests * PROMPT * SUSTAINED * MIXED[2048] / 2048 / 1000


def gaps(level: LevelRun) -> list[float]:
    return [seconds for _, seconds in level.gaps]


def test_few_answers_wait_for_the_prompts_that_came_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = run(8)
    assert max(held.ttfts.values()) < 1.05 * seconds_of_prompts(8)
    assert np.quantile(gaps(held), 0.98) < 1.05 * DECODES[8] / 1000
    monkeypatch.setattr("quire.scheduler.chunk_policy.FEW_REQUESTS", 0)
    assert np.quantile(gaps(run(8)), 0.98) > 0.03


def test_by_priority_nobody_waits() -> None:
    assert max(gaps(run(8, "priority"))) < 0.05


def test_no_answer_waits_for_long() -> None:
    held = run(16, prompt=2 * PROMPT)
    assert seconds_of_prompts(32) > 1.3
    assert 0.9 < max(gaps(held)) < 1.1


def test_after_a_large_burst_requests_do_not_go_on_in_waves() -> None:
    level = run(64, answer=2 * ANSWER)
    later = [ttft for name, ttft in level.ttfts.items() if int(name[1:]) >= 64]
    assert np.quantile(later, 0.9) < 0.25  # the prompts of 64 take 2.9 s
    assert np.quantile(gaps(level), 0.99) < 0.06  # none paused: a full step beside them is 0.05


def test_answers_pause_where_prompts_take_more_than_half_of_their_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused = np.quantile(list(run(128).ttfts.values()), 0.5)
    monkeypatch.setattr("quire.scheduler.chunk_policy.PAUSED_STEPS", 0)
    assert paused < 0.3 * np.quantile(list(run(128).ttfts.values()), 0.5)


def test_few_short_prompts_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = list(run(16, prompt=200).ttfts.values())
    monkeypatch.setattr("quire.scheduler.chunk_policy.SHORT_PROMPT", 0)
    slow = list(run(16, prompt=200).ttfts.values())
    assert np.quantile(quick, 0.5) < 0.8 * np.quantile(slow, 0.5)
    assert max(quick) < 1.2 * max(slow)


def test_of_a_cached_prefix_only_the_rest_makes_a_prompt_short() -> None:
    workload = Workload("burst", "", PROMPT, ANSWER, (16,), shared_prefix=PROMPT - 200)
    level = make_level(workload, 16, "m", 32_000, seed=1, seconds=15.0)
    found = LevelRun(level, *make_scheduler()).run()
    later = [ttft for name, ttft in found.ttfts.items() if int(name[1:]) >= 16]
    assert np.quantile(later, 0.5) < 0.04  # 3,200 tokens together take 0.082


@pytest.mark.parametrize(("pooling", "num_tokens"), [(None, 512), (PoolingParams(), 1600)])
def test_embeddings_of_short_texts_are_computed_together(
    pooling: PoolingParams | None, num_tokens: int
) -> None:
    sim = Simulation(num_blocks=1024, max_num_seqs=32, max_num_batched_tokens=2048)
    for _ in range(16):
        sim.add(100, pooling=pooling)
    plan = sim.step()
    assert plan is not None
    assert sum(plan.count_tokens()) == num_tokens
