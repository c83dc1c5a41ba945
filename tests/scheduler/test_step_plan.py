from __future__ import annotations

from quire.core.messages import AddRequest
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.scheduler.step_plan import StepPlan


def make_request(num_tokens: int) -> Request:
    message = AddRequest(
        request_id="r",
        prompt_token_ids=[1] * num_tokens,
        sampling=SamplingParams(),
        eos_token_ids=[9, 3],
    )
    return Request(message, arrival_number=0, max_model_len=100)


def lengths(request: Request) -> tuple[int, int]:
    return request.num_computed_tokens, request.num_in_flight_tokens


def test_what_is_planned_counts_as_computed_at_once() -> None:
    step, request = StepPlan(budget=8), make_request(10)
    step.add(request, 6, [4, 5])
    assert lengths(request) == (6, 0)
    assert step.budget == 2
    [(planned, entry, num_preemptions)] = step.planned
    assert (planned, num_preemptions) == (request, 0)
    assert (entry.start, entry.num_tokens, entry.new_block_ids) == (0, 6, [4, 5])
    assert not entry.samples


def test_the_last_known_token_brings_another() -> None:
    step, request = StepPlan(budget=8), make_request(4)
    step.add(request, 4, [])
    assert lengths(request) == (4, 1)
    following = StepPlan(budget=8)
    following.add(request, 1, [])  # of the token in flight
    assert lengths(request) == (5, 2)


def test_what_is_taken_back_never_was() -> None:
    step, request = StepPlan(budget=16), make_request(10)
    request.num_computed_tokens = 4
    step.add(request, 6, [1, 2])
    step.remove(request)
    assert lengths(request) == (4, 0)
    assert (step.budget, step.planned) == (16, [])
    step.remove(request)  # has no entry now
    assert lengths(request) == (4, 0)


def test_the_description_is_a_copy() -> None:
    step, request = StepPlan(budget=16), make_request(2)
    step.enter(request)
    request.append(5)
    [new] = step.new_requests
    assert new.token_ids == [1, 1]
    assert new.eos_token_ids == [3, 9]
