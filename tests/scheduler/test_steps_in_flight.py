"""Steps that are planned before the result of the one before is known."""

from __future__ import annotations

import pytest
from simulation import EOS, Simulation, answer_alone, shape

from quire.core.messages import AddRequest
from quire.core.request import RequestStatus
from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import ModelRunnerOutput, SampleResult

pytestmark = pytest.mark.usefixtures("no_burst_rule")


def test_the_next_step_is_planned_before_the_token_is_known() -> None:
    sim = Simulation(depth=2)
    request = sim.add(4, max_tokens=3)
    assert shape(sim.schedule()) == [("r0", 0, 4)]
    assert shape(sim.schedule()) == [("r0", 4, 1)]
    assert request.num_in_flight_tokens == 2
    sim.finish_step()
    assert shape(sim.schedule()) == [("r0", 5, 1)]
    sim.finish_step()
    assert sim.schedule() is None  # the last token is in flight
    sim.finish_step()
    assert sim.answer(request) == sim.alone["r0"]
    sim.check_idle()


def test_a_surplus_token_is_dropped() -> None:
    sim = Simulation(depth=2)
    prompt = next(p for p in ([n] * 5 for n in range(1, 99)) if _ends_at_once(p))
    request = sim.add(prompt, max_tokens=30, ignore_eos=False)
    sim.schedule()
    assert shape(sim.schedule()) == [("r0", 5, 1)]
    sim.finish_step()
    assert sim.finish_step() == []
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
    sim.finish_step()
    request = sim.add(12, max_tokens=2)
    chunks = [shape(sim.schedule())[-1] for _ in range(3)]
    assert chunks == [("r1", 0, 3), ("r1", 3, 3), ("r1", 6, 3)]
    sim.schedule()
    assert request.status is RequestStatus.PREEMPTED
    sim.finish_step()
    sim.finish_step()
    sim.abort("r0")
    assert shape(sim.schedule()) == [("r1", 0, 4)]
    sim.finish_step()  # tells that tokens 6, 7 and 8 were computed, into blocks that are lost
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
            sim.finish_step()
    sim.abort("r0")
    assert request.num_in_flight_tokens == 1
    assert sim.schedule() is None
    sim.finish_step()
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
