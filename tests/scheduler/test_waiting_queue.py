from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.messages import AddRequest
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.scheduler.waiting_queue import WaitingQueue


def make_request(arrival: int, priority: int = 0) -> Request:
    message = AddRequest(
        request_id=f"r{arrival}",
        prompt_token_ids=[1],
        sampling=SamplingParams(),
        priority=priority,
    )
    return Request(message, arrival_number=arrival, max_model_len=100)


def pop_all(queue: WaitingQueue) -> list[str]:
    order = []
    while (request := queue.peek()) is not None:
        assert queue.pop() is request
        order.append(request.request_id)
    return order


def test_the_lowest_priority_number_comes_first() -> None:
    queue = WaitingQueue()
    for arrival, priority in [(1, 5), (2, 0), (3, -1), (4, 0)]:
        queue.push(make_request(arrival, priority))
    assert pop_all(queue) == ["r3", "r2", "r4", "r1"]


def test_a_preempted_request_stays_at_its_position() -> None:
    queue = WaitingQueue()
    first = make_request(1)
    for request in (first, make_request(2)):
        queue.push(request)
    queue.pop()
    queue.push(make_request(3))
    queue.push(first)
    assert pop_all(queue) == ["r1", "r2", "r3"]


def test_the_first_of_some_is_the_first_also_after_a_removal() -> None:
    queue = WaitingQueue()
    requests = {arrival: make_request(arrival) for arrival in (1, 3, 2)}
    for request in requests.values():
        queue.push(request)
    queue.remove(requests[1])
    assert [request.request_id for request in queue.some(1)] == ["r2"]


def test_removed_requests_are_skipped_wherever_they_stand() -> None:
    queue = WaitingQueue()
    requests = [make_request(arrival) for arrival in range(5)]
    for request in requests:
        queue.push(request)
    for request in (requests[0], requests[2], requests[4], requests[2], make_request(9)):
        queue.remove(request)
    assert pop_all(queue) == ["r1", "r3"]


def test_removed_requests_behind_one_that_waits_take_no_memory() -> None:
    queue = WaitingQueue()
    queue.push(make_request(0, priority=-1))
    for arrival in range(1, 2000):
        queue.push(request := make_request(arrival))
        queue.remove(request)
    assert len(queue._heap) < 100
    queue.push(make_request(2000, priority=-2))
    assert pop_all(queue) == ["r2000", "r0"]


def test_equal_arrivals_keep_the_order_of_their_coming() -> None:
    queue = WaitingQueue()
    requests = [make_request(7) for _ in range(3)]
    for number, request in enumerate(requests):
        request.request_id = f"twin{number}"
        queue.push(request)
    assert pop_all(queue) == ["twin0", "twin1", "twin2"]


@settings(max_examples=100)
@given(
    priorities=st.lists(st.integers(-2, 2), max_size=30),
    removed=st.sets(st.integers(0, 29)),
)
def test_order_is_that_of_a_sorted_list(priorities: list[int], removed: set[int]) -> None:
    queue = WaitingQueue()
    requests = [make_request(arrival, priority) for arrival, priority in enumerate(priorities)]
    for request in reversed(requests):
        queue.push(request)
    for number in removed & set(range(len(requests))):
        queue.remove(requests[number])
    left = [r for r in requests if r.arrival_number not in removed]
    left.sort(key=lambda r: (r.priority, r.arrival_number))
    assert pop_all(queue) == [r.request_id for r in left]


def test_an_empty_queue_has_no_first() -> None:
    assert WaitingQueue().peek() is None
