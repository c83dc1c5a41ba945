"""Counting in and out: atomic, exactly once, and a Retry-After that is measured."""

from __future__ import annotations

import sys
from subprocess import PIPE, Popen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import QueueFullError
from quire.server.admission.admission_control import (
    MAX_RETRY,
    MIN_RETRY,
    Admission,
    Capacity,
    Ticket,
)
from quire.server.admission.in_flight import shared_counters
from quire.shared_memory import create_shared_memory


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def house(
    clock: Clock | None = None, jitter: float = 0.0, **limits: int
) -> tuple[Admission, Clock]:
    clock = clock or Clock()
    capacity = Capacity(**({"max_running": 2, "max_waiting": 3} | limits))
    return Admission(capacity, clock, lambda: jitter), clock


def test_so_many_and_no_more() -> None:
    admission, _ = house()
    tickets = [Ticket(admission) for _ in range(5)]
    with pytest.raises(QueueFullError, match="3 answers wait"):
        Ticket(admission)
    assert (admission.in_flight.num_answers, admission.num_waiting, admission.num_refused) == (
        5,
        3,
        1,
    )
    with tickets[0]:
        pass
    Ticket(admission)


def test_a_request_is_charged_for_all_its_answers_and_tokens() -> None:
    admission, _ = house(max_prompt_tokens=100)
    with Ticket(admission) as big, Ticket(admission) as small:
        small.charge(1, 60)
        with pytest.raises(QueueFullError, match="60 prompt tokens"):
            big.charge(1, 41)
        with pytest.raises(QueueFullError):
            big.charge(5, 1)
        big.charge(4, 40)
        assert (admission.in_flight.num_answers, admission.in_flight.num_prompt_tokens) == (5, 100)
    assert (admission.in_flight.num_answers, admission.in_flight.num_prompt_tokens) == (0, 0)


def test_alone_anything_may_enter() -> None:
    admission, _ = house(max_prompt_tokens=10)
    with Ticket(admission) as ticket:
        ticket.charge(99, 9999)
        with pytest.raises(QueueFullError):
            Ticket(admission)


def test_one_slot_admits_one_request() -> None:
    admission, _ = house(max_running=1, max_waiting=0)
    with Ticket(admission), pytest.raises(QueueFullError):
        Ticket(admission)
    Ticket(admission)


def serve(clock: Clock, tickets: list[Ticket], seconds: float) -> None:
    """The oldest answer leaves after so long."""
    clock.now += seconds
    with tickets.pop(0):
        pass


def test_retry_after_is_the_queue_at_the_measured_rate() -> None:
    admission, clock = house(max_running=2, max_waiting=8)
    tickets: list[Ticket] = []
    for _ in range(200):
        while admission.in_flight.num_answers < 10:
            ticket = Ticket(admission)
            ticket.charge(1, 5)
            tickets.append(ticket)
        serve(clock, tickets, 0.5)
    assert admission.retry_after() == pytest.approx(7 * 0.5, rel=0.02)
    clock.now += 1000.0  # nobody leaves any more
    assert admission.retry_after() == MAX_RETRY


def test_idle_time_and_malformed_requests_do_not_count() -> None:
    admission, clock = house(max_running=1, max_waiting=20)
    tickets: list[Ticket] = []
    for _ in range(50):
        ticket = Ticket(admission)
        ticket.charge(1, 5)
        serve(clock, [ticket], 1.0)
        clock.now += 500.0  # idle
        with Ticket(admission):  # never charged: its body was wrong
            pass
    tickets = [Ticket(admission) for _ in range(11)]
    assert admission.retry_after() == pytest.approx(10.0, rel=0.02)
    del tickets


@pytest.mark.parametrize(("jitter", "bound"), [(-1.0, MIN_RETRY), (1.0, MAX_RETRY)])
def test_retry_after_is_bounded(jitter: float, bound: float) -> None:
    admission, clock = house(jitter=jitter)
    ticket = Ticket(admission)
    ticket.charge(1, 1)
    serve(clock, [ticket], 0.0 if jitter < 0 else 1e9)
    assert admission.retry_after() == bound


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 50))))
def test_the_counts_are_those_of_who_is_inside(moves: list[tuple[int, int, int]]) -> None:
    admission, _ = house(max_running=2, max_waiting=6, max_prompt_tokens=100)
    inside: list[list[int]] = []
    tickets: list[Ticket] = []
    for move, answers, tokens in moves:
        try:
            if move < 2:
                tickets.append(Ticket(admission))
                inside.append([1, 0])
            elif tickets and move == 2:
                index = tokens % len(tickets)
                inside[index] = [0, 0]
                tickets[index].charge(answers, tokens)
                inside[index] = [answers, tokens]
            elif tickets:
                index = tokens % len(tickets)
                del inside[index]
                with tickets.pop(index):
                    pass
        except QueueFullError:
            pass
        assert admission.in_flight.num_answers == sum(a for a, _ in inside)
        assert admission.in_flight.num_prompt_tokens == sum(t for _, t in inside)
        assert len(inside) == 1 or admission.in_flight.num_answers <= 8 or not inside
    for ticket in tickets:
        with ticket:
            pass
    assert (admission.in_flight.num_answers, admission.in_flight.num_prompt_tokens) == (0, 0)


def test_several_processes_fill_one_house() -> None:
    capacity = Capacity(max_running=2, max_waiting=3, max_prompt_tokens=100)

    memory = create_shared_memory()

    def process(row: int) -> list[Admission]:
        counts = shared_counters(memory, row, num_rows=2, num_counters=2)
        return [Admission(capacity, in_flight=heads) for heads in counts]

    (busy, other), (idle, _) = process(0), process(1)
    tickets = [Ticket(busy) for _ in range(5)]  # all places, though there are two processes
    with pytest.raises(QueueFullError, match="3 answers wait"):
        Ticket(idle)
    for ticket in tickets[:2]:
        with ticket:
            pass
    with Ticket(idle) as late:
        late.charge(1, 90)
        with pytest.raises(QueueFullError, match="90 prompt tokens"):
            busy.check(1, 11)
    assert (busy.in_flight.num_answers, idle.in_flight.num_own_answers) == (3, 0)
    assert other.in_flight.num_answers == 0
    assert process(0)[0].in_flight.num_answers == 0  # the first has a successor


def test_disconnected_requests_take_no_slots() -> None:
    memory = create_shared_memory()
    here = shared_counters(memory, 0, num_rows=2, num_counters=2)[1]
    count = (
        "import sys, time;"
        "from quire.server.admission.in_flight import *;"
        "shared_counters(int(sys.argv[1]), 1, 2, 2)[1].add(3, 40);"
        "print(flush=True); time.sleep(60)"
    )
    other = Popen([sys.executable, "-c", count, str(memory)], stdout=PIPE, pass_fds=(memory,))
    with other:
        assert other.stdout is not None
        other.stdout.readline()
        assert (here.num_answers, here.num_prompt_tokens) == (3, 40)
        other.kill()
    assert (here.num_answers, here.num_prompt_tokens) == (0, 0)
