"""How many tokens each request gets: one rule per test. See simulation.py for the fake model."""

from __future__ import annotations

import pytest
from simulation import EOS, Simulation, shape

from quire.config import SchedulerConfig
from quire.core.messages import AddRequest
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import ModelRunnerOutput, SampleResult
from quire.errors import ConfigError
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.scheduler.chunk_policy import LONGEST_WAIT
from quire.scheduler.scheduler import Scheduler

pytestmark = pytest.mark.usefixtures("no_burst_rule")


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
    assert shape(sim.step()) == [("r0", 4, 1), ("r1", 0, 15)]
    sim.add(9)
    assert shape(sim.step()) == [("r0", 5, 1), ("r2", 0, 9), ("r1", 15, 6)]


def test_one_of_higher_priority_does_not_wait_for_a_prompt_that_was_cut() -> None:
    sim = Simulation(max_num_batched_tokens=16, num_blocks=200, scheduling_policy="priority")
    sim.add(100, max_tokens=1, priority=5)
    sim.step()
    sim.add(60, max_tokens=1, priority=0)
    assert shape(sim.step()) == [("r1", 0, 16)]


def test_prompts_have_a_full_step_beside_decodes_where_the_budget_is_larger() -> None:
    config = SchedulerConfig(max_num_batched_tokens=8192)
    scheduler = Scheduler(config, KVCacheManager(1024, 16), 16384, full_step=2048)
    for arrival, length in enumerate((4, 4000, 90)):
        message = AddRequest(
            request_id=f"r{arrival}",
            prompt_token_ids=[arrival] * length,
            sampling=SamplingParams(max_tokens=9),
        )
        scheduler.add(Request(message, arrival_number=arrival, max_model_len=16384))
        if arrival == 0:
            assert shape(scheduler.schedule()) == [("r0", 0, 4)]
    plan = scheduler.schedule(LONGEST_WAIT)
    assert shape(plan) == [("r0", 4, 1), ("r2", 0, 90), ("r1", 0, 1958)]


def test_prompts_are_cut_so_that_a_step_ends_on_a_size() -> None:
    sim = Simulation(max_num_batched_tokens=60, step_sizes=(8, 16, 32, 48, 64), num_blocks=200)
    for length in (3, 3, 100):
        sim.add(length, max_tokens=20)
    assert shape(sim.step()) == [("r0", 0, 3), ("r1", 0, 3), ("r2", 0, 42)]
    sim.add(100)
    assert shape(sim.step()) == [("r0", 3, 1), ("r1", 3, 1), ("r2", 42, 46)]


@pytest.mark.parametrize(
    ("budget", "prompt_tokens"),
    [(48, 46), (47, 45), (41, 30), (33, 30), (21, 19), (18, 14), (9, 7)],
)
def test_but_no_prompt_gets_much_less_for_it(budget: int, prompt_tokens: int) -> None:
    sim = Simulation(max_num_batched_tokens=budget, step_sizes=(16, 32, 48), num_blocks=200)
    for length in (2, 2):
        sim.add(length, max_tokens=20)
    sim.step()
    for length in (100, 100):
        sim.add(length)
    plan = sim.step()
    assert plan is not None
    assert sum(plan.count_tokens()) == 2 + prompt_tokens


@pytest.mark.parametrize(
    ("num_decodes", "lengths", "prompt_tokens"),
    [
        (40, [60], [56]),  # 28 tokens of padding, and the step would be 100
        (40, [54], [54]),  # 2 of 94
        (40, [40, 30], [30, 26]),
        (10, [60], [60]),  # few decodes: a next step may be long in coming
        (40, [5], [5]),  # nothing but the end of one
    ],
)
def test_beside_many_decodes_a_prompt_leaves_its_end_where_a_step_would_be_padded(
    num_decodes: int, lengths: list[int], prompt_tokens: list[int]
) -> None:
    sim = Simulation(
        max_num_seqs=64, max_num_batched_tokens=512, step_sizes=(32, 64, 96, 128, 512),
        num_blocks=2000,
    )  # fmt: skip
    for _ in range(num_decodes):
        sim.add(2, max_tokens=50)
    sim.step()
    for length in lengths:
        sim.add(length)
    plan = sim.step()
    assert plan is not None
    assert [entry.num_tokens for entry in plan.scheduled[num_decodes:]] == prompt_tokens
    sim.drain()


def test_prompts_that_are_never_cut_know_no_sizes() -> None:
    sim = Simulation(
        max_num_batched_tokens=40, max_model_len=40, enable_chunked_prefill=False, step_sizes=(36,)
    )
    sim.add(38, max_tokens=1)
    assert shape(sim.step()) == [("r0", 0, 38)]


def test_an_explicit_threshold_holds_while_anybody_else_is_there() -> None:
    sim = Simulation(max_num_batched_tokens=16, long_prefill_token_threshold=3)
    sim.add(100, max_tokens=3)
    sim.add(2, max_tokens=2)
    assert shape(sim.step()) == [("r1", 0, 2), ("r0", 0, 3)]
    assert shape(sim.step()) == [("r1", 2, 1), ("r0", 3, 3)]
    assert shape(sim.step()) == [("r0", 6, 16)], "alone, it gets the whole budget"
    sim.add(2)
    assert shape(sim.step()) == [("r2", 0, 2), ("r0", 22, 3)]


def test_an_explicit_threshold_holds_while_another_waits_for_a_row() -> None:
    sim = Simulation(max_num_batched_tokens=16, long_prefill_token_threshold=3, max_num_seqs=1)
    sim.add(100)
    sim.add(100)
    assert shape(sim.step()) == [("r0", 0, 3)]


def test_without_chunks_a_prompt_runs_whole_or_not_at_all() -> None:
    sim = Simulation(
        enable_chunked_prefill=False, max_num_batched_tokens=20, max_num_seqs=4, max_model_len=20
    )
    sim.add(9)
    sim.add(12)
    assert shape(sim.step()) == [("r0", 0, 9)]
    assert shape(sim.step()) == [("r0", 9, 1), ("r1", 0, 12)]


def test_without_chunks_the_budget_must_admit_the_longest_prompt() -> None:
    config = SchedulerConfig(enable_chunked_prefill=False, max_num_batched_tokens=256)
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens \(256\) .* lower max_model_len"):
        Scheduler(config, KVCacheManager(64, 16), max_model_len=257)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("max_model_len", [16, 131_072])
def test_without_chunks_the_default_budget_is_for_the_longest_prompt_beside_all_decodes(
    device: str, max_model_len: int
) -> None:
    config = SchedulerConfig(enable_chunked_prefill=False).resolved(device, max_model_len)
    Scheduler(config, KVCacheManager(64, 16), max_model_len)
    assert config.full_step >= max_model_len
    chunked = SchedulerConfig().resolved(device, max_model_len)
    assert chunked == SchedulerConfig().resolved(device, 16)


def test_priorities_order_the_queue() -> None:
    sim = Simulation(max_num_seqs=1, scheduling_policy="priority")
    sim.add(4, max_tokens=1, priority=1)
    sim.add(4, max_tokens=1, priority=0)
    assert shape(sim.step()) == [("r1", 0, 4)]


def test_steps_that_a_graph_ran_are_counted() -> None:
    sim = Simulation()
    sim.add(4, max_tokens=3)
    for replayed in (False, True, True):
        plan = sim.scheduler.schedule()
        assert plan is not None
        results = [SampleResult(token_id=1)]
        sim.scheduler.update(plan, ModelRunnerOutput(results=results, replayed=replayed))
    stats = sim.scheduler.stats()
    assert (stats.num_graph_steps, stats.num_steps) == (2, 3)


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
