"""Invariants for any order of events, among them that no request waits for ever."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulation import VOCAB_SIZE, Simulation

from quire.core.pooling_params import PoolingParams
from quire.scheduler.scheduler_batch import MAX_PREEMPTIONS

PREFIXES = [[1, 2, 3, 4] * 5, [1, 2, 3, 4] * 2 + [4, 3, 2, 1] * 3, [2] * 9, []]


MAX_MODEL_LEN = 40
STEP_SIZES = [[], [8, 16, 24, 46], [5, 7]]
POOLINGS = [None] * 4 + [PoolingParams(pooling="mean"), PoolingParams(pooling="last")]


def small_simulation(
    *,
    block_size: int,
    extra_blocks: int,
    max_num_seqs: int,
    extra_budget: int,
    depth: int,
    policy: str,
    chunked: bool,
    threshold: int,
    caching: bool,
    ttft_target: float | None,
    step_sizes: list[int],
    full_step: int,
) -> Simulation:
    """Just enough blocks and budget for one request, and so much more."""
    return Simulation(
        block_size=block_size,
        num_blocks=-(-(MAX_MODEL_LEN - 1) // block_size) + extra_blocks // block_size,
        max_model_len=MAX_MODEL_LEN,
        depth=depth,
        enable_prefix_caching=caching,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=(max_num_seqs if chunked else MAX_MODEL_LEN) + extra_budget,
        scheduling_policy=policy,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=threshold,
        ttft_target_ms=ttft_target,
        step_sizes=step_sizes,
        full_step=full_step,
    )


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, go, fail and are preempted while 1 to 3 steps are in flight."""

    @initialize(
        block_size=st.sampled_from([1, 2, 4, 8]),
        extra_blocks=st.integers(0, 30),
        max_num_seqs=st.integers(1, 6),
        extra_budget=st.integers(0, 40),
        depth=st.integers(1, 3),
        policy=st.sampled_from(["fcfs", "priority"]),
        chunked=st.booleans(),
        threshold=st.sampled_from([0, 1, 5]),
        caching=st.booleans(),
        ttft_target=st.sampled_from([None, 1.0, 10.0, 100.0]),
        step_sizes=st.sampled_from(STEP_SIZES),
        full_step=st.sampled_from([1, 7, 1 << 20]),
    )
    def start(self, **drawn: Any) -> None:
        self.sim = small_simulation(**drawn)

    @rule(
        prefix=st.sampled_from(PREFIXES),
        tail=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=8),
        max_tokens=st.one_of(st.none(), st.integers(1, 11)),
        priority=st.integers(0, 2),
        salt=st.sampled_from(["", "", "tenant"]),
        ignore_eos=st.booleans(),
        prompt_logprobs=st.sampled_from([None, None, None, 1]),
        pooling=st.sampled_from(POOLINGS),
        stream=st.booleans(),
    )
    def add(
        self,
        prefix: list[int],
        tail: list[int],
        max_tokens: int | None,
        priority: int,
        salt: str,
        ignore_eos: bool,
        prompt_logprobs: int | None,
        pooling: PoolingParams | None,
        stream: bool,
    ) -> None:
        self.sim.add(
            prefix + tail,
            max_tokens,
            priority=priority,
            salt=salt,
            ignore_eos=ignore_eos,
            prompt_logprobs=prompt_logprobs,
            pooling=pooling,
            stream=stream,
        )

    @precondition(lambda self: len(self.sim.in_flight) < self.sim.depth)
    @rule()
    def schedule(self) -> None:
        self.sim.schedule()

    @precondition(lambda self: self.sim.in_flight)
    @rule()
    def finish_step(self) -> None:
        self.sim.finish_step()

    @rule(num_steps=st.integers(1, 8))
    def run_on(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.sim.step()

    @precondition(lambda self: self.sim.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """In any state; finished, unknown and repeated ids are no-ops."""
        chosen = data.draw(st.lists(st.sampled_from([*self.sim.requests, "unknown"]), max_size=3))
        self.sim.abort(*chosen)

    @precondition(lambda self: self.sim.requests and len(self.sim.in_flight) < self.sim.depth)
    @rule(data=st.data())
    def schedule_with_damage(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sets(st.sampled_from([*self.sim.requests]), min_size=1, max_size=2))
        self.sim.schedule(failing=chosen)

    @precondition(lambda self: self.sim.requests and len(self.sim.in_flight) < self.sim.depth)
    @rule(data=st.data())
    def schedule_with_nothing_to_draw(self, data: st.DataObject) -> None:
        self.sim.schedule(exhausted={data.draw(st.sampled_from([*self.sim.requests]))})

    @precondition(lambda self: len(self.sim.in_flight) < self.sim.depth)
    @rule()
    def schedule_and_raise(self) -> None:
        self.sim.schedule(raises=True)

    @rule()
    def reset_prefix_cache(self) -> None:
        self.sim.kv.reset_prefix_cache()

    @invariant()
    def everything_holds(self) -> None:
        self.sim.check()

    def teardown(self) -> None:
        """Without new arrivals all requests end within a bound, and no block stays held."""
        end_all(self.sim)


def end_all(sim: Simulation) -> None:
    """Turns suffice in which one token is computed each, though all requests were preempted."""
    unfinished = [r for r in sim.requests.values() if not r.is_finished]
    bound = sum(r.max_total_tokens for r in unfinished) * (MAX_PREEMPTIONS + 2)
    sim.drain(max_steps=10 + bound)
    sim.check_idle()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    report_multiple_bugs=False,
)


# ---------------------------------------------------------------------- many short traces

NUM_TRACES = 1000
TRACES_PER_TEST = 250


def random_simulation(rng: random.Random) -> Simulation:
    return small_simulation(
        block_size=rng.choice([1, 2, 4, 8]),
        extra_blocks=rng.randint(0, 30),
        max_num_seqs=rng.randint(1, 6),
        extra_budget=rng.randint(0, 40),
        depth=rng.randint(1, 3),
        policy=rng.choice(["fcfs", "priority"]),
        chunked=rng.random() < 0.7,
        threshold=rng.choice([0, 0, 1, 5]),
        caching=rng.random() < 0.8,
        ttft_target=rng.choice([None, 1.0, 10.0, 100.0]),
        step_sizes=rng.choice(STEP_SIZES),
        full_step=rng.choice([1, 7, 1 << 20]),
    )


def add_random(sim: Simulation, rng: random.Random) -> None:
    sim.add(
        rng.choice(PREFIXES) + rng.choices(range(VOCAB_SIZE), k=rng.randint(1, 8)),
        rng.choice([None, *range(1, 12)]),
        priority=rng.randint(0, 2),
        salt=rng.choice(["", "", "tenant"]),
        ignore_eos=rng.random() < 0.5,
        prompt_logprobs=rng.choice([None, None, None, 1]),
        pooling=rng.choice(POOLINGS),
    )


def random_event(sim: Simulation, rng: random.Random) -> None:
    """Mostly steps; of the rest, mostly requests."""
    someone = [rng.choice([*sim.requests])]
    luck = rng.random()
    if luck < 0.3:
        add_random(sim, rng)
    elif luck < 0.4:
        sim.abort(*someone)
    elif luck < 0.55 and len(sim.in_flight) < sim.depth:
        kind = rng.choice(["failing", "exhausted", "raises", "plain", "plain", "plain"])
        if kind == "raises":
            sim.schedule(raises=True)
        else:
            sim.schedule(**{} if kind == "plain" else {kind: someone})
    elif luck < 0.57:
        sim.kv.reset_prefix_cache()
    else:
        sim.step()
    sim.check()


@pytest.mark.parametrize("first", range(0, NUM_TRACES, TRACES_PER_TEST))
def test_short_random_traces(first: int) -> None:
    """Without shrinking, which is cheaper and allows many more orders of events."""
    for seed in range(first, first + TRACES_PER_TEST):
        rng = random.Random(seed)
        sim = random_simulation(rng)
        try:
            for _ in range(rng.randint(1, 3)):
                add_random(sim, rng)
            for _ in range(rng.randint(5, 25)):
                random_event(sim, rng)
            end_all(sim)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
